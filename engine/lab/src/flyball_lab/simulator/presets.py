"""Real hardware with real models: the coefficients of their plants and the size of their KV cache, with the source.

Fitted ones come from Vidur's public kernel profiles (github.com/microsoft/vidur: dense layers, one device): reading the
weights is 4.8 ms for 8B parameters on an H100 and 8 ms on an A100, a token beyond the knee 20 and 66 µs. That is the
roofline of `sizing.devices` for the weights, and 1.23 and 1.28 times it for a token; so a preset without a profile is
the roofline with 1.25 times for everything but the weights. Such a preset is derived, not fitted, and says so.

What the profiles do not show is in all but the CPU's and `h100-8b-fit`, which is what they show and no more: 4 ms for a
step with prefill, which the tuner's model has a coefficient for and fits, and chunks that read their context anew,
which it has none for. Reaches no clock and no randomness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_engine.batching.setpoint_enforcer import Sizes
from flyball_engine.model import StepModel
from flyball_lab.simulator.plant import StepTimes
from flyball_lab.sizing.devices import GIB, gpu

#: Extra seconds of any step that prefills, which the published fits do not show.
PREFILL_STEP: Final = 4e-3
#: Of a device's memory, and what activations and the runtime take of it.
_UTILIZATION: Final = 0.9
_OVERHEAD: Final = 2 * GIB
#: How far kernels stay behind the published peaks, see above.
_INEFFICIENCY: Final = 1.25


@dataclass(frozen=True, kw_only=True)
class EnginePreset:
    """`source`: where the figures come from. `start_seconds`: from the process's start to its first answer."""

    name: str
    source: str
    step_times: StepTimes
    kv_tokens: int
    sizes: Sizes
    start_seconds: float


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A dense model in bfloat16 as far as its steps depend on it."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head: int

    @property
    def kv_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head * 2

    @property
    def pair(self) -> int:
        """Operations for one query token and one key token."""
        return 4 * self.layers * self.heads * self.head


#: huggingface.co/meta-llama: config.json of Llama-3.1-8B and Llama-3.1-70B.
_LLAMA_8B: Final = _Model(parameters=8.03e9, layers=32, heads=32, kv_heads=8, head=128)
_LLAMA_70B: Final = _Model(parameters=70.55e9, layers=80, heads=64, kv_heads=8, head=128)

_GPU_SIZES: Final = Sizes(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=32768)


def _step_times(
    *,
    launch: float,
    weights: float,
    token: float,
    sequence: float,
    kv_token: float,
    attention: float,
    hidden: bool = True,
) -> StepTimes:
    """A step's linear part is the longer of reading the weights and multiplying tokens: a hinge at their quotient.

    `hidden`: with what the published fits do not show.
    """
    model = StepModel(
        t0=launch + weights,
        h=PREFILL_STEP if hidden else 0.0,
        c1=0.0,
        c2=token,
        beta=sequence,
        g=attention,
        kappa=round(weights / token),
    )
    return StepTimes(model=model, kv_token=kv_token, reread=kv_token if hidden else 0.0)


def _h100_8b(*, hidden: bool) -> StepTimes:
    return _step_times(
        launch=1.2e-3,
        weights=4.8e-3,
        token=20e-6,
        sequence=6e-6,
        kv_token=0.05e-6,
        attention=1.3e-9,
        hidden=hidden,
    )


def _derived(device: str, model: _Model, *, tensor: int = 1) -> tuple[StepTimes, int]:
    """Step times and KV tokens by roofline, for devices without a public profile."""
    card = gpu(device)
    if card.compute is None:
        raise ValueError(f"{device} has no published speed")
    weights = 2 * model.parameters / tensor
    rate = card.compute.half / _INEFFICIENCY
    step_times = _step_times(
        launch=1.2e-3,
        weights=weights / card.compute.bandwidth,
        token=2 * model.parameters / tensor / rate,
        sequence=6e-6,
        kv_token=_INEFFICIENCY * model.kv_bytes / tensor / card.compute.bandwidth,
        # The H100's fit reaches 41 % of its peak in prefill attention.
        attention=model.pair / tensor / (0.41 * card.compute.half),
    )
    free = _UTILIZATION * card.memory - weights - _OVERHEAD
    return step_times, int(tensor * free / model.kv_bytes)


_B200, _B200_KV = _derived("B200", _LLAMA_8B)
_L4_SIZES: Final = Sizes(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=8192)
_L4, _L4_KV = _derived("L4", _LLAMA_8B)
_H100X4, _H100X4_KV = _derived("H100-SXM", _LLAMA_70B, tensor=4)

_ALL: Final = (
    EnginePreset(
        name="h100-8b",
        source="fit of Vidur's H100 profile; KV cache of 8B in bfloat16 beside its weights in 80 GB",
        step_times=_h100_8b(hidden=True),
        kv_tokens=430_000,
        sizes=_GPU_SIZES,
        start_seconds=60.0,
    ),
    EnginePreset(
        name="h100-8b-fit",
        source="fit of Vidur's H100 profile alone",
        step_times=_h100_8b(hidden=False),
        kv_tokens=430_000,
        sizes=_GPU_SIZES,
        start_seconds=60.0,
    ),
    EnginePreset(
        name="a100-8b",
        source="fit of Vidur's A100 profile; prefill attention as the H100's by the ratio of their peaks",
        step_times=_step_times(
            launch=1.5e-3, weights=8e-3, token=66e-6, sequence=8e-6, kv_token=0.08e-6, attention=4.1e-9
        ),
        kv_tokens=430_000,
        sizes=_GPU_SIZES,
        start_seconds=60.0,
    ),
    EnginePreset(
        name="b200-8b",
        source="derived by roofline from the data sheet",
        step_times=_B200,
        kv_tokens=_B200_KV,
        sizes=_GPU_SIZES,
        start_seconds=60.0,
    ),
    EnginePreset(
        name="l4-8b",
        source="derived by roofline from the data sheet",
        step_times=_L4,
        kv_tokens=_L4_KV,
        sizes=_L4_SIZES,
        start_seconds=60.0,
    ),
    EnginePreset(
        name="4xh100-70b",
        source="derived by roofline from the data sheet, without communication between the devices",
        step_times=_H100X4,
        kv_tokens=_H100X4_KV,
        sizes=_GPU_SIZES,
        start_seconds=180.0,
    ),
    EnginePreset(
        name="cpu-small",
        source="the small model of the local cluster on two CPU cores, as measured there",
        step_times=StepTimes(
            model=StepModel(t0=8.3e-3, h=0.0, c1=0.26e-3, c2=0.20e-3, beta=0.14e-3, g=1.5e-8, kappa=64)
        ),
        kv_tokens=100_000,
        sizes=Sizes(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096),
        start_seconds=10.0,
    ),
)
#: By name.
PRESETS: Final[Mapping[str, EnginePreset]] = {preset.name: preset for preset in _ALL}
