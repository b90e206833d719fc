"""What to ask instead where not one request fits. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Final

from flyball_lab.sizing.presets import PRESETS
from flyball_lab.sizing.request import degrees
from flyball_lab.sizing.room import Room

#: A context shorter than this is no remedy, and the one offered is a multiple of it.
_CONTEXT_STEP: Final = 256
#: Largest share offered, in hundredths: vLLM refuses one that is not free when it starts, and of a GPU some never is.
_MOST_OF_GPU: Final = 95
_MOST_OF_MEMORY: Final = 100
#: Packings to try, the more exact one first.
_SMALLER_WEIGHTS: Final = ("fp8", "int4")


def remedies(room: Room, fits: Callable[..., bool]) -> str:
    """Options of which each alone makes one request fit; `fits` is asked with the fields of the request that differ."""
    found = [
        *_context(room, fits),
        *_preset(room, fits),
        *_utilization(room, fits),
        *_cache_numbers(room, fits),
        *_devices(room, fits),
        *_weights(fits),
    ]
    return " or ".join([", ".join(found), f"a larger --{room.device.option}"] if found else [_nothing(room)])


def _nothing(room: Room) -> str:
    return f"a larger --{room.device.option}: no other option alone makes it fit"


def _context(room: Room, fits: Callable[..., bool]) -> Iterator[str]:
    """The longest that fits: where one does, shorter ones do, too."""
    shorter = range(_CONTEXT_STEP, room.context, _CONTEXT_STEP)
    count = bisect.bisect_left(shorter, x=True, key=lambda tokens: not fits(context=tokens))
    if count:
        yield f"--context {shorter[count - 1]}"


def _preset(room: Room, fits: Callable[..., bool]) -> Iterator[str]:
    """The first that fits: its steps are smaller."""
    fitting = (name for name in PRESETS if name != room.preset.name and fits(preset=name))
    yield from (f"--preset {name}" for name in list(fitting)[:1])


def _utilization(room: Room, fits: Callable[..., bool]) -> Iterator[str]:
    """The smallest share that fits, in hundredths."""
    most = _MOST_OF_MEMORY if room.device.compute is None else _MOST_OF_GPU
    larger = range(int(room.request.utilization * 100) + 1, most + 1)
    index = bisect.bisect_left(larger, x=True, key=lambda share: fits(utilization=share / 100))
    if index < len(larger):
        yield f"--utilization {larger[index] / 100:g}"


def _cache_numbers(room: Room, fits: Callable[..., bool]) -> Iterator[str]:
    if room.kv_bytes > 1 and fits(kv_dtype="fp8"):
        yield "--kv-dtype fp8"


def _devices(room: Room, fits: Callable[..., bool]) -> Iterator[str]:
    """The fewest over which the model can be split, and then fits."""
    more = (count for count in degrees(room.model) if count > room.request.tensor_parallel)
    yield from (f"--tensor-parallel {count}" for count in [one for one in more if fits(tensor_parallel=one)][:1])


def _weights(fits: Callable[..., bool]) -> Iterator[str]:
    """The most exact packing that fits."""
    fitting = [name for name in _SMALLER_WEIGHTS if fits(weights=name)]
    yield from (f"--weights {name}" for name in fitting[:1])
