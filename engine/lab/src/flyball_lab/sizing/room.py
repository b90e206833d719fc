"""What a device has room for, by the number of requests that may run together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flyball_lab.sizing import presets
from flyball_lab.sizing.config import read
from flyball_lab.sizing.devices import Device
from flyball_lab.sizing.memory import CacheShape, activation_bytes, cache_shape, capacity
from flyball_lab.sizing.presets import LoadPreset
from flyball_lab.sizing.request import SizingRequest, check_split, check_utilization, context_of, kv_dtype
from flyball_lab.sizing.roofline import Roofline
from flyball_lab.sizing.shape import ModelShape
from flyball_lab.sizing.weights import weight_bytes

_STEP: Final = 256
#: Steps that the requests of a full batch fill at least, where a step is larger than the preset's least.
_STEPS_HELD: Final = 4


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
class Room:
    """A model on a device, as requested: `context` tokens per request, at most `most_tokens` in a step.

    `kv_dtype` and `kv_bytes` of a cached number; `roofline` None where the device's speed is unknown.
    """

    model: ModelShape
    device: Device
    request: SizingRequest
    preset: LoadPreset
    cache: CacheShape
    kv_dtype: str
    kv_bytes: int
    context: int
    most_tokens: int
    roofline: Roofline | None

    def tokens(self, seqs: int) -> int:
        """Of a step: never more than that many requests can fill, and beyond the preset's least a share of it only.

        Activations for them take from the cache, and where it holds few requests, one more is worth more than a longer
        step.
        """
        filled = seqs * self.context
        longer = filled // _STEPS_HELD // _STEP * _STEP
        return min(filled, max(self.preset.tokens[0], min(self.most_tokens, longer)))

    def memory(self, seqs: int) -> Memory:
        """The split with `seqs` as the ceiling: sampling for them takes from the cache, too."""
        split = self.request.tensor_parallel
        activations = activation_bytes(self.model, tensor_parallel=split, batched_tokens=self.tokens(seqs), seqs=seqs)
        return Memory(
            total=self.device.memory,
            budget=int(self.device.memory * self.request.utilization),
            weights=weight_bytes(self.model, split),
            activations=activations,
            reserve=self.device.reserve,
        )

    def concurrency(self, seqs: int) -> float:
        """Requests that the cache holds, with `seqs` as the ceiling."""
        cache_bytes = self.memory(seqs).cache
        return capacity(self.cache, cache_bytes=cache_bytes, context=self.context, batched_tokens=self.tokens(seqs))

    def holds(self, seqs: int) -> bool:
        """There is room to sample that many, and cache for them. Where it holds some, it holds fewer."""
        return self.concurrency(seqs) >= seqs

    def in_time(self, batch: int) -> bool:
        """The preset's bound on a decode step; one request is always allowed."""
        stretch = self.preset.decode_stretch
        if self.roofline is None or stretch is None:
            return True
        shortest = self.roofline.step_model(context=self.context).seconds(decodes=1)
        return batch == 1 or self.roofline.decode(batch=batch, context=self.context).seconds <= stretch * shortest


def room(config: object, device: Device, request: SizingRequest) -> Room:
    """The room for the model that `config` describes. Raises `ConfigError` and `RequestError`."""
    preset = presets.preset(request.preset)
    model = read(config, dtype=request.dtype, weights=request.weights)
    kv_name, kv_bytes = kv_dtype(request.kv_dtype, model)
    split = request.tensor_parallel
    check_split(model, split)
    check_utilization(request.utilization)
    context = context_of(request.context, model)
    roofline = None
    if device.compute is not None:
        roofline = Roofline(model=model, compute=device.compute, tensor_parallel=split, kv_bytes=kv_bytes)
    return Room(
        model=model,
        device=device,
        request=request,
        preset=preset,
        cache=cache_shape(model, tensor_parallel=split, kv_bytes=kv_bytes),
        kv_dtype=kv_name,
        kv_bytes=kv_bytes,
        context=context,
        most_tokens=_most_tokens(preset, roofline, context),
        roofline=roofline,
    )


def _most_tokens(preset: LoadPreset, roofline: Roofline | None, context: int) -> int:
    """The largest step of prefill alone that the preset allows, whole multiples of 256."""
    least, most = preset.tokens
    if roofline is None:
        return least
    model = roofline.step_model(context=context)
    fitting = model.largest_chunk(seconds=preset.step_stretch * model.seconds(decodes=1), tokens=0, decodes=0)
    return max(least, min(most, int(fitting) // _STEP * _STEP))
