"""Sizes a model on a device: memory, cache, the cost of a step, and ceilings to start with. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.model import StepModel
from flyball_lab.sizing.devices import GIB, Device
from flyball_lab.sizing.errors import ShortageError, SizingError
from flyball_lab.sizing.memory import CacheShape
from flyball_lab.sizing.presets import LoadPreset
from flyball_lab.sizing.remedies import remedies
from flyball_lab.sizing.request import SizingRequest
from flyball_lab.sizing.roofline import Cost, Roofline
from flyball_lab.sizing.room import Memory, Room, room
from flyball_lab.sizing.shape import ModelShape
from flyball_lab.sizing.weights import active_parameters, parameters

#: Batches are whole eights, as CUDA graphs are.
_SEQS_STEP: Final = 8


@dataclass(frozen=True, kw_only=True)
class StartSizes:
    """Start-up values. `threshold` of long prompts in tokens, 0 for none, as vLLM has it."""

    seqs: int
    tokens: int
    threshold: int


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Costs at the ceilings: `decode` of a full batch at the context, `single` of one, `prefill` of a full step."""

    decode: Cost
    single: Cost
    prefill: Cost
    model: StepModel


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The answer. `concurrency` requests of `context` tokens fit at once; `steps` None where speed is unknown."""

    model: ModelShape
    device: Device
    tensor_parallel: int
    context: int
    utilization: float
    kv_dtype: str
    kv_number_bytes: int
    parameters: int
    active_parameters: int
    memory: Memory
    cache: CacheShape
    concurrency: float
    preset: LoadPreset
    ceilings: StartSizes
    steps: Steps | None

    @property
    def kv_bytes_per_token(self) -> int:
        """On each device, of all layers: what a token costs while every window still grows."""
        return len(self.model.layers) * self.cache.layer_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds, counted in requests of `context`, as vLLM logs it."""
        return int(self.concurrency * self.context)


def size(config: object, device: Device, request: SizingRequest) -> Sizing:
    """Size the model that `config` (a parsed config.json) describes.

    Raises `ConfigError`, `RequestError` or `ShortageError`.
    """
    here = room(config, device, request)
    _check(here, lambda **changed: _fits(config, device, replace(request, **changed)))
    seqs = _largest(lambda batch: here.holds(batch) and here.in_time(batch), here.preset.seqs)
    tokens = here.tokens(seqs)
    share = here.preset.threshold_share
    return Sizing(
        model=here.model,
        device=device,
        tensor_parallel=request.tensor_parallel,
        context=here.context,
        utilization=request.utilization,
        kv_dtype=here.kv_dtype,
        kv_number_bytes=here.kv_bytes,
        parameters=parameters(here.model),
        active_parameters=active_parameters(here.model),
        memory=here.memory(seqs),
        cache=here.cache,
        concurrency=here.concurrency(seqs),
        preset=here.preset,
        ceilings=StartSizes(seqs=seqs, tokens=tokens, threshold=0 if share is None else int(tokens * share)),
        steps=None if here.roofline is None else _steps(here.roofline, context=here.context, seqs=seqs, tokens=tokens),
    )


def _check(here: Room, fits: Callable[..., bool]) -> None:
    """Raises `ShortageError` unless one request fits; it names what would make it."""
    if here.holds(1):
        return
    memory = here.memory(1)
    if memory.cache > 0:
        problem = f"of {here.context} tokens does not fit once into {memory.cache / GIB:.2f} GiB of cache"
        raise ShortageError("context", problem, remedies(here, fits))
    raise ShortageError(
        here.device.option,
        f"{memory.budget / GIB:.1f} GiB of each device may be used; weights take {memory.weights / GIB:.1f} GiB, "
        f"activations and runtime {(memory.activations + memory.reserve) / GIB:.1f} GiB",
        remedies(here, fits),
    )


def _fits(config: object, device: Device, request: SizingRequest) -> bool:
    """One request does; not where the request cannot be had."""
    try:
        return room(config, device, request).holds(1)
    except SizingError:
        return False


def _largest(allowed: Callable[[int], bool], most: int) -> int:
    """The largest batch that is allowed, where fewer always are too; whole eights, as CUDA graphs are."""
    seqs = bisect.bisect_left(range(1, most + 1), x=True, key=lambda batch: not allowed(batch))
    return seqs // _SEQS_STEP * _SEQS_STEP or max(1, seqs)


def _steps(roofline: Roofline, *, context: int, seqs: int, tokens: int) -> Steps:
    return Steps(
        decode=roofline.decode(batch=seqs, context=context),
        single=roofline.decode(batch=1, context=context),
        prefill=roofline.prefill(tokens=tokens),
        model=roofline.step_model(context=context),
    )
