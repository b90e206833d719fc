"""Sizes a model on a device: memory, cache, the cost of a step, and ceilings to start with. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from flyball_engine.model import StepModel
from flyball_engine.sizing import presets
from flyball_engine.sizing.config import AUTO, read
from flyball_engine.sizing.devices import GIB, Device
from flyball_engine.sizing.errors import RequestError, ShortageError
from flyball_engine.sizing.memory import CacheShape, activation_bytes, cache_shape, capacity
from flyball_engine.sizing.presets import Preset
from flyball_engine.sizing.roofline import Cost, Roofline
from flyball_engine.sizing.shape import Heads, ModelShape
from flyball_engine.sizing.weights import active_parameters, parameters, weight_bytes

#: Tokens of prompt and answer together, where the request does not say and the model can hold them.
USUAL_CONTEXT: Final = 8192
#: Bytes of one cached number, by vLLM's --kv-cache-dtype; auto is the model's own.
KV_DTYPES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
#: Devices in one engine; beyond one node's, tensor parallelism is not sensible.
MOST_DEVICES: Final = 64
_STEP: Final = 256
_SEQS_STEP: Final = 8


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked. Names as vLLM's flags; `context` in tokens, None for the usual one."""

    tensor_parallel: int = 1
    context: int | None = None
    utilization: float = 0.9
    dtype: str = AUTO
    kv_dtype: str = AUTO
    weights: str = AUTO
    preset: str = "throughput"


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of each device: `budget` = `weights` + `activations` + `reserve` + `cache`."""

    total: int
    budget: int
    weights: int
    activations: int
    reserve: int

    @property
    def cache(self) -> int:
        """What is left."""
        return self.budget - self.weights - self.activations - self.reserve


@dataclass(frozen=True, kw_only=True)
class Ceilings:
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
    preset: Preset
    ceilings: Ceilings
    steps: Steps | None

    @property
    def kv_bytes_per_token(self) -> int:
        """On each device, of all layers: what a token costs while every window still grows."""
        return len(self.model.layers) * self.cache.layer_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds, counted in requests of `context`, as vLLM logs it."""
        return int(self.concurrency * self.context)


def size(config: object, device: Device, request: Request) -> Sizing:
    """Size the model that `config` (a parsed config.json) describes.

    Raises `ConfigError`, `RequestError` or `ShortageError`.
    """
    bundle = presets.preset(request.preset)
    model = read(config, dtype=request.dtype, weights=request.weights)
    kv_dtype, kv_bytes = _kv_dtype(request.kv_dtype, model)
    _check_split(model, request.tensor_parallel)
    _check_utilization(request.utilization)
    context = _context(request.context, model)
    cache = cache_shape(model, tensor_parallel=request.tensor_parallel, kv_bytes=kv_bytes)
    roofline = None
    if device.compute is not None:
        roofline = Roofline(
            model=model, compute=device.compute, tensor_parallel=request.tensor_parallel, kv_bytes=kv_bytes
        )
    tokens = _tokens(bundle, roofline, context)
    room = _Room(model=model, device=device, request=request, cache=cache, context=context, tokens=tokens)
    room.check()
    seqs = _largest(lambda batch: room.holds(batch) and _in_time(bundle, roofline, batch, context), bundle.seqs)
    memory = room.memory(seqs)
    threshold = 0 if bundle.threshold_share is None else int(tokens * bundle.threshold_share)
    return Sizing(
        model=model,
        device=device,
        tensor_parallel=request.tensor_parallel,
        context=context,
        utilization=request.utilization,
        kv_dtype=kv_dtype,
        kv_number_bytes=kv_bytes,
        parameters=parameters(model),
        active_parameters=active_parameters(model),
        memory=memory,
        cache=cache,
        concurrency=room.concurrency(memory),
        preset=bundle,
        ceilings=Ceilings(seqs=seqs, tokens=tokens, threshold=threshold),
        steps=None if roofline is None else _steps(roofline, context=context, seqs=seqs, tokens=tokens),
    )


