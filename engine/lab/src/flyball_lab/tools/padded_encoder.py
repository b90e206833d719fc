"""An encoder in sorted padded batches, run by Transformers: one of the engines of `hack/bench padded`.

`python -m flyball_lab.tools.padded_encoder MODEL --budget TOKENS`, in vLLM's environment, which has both.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from flyball_lab.benches.padded.encoder import SortedBatches, Vector, own_output, serve


class PaddedModel:
    """Runs one batch: prompts padded on the right to the longest, and masked."""

    def __init__(self, folder: str) -> None:
        model: Any = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self._model = model.eval()
        self._pad: int = model.config.pad_token_id

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is not in the development environment
    def run(self, prompts: Sequence[Sequence[int]]) -> Sequence[Vector]:
        """The normalised state of each prompt's first token."""
        longest = max(map(len, prompts))
        lacking = [longest - len(prompt) for prompt in prompts]
        rows = list(zip(prompts, lacking, strict=True))
        ids = torch.tensor([[*prompt, *[self._pad] * missing] for prompt, missing in rows])
        # Without padding there is nothing to mask, and attention is cheaper.
        mask = torch.tensor([[1] * len(prompt) + [0] * missing for prompt, missing in rows]) if any(lacking) else None
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        vectors: list[list[float]] = torch.nn.functional.normalize(states, dim=-1).tolist()
        return vectors


async def main(folder: str, *, budget: int) -> None:
    """Serve until there is no more input."""
    output = own_output()
    batches = SortedBatches(PaddedModel(folder).run, budget=budget)
    running = asyncio.create_task(batches.run_batches())
    await serve(batches, output)
    running.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--budget", type=int, required=True)
    parsed = parser.parse_args()
    asyncio.run(main(parsed.model, budget=parsed.budget))
