"""How weights are stored: read from a config's `quantization_config`, or named.

Bits include what comes with the weights: one 16-bit scale and one zero point per group of AWQ and GPTQ
(arXiv 2210.17323, 2306.00978), one 8-bit scale per 32 weights of MXFP4 (OCP Microscaling Formats, v1.0). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flyball_lab.sizing.errors import ConfigError, RequestError
from flyball_lab.sizing.shape import Arithmetic, Checkpoint, Packing

#: Weights that share a scale, where a checkpoint does not say: what AWQ and GPTQ tools default to.
USUAL_GROUP: Final = 128
UNPACKED: Final = Packing(name="bf16", bits=16.0)
#: On load by the name that vLLM 0.26 to 0.32 take (vllm/config/quantization.py): 0.32 refuses --quantization=fp8 for
#: weights that are not packed (vllm/model_executor/layers/quantization/fp8.py).
_FP8: Final = Packing(name="fp8", bits=8.0, arithmetic=Arithmetic.FP8, on_load="fp8_per_tensor")
_MXFP4: Final = Packing(name="mxfp4", bits=4 + 8 / 32, experts_only=True)


def _grouped(name: str, bits: int, group: int) -> Packing:
    """Integers with a 16-bit scale and a zero point of `bits` per group; one group per row weighs nothing."""
    return Packing(name=name, bits=bits + ((16 + bits) / group if group > 0 else 0.0))


#: What `weights` may name.
NAMED: Final[Mapping[str, Packing]] = {
    "bf16": UNPACKED,
    "fp8": _FP8,
    "int8": _grouped("int8", 8, 0),
    "int4": _grouped("int4", 4, USUAL_GROUP),
    "awq": _grouped("awq", 4, USUAL_GROUP),
    "gptq": _grouped("gptq", 4, USUAL_GROUP),
    "mxfp4": _MXFP4,
}


def named(weights: str) -> Packing:
    """The packing of that name.

    Raises `RequestError` listing the names.
    """
    if weights not in NAMED:
        raise RequestError("weights", f"is {weights!r:.60}", ", ".join(("auto", *NAMED)))
    return NAMED[weights]


def checkpoint(wanted: Packing, found: Packing) -> Checkpoint:
    """Which one holds weights packed as `wanted`, where the config states `found`."""
    if _alike(wanted, found):
        return Checkpoint.STATED
    return Checkpoint.ON_LOAD if found == UNPACKED and wanted.on_load else Checkpoint.OTHER


def _alike(one: Packing, other: Packing) -> bool:
    """Group sizes may differ; plain integers are any of as many bits."""
    if int(one.bits) != int(other.bits):
        return False
    same_layers = (one.arithmetic, one.experts_only) == (other.arithmetic, other.experts_only)
    return one.name == other.name or (same_layers and f"int{int(one.bits)}" in (one.name, other.name))


def stated(quantization: Mapping[str, Any] | None) -> Packing:
    """The packing that a config's `quantization_config` states; unpacked where there is none."""
    if not quantization:
        return UNPACKED
    method = quantization.get("quant_method")
    if method in ("awq", "gptq"):
        return _grouped(method, _bits(quantization, "bits", 4), _group(quantization, USUAL_GROUP))
    if method == "fp8":
        return _FP8
    if method == "mxfp4":
        return _MXFP4
    if method == "compressed-tensors":
        return _compressed(quantization)
    raise ConfigError(
        "quantization_config.quant_method",
        f"is {method!r:.60}",
        "awq, gptq, fp8, mxfp4, compressed-tensors, or --weights to name the packing",
    )


def _compressed(quantization: Mapping[str, Any]) -> Packing:
    """The first group's weights: checkpoints with several groups have them for the same layers' activations."""
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        raise ConfigError("quantization_config.config_groups", "states no weights", "a group with num_bits")
    bits = _bits(weights, "num_bits")
    if weights.get("type") == "float" and bits == 8:
        return _FP8
    return _grouped(f"int{bits}", bits, _group(weights, 0))


def _bits(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = fields.get(name, default)
    if value not in (2, 3, 4, 8):
        raise ConfigError(f"quantization_config.{name}", f"is {value!r:.60}", "2, 3, 4 or 8")
    return int(value)


def _group(fields: Mapping[str, Any], default: int) -> int:
    """Weights that share a scale; -1 and null mean one group per row."""
    value = fields.get("group_size", default)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError("quantization_config.group_size", f"is {value!r:.60}", "a whole number")
    return value