def _kv_dtype(asked: str, model: ModelShape) -> tuple[str, int]:
    if asked == AUTO:
        return model.dtype, model.number_bytes
    if asked not in KV_DTYPES:
        raise RequestError("kv-dtype", f"is {asked!r:.60}", ", ".join((AUTO, *KV_DTYPES)))
    return asked, KV_DTYPES[asked]


def _check_split(model: ModelShape, count: int) -> None:
    """Query heads must divide over the devices, and key heads divide or be replicated evenly."""
    query = model.attention.query
    kv = model.attention.kv if isinstance(model.attention, Heads) else 1
    possible = [n for n in range(1, min(query, MOST_DEVICES) + 1) if query % n == 0 and (kv % n == 0 or n % kv == 0)]
    if count not in possible:
        raise RequestError(
            "tensor-parallel",
            f"is {count}, and the model has {query} query and {kv} key-value heads",
            ", ".join(map(str, possible)),
        )


def _check_utilization(share: float) -> None:
    if not 0 < share <= 1:
        raise RequestError("utilization", f"is {share}", "a number above 0 and at most 1, such as 0.9")


def _context(asked: int | None, model: ModelShape) -> int:
    if asked is None:
        return min(USUAL_CONTEXT, model.longest)
    if not 1 <= asked <= model.longest:
        raise RequestError("context", f"is {asked} tokens", f"1 to {model.longest}, the model's longest")
    return asked


def _tokens(bundle: Preset, roofline: Roofline | None, context: int) -> int:
    """The largest step of prefill alone that the bundle allows, whole multiples of 256."""
    least, most = bundle.tokens
    if roofline is None:
        return least
    model = roofline.step_model(context=context)
    fitting = model.largest_chunk(seconds=bundle.step_stretch * model.seconds(decodes=1), tokens=0, decodes=0)
    return max(least, min(most, int(fitting) // _STEP * _STEP))


@dataclass(frozen=True, kw_only=True)
class _Room:
    """What a device has room for, when a step may have `tokens`, and requests have `context`."""

    model: ModelShape
    device: Device
    request: Request
    cache: CacheShape
    context: int
    tokens: int

    def memory(self, seqs: int) -> Memory:
        """The split with `seqs` as the ceiling: sampling for them takes from the cache."""
        split = self.request.tensor_parallel
        return Memory(
            total=self.device.memory,
            budget=int(self.device.memory * self.request.utilization),
            weights=weight_bytes(self.model, split),
            activations=activation_bytes(self.model, tensor_parallel=split, batched_tokens=self.tokens, seqs=seqs),
            reserve=self.device.reserve,
        )

    def concurrency(self, memory: Memory) -> float:
        """Requests that the cache holds."""
        return capacity(self.cache, cache_bytes=memory.cache, context=self.context, batched_tokens=self.tokens)

    def holds(self, seqs: int) -> bool:
        """There is room to sample that many, and cache for them."""
        return self.concurrency(self.memory(seqs)) >= seqs

    def check(self) -> None:
        """Raises `ShortageError` unless one request fits."""
        memory = self.memory(1)
        if memory.cache <= 0:
            raise ShortageError(
                "memory",
                f"{memory.budget / GIB:.1f} GiB of each device may be used; weights take {memory.weights / GIB:.1f} "
                f"GiB, activations and runtime {(memory.activations + memory.reserve) / GIB:.1f} GiB",
                "more memory, a larger --tensor-parallel, or smaller --weights",
            )
        if not self.holds(1):
            raise ShortageError(
                "context",
                f"of {self.context} tokens does not fit once into {memory.cache / GIB:.2f} GiB of cache",
                f"at most about {int(self.concurrency(memory) * self.context)} tokens, --kv-dtype fp8, or more memory",
            )


def _in_time(bundle: Preset, roofline: Roofline | None, batch: int, context: int) -> bool:
    """The bundle's bound on a decode step; one request is always allowed."""
    if roofline is None or bundle.decode_stretch is None:
        return True
    shortest = roofline.step_model(context=context).seconds(decodes=1)
    return batch == 1 or roofline.decode(batch=batch, context=context).seconds <= bundle.decode_stretch * shortest


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
