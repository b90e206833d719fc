"""Writes a small language model that behaves like a large one: `python make_model.py DIRECTORY`.

Llama's architecture with seeded random weights, so the text is nonsense while queueing, batching, prefill and decode
cost what they cost in relation to each other. The tokenizer is a byte-level BPE trained on the Python standard
library's sources, so prompts of a wanted length are easy to make. The same Python gives the same files, byte for byte.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]  # vLLM's environment has it

VOCABULARY = 8192
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 512, 1408, 8, 8, 2
HEAD_SIZE = HIDDEN // HEADS
CONTEXT = 16384
SEED = 1788  # the year of Watt's governor
SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>", "<|role|>", "<|text|>")
BEGIN, END, PAD = range(3)
CHAT_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|role|>{{ message['role'] }}<|text|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|role|>assistant<|text|>{% endif %}"
)


def corpus() -> list[str]:
    """Texts to learn the tokenizer from: modules at the top of the standard library, in one order everywhere."""
    library = Path(sysconfig.get_path("stdlib"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in sorted(library.glob("*.py"))]


def tokenizer() -> Tokenizer:
    """Byte-level BPE: every text has tokens, and comes back whole."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(corpus(), trainer)
    return made


def weights() -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape, in the order they are drawn."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": (KV_HEADS * HEAD_SIZE, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_SIZE),
            f"{prefix}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{prefix}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
            f"{prefix}input_layernorm.weight": (HIDDEN,),
            f"{prefix}post_attention_layernorm.weight": (HIDDEN,),
        }
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def bfloat16(values: np.ndarray) -> bytes:
    """The upper half of each float32, which is what bfloat16 is."""
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def config() -> dict[str, object]:
    """What `config.json` says."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }


def main(target: Path) -> None:
    """Writes the model's files."""
    target.mkdir(parents=True, exist_ok=True)

    def write(name: str, content: object) -> None:
        (target / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    write("config.json", config())
    write("generation_config.json", {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD})
    tokenizer().save(str(target / "tokenizer.json"))
    write(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "bos_token": SPECIAL[BEGIN],
            "eos_token": SPECIAL[END],
            "pad_token": SPECIAL[PAD],
            "chat_template": CHAT_TEMPLATE,
        },
    )
    random = np.random.default_rng(SEED)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, shape in weights().items():
        normal = 0.02 * random.standard_normal(shape, dtype=np.float32)
        values = np.ones(shape) if name.endswith("norm.weight") else normal
        begin = len(data)
        data += bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (begin, len(data))}
    # The safetensors format: the header's length, the header, the bytes.
    encoded = json.dumps(header).encode()
    (target / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
