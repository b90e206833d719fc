"""Writes an encoder with random weights: `python -m flyball_lab.tools.make_encoder DIRECTORY`. Needs Transformers.

BERT's architecture with the shapes of a small retrieval model: 33 million weights, of which 21 million are multiplied
with each token. No tokenizer: prompts are token ids.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
import transformers

SHAPES: Final[dict[str, Any]] = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    # So large that vectors of different prompts differ: as BERT draws them, they hardly do.
    "initializer_range": 0.1,
}
SEED: Final = 1788


def main(folder: str) -> None:
    """Write the model's files."""
    torch.manual_seed(SEED)
    transformers.BertModel(transformers.BertConfig(**SHAPES), add_pooling_layer=False).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
