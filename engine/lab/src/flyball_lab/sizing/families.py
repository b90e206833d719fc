"""The model families that are sized: what their config.json leaves unsaid, and how their layers differ.

Defaults are those of each family's configuration class in Hugging Face transformers 5
(github.com/huggingface/transformers, src/transformers/models/<family>/configuration_<family>.py). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from flyball_lab.sizing.errors import ConfigError
from flyball_lab.sizing.fields import MOST_LAYERS, Fields
from flyball_lab.sizing.shape import Experts, Layer


class Windows(StrEnum):
    """Which layers attend to a sliding window only, where the config has no `layer_types`."""

    NEVER = "never"
    """None."""
    ALL = "all"
    """All, where `sliding_window` is set."""
    ALTERNATING = "alternating"
    """All but every n-th, n being `sliding_window_pattern` or the family's own."""
    UPPER = "upper"
    """Those from `max_window_layers` on, where `use_sliding_window` is true."""


class Mixture(StrEnum):
    """How the family spells its experts."""

    NONE = "none"
    """Dense."""
    EVERY = "every"
    """Experts in every layer, of `intermediate_size` (Mixtral, GPT-OSS)."""
    SPARSE = "sparse"
    """Experts of `moe_intermediate_size` every `decoder_sparse_step` layers, but in `mlp_only_layers` (Qwen)."""
    LATER = "later"
    """Experts of `moe_intermediate_size` from `first_k_dense_replace` on, beside shared ones (DeepSeek)."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """`tied`: default of `tie_word_embeddings`; `learned`: extra rows of learned positions, None where rotary.

    `every`: of alternating windows, which layer is full; `multi_query`: default of that flag, None where the family
    has none; `latent`: multi-head latent attention.
    """

    gated: bool = True
    tied: bool = False
    learned: int | None = None
    windows: Windows = Windows.NEVER
    every: int = 1
    mixture: Mixture = Mixture.NONE
    multi_query: bool | None = None
    latent: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)


_GPT2_NAMES: Final = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_LLAMA: Final = Family()
_QWEN: Final = Family(windows=Windows.UPPER)
_GEMMA: Final = Family(tied=True, defaults={"head_dim": 256, "vocab_size": 256_000, "max_position_embeddings": 8192})
_GEMMA3: Final = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
}
_DEEPSEEK: Final = Family(latent=True, mixture=Mixture.LATER)
_GPT2: Final = Family(gated=False, tied=True, learned=0, aliases=_GPT2_NAMES)

#: By `model_type`.
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK,
        "gemma": _GEMMA,
        "gemma2": replace(_GEMMA, windows=Windows.ALTERNATING, every=2),
        "gemma3_text": replace(_GEMMA, windows=Windows.ALTERNATING, every=6, defaults=_GEMMA3),
        "gpt2": _GPT2,
        "gpt_bigcode": replace(_GPT2, multi_query=True),
        "gpt_neox": Family(gated=False),
        "gpt_oss": Family(windows=Windows.ALTERNATING, every=2, mixture=Mixture.EVERY),
        "granite": _LLAMA,
        "kimi_k2": _DEEPSEEK,
        "llama": _LLAMA,
        "mistral": Family(windows=Windows.ALL),
        "mixtral": Family(windows=Windows.ALL, mixture=Mixture.EVERY),
        "opt": Family(gated=False, tied=True, learned=2, aliases={"intermediate_size": "ffn_dim"}),
        "phi": Family(gated=False),
        "phi3": Family(windows=Windows.ALL),
        "qwen2": _QWEN,
        "qwen2_moe": replace(_QWEN, mixture=Mixture.SPARSE),
        "qwen2_vl": _QWEN,
        "qwen2_vl_text": _QWEN,
        "qwen2_5_vl": _QWEN,
        "qwen2_5_vl_text": _QWEN,
        "qwen3": replace(_QWEN, defaults={"head_dim": 128}),
        "qwen3_moe": replace(_QWEN, mixture=Mixture.SPARSE),
        "starcoder2": Family(gated=False, tied=True, windows=Windows.ALL),
    }
)


def layers(fields: Fields, family: Family) -> tuple[Layer, ...]:
    """Window and experts of each layer."""
    count = fields.count("num_hidden_layers", most=MOST_LAYERS)
    windows = _windows(fields, family, count)
    experts, sparse = _experts(fields, family, count)
    return tuple(
        Layer(window=window, experts=experts if index in sparse else None) for index, window in enumerate(windows)
    )


def _windows(fields: Fields, family: Family, count: int) -> list[int | None]:
    kinds = fields.raw("layer_types")
    if kinds is not None:
        return _stated_windows(fields, kinds, count)
    window = fields.optional("sliding_window")
    if family.windows is Windows.NEVER or window is None:
        return [None] * count
    if family.windows is Windows.UPPER:
        if not fields.flag("use_sliding_window", default=False):
            return [None] * count
        first = fields.count("max_window_layers", least=0)
        return [window if index >= first else None for index in range(count)]
    if family.windows is Windows.ALL:
        return [window] * count
    every = fields.optional("sliding_window_pattern") or family.every
    return [window if (index + 1) % every else None for index in range(count)]


def _stated_windows(fields: Fields, kinds: object, count: int) -> list[int | None]:
    accepted = "a list of full_attention and sliding_attention, one per layer"
    if not isinstance(kinds, list) or len(kinds) != count:
        raise ConfigError("layer_types", f"is not one entry for each of {count} layers", accepted)
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ConfigError("layer_types", f"holds {kind!r:.60}", accepted)
    window = fields.count("sliding_window") if "sliding_attention" in kinds else None
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _experts(fields: Fields, family: Family, count: int) -> tuple[Experts | None, frozenset[int]]:
    """The experts, and the layers that have them."""
    every = frozenset(range(count))
    if family.mixture is Mixture.NONE:
        return None, frozenset()
    if family.mixture is Mixture.EVERY:
        return _mixture(fields, total="num_local_experts", width="intermediate_size"), every
    if family.mixture is Mixture.SPARSE:
        step = fields.optional("decoder_sparse_step") or 1
        dense = fields.numbers("mlp_only_layers")
        shared = fields.optional("shared_expert_intermediate_size", least=0) or 0
        sparse = frozenset(index for index in every - dense if (index + 1) % step == 0)
        return _mixture(fields, total="num_experts", width="moe_intermediate_size", shared=shared), sparse
    first = fields.optional("first_k_dense_replace", least=0) or 0
    step = fields.optional("moe_layer_freq") or 1
    shared = (fields.optional("n_shared_experts", least=0) or 0) * fields.count("moe_intermediate_size")
    sparse = frozenset(index for index in every if index >= first and index % step == 0)
    return _mixture(fields, total="n_routed_experts", width="moe_intermediate_size", shared=shared), sparse


def _mixture(fields: Fields, *, total: str, width: str, shared: int = 0) -> Experts:
    count = fields.count(total, most=MOST_LAYERS)
    chosen = fields.count("num_experts_per_tok", most=count)
    return Experts(count=count, chosen=chosen, width=fields.count(width), shared=shared)
