"""What Flyball can do with a version of vLLM, as the probe reports it and docs/versions.md tells it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final

from pydantic import Field

from flyball_engine.contract import Frozen, Knob
from flyball_engine.vllm.compat import (
    ADAPTERS,
    CLIENT,
    COUNTING,
    EVERYTHING,
    GATE,
    GOVERNING,
    MARKING,
    PREFIXES,
    QUEUE,
    REFUSING,
    SCHEDULER,
    SCHEDULER_CONFIG,
    Used,
    lacking,
)
from flyball_engine.vllm.means import QUEUE_MEANS, Lack, Means, Way, means, queue_lacks, way

#: The names that instances of a class have; None: it could not be looked at, which is not "none".
Names = Collection[str] | None

_NOT_SEEN: Final = "could not be looked at: {}"


class Capability(Frozen):
    """Whether something works, and by what means or why not. `works` is None where that could not be seen."""

    works: bool | None
    how: str


class Support(Frozen):
    """What one version of vLLM lets Flyball do.

    `knobs`: the live limits. `setpoints`: how they reach the engine cores. `counting`: of requests against objectives.
    `gate`: refusing requests by a deadline, `refusing`: also those that became late while they waited. `prefixes`:
    knowing there how much of a prompt is cached. `queue`: moving vLLM's own limits of its queue. `adapters`: loading
    and unloading LoRA adapters while it runs. `dropped`: owned arguments that it does not have, which the launcher
    drops.
    `names`: every name of vLLM's that we use, by class, and whether it is there; null where the class could not be
    looked at.
    """

    vllm: str
    knobs: dict[Knob, Capability]
    setpoints: Capability
    counting: Capability
    gate: Capability
    refusing: Capability
    prefixes: Capability
    queue: Capability
    adapters: Capability
    dropped: Annotated[tuple[str, ...], Field(strict=False)]
    names: dict[str, dict[str, bool | None]]


def support(vllm: str, seen: Mapping[str, Names], dropped: Collection[str]) -> Support:
    """The report on a version of vLLM. `seen`: by class name, for each of `EVERYTHING`."""
    return Support(
        vllm=vllm,
        knobs=_knobs(seen),
        setpoints=_setpoints(seen[CLIENT.name]),
        counting=_all_there(COUNTING, seen) or Capability(works=True, how="hooks in OutputProcessor, and a middleware"),
        gate=_all_there((*COUNTING, GATE[0]), seen)
        or Capability(works=True, how="BaseRenderer.process_for_engine_async"),
        refusing=_all_there((*COUNTING, GATE[0], *REFUSING, *MARKING), seen)
        or Capability(works=True, how="an output of the engine core that ends the request, a start that is held back"),
        prefixes=_all_there(PREFIXES, seen) or Capability(works=True, how="the hashes in BlockHashToBlockMap"),
        queue=_queue(seen),
        adapters=_all_there(ADAPTERS, seen)
        or Capability(works=True, how="AsyncLLM.add_lora, and the names in OpenAIServingModels"),
        dropped=tuple(sorted(dropped)),
        names={used.name: _present(used, seen[used.name]) for used in EVERYTHING},
    )


def _knobs(seen: Mapping[str, Names]) -> dict[Knob, Capability]:
    lack = _all_there(GOVERNING, seen)
    if lack is not None:
        return dict.fromkeys(Knob, lack)
    scheduler, config = (seen[used.name] or () for used in (SCHEDULER, SCHEDULER_CONFIG))
    found = means(scheduler.__contains__, config.__contains__)
    return {knob: Capability(works=isinstance(mean, Means), how=mean.value) for knob, mean in found.items()}


def _queue(seen: Mapping[str, Names]) -> Capability:
    client, config = seen[QUEUE.name], seen[SCHEDULER_CONFIG.name]
    if client is None or config is None:
        unseen = [used.name for used in (QUEUE, SCHEDULER_CONFIG) if seen[used.name] is None]
        return Capability(works=None, how=_NOT_SEEN.format(", ".join(unseen)))
    lacks = queue_lacks(client.__contains__, config.__contains__)
    return Capability(works=not lacks, how=next(iter(lacks.values()), QUEUE_MEANS))


def _setpoints(client: Names) -> Capability:
    if client is None:
        return Capability(works=None, how=_NOT_SEEN.format(CLIENT.name))
    found: Way | Lack = way(client.__contains__)
    return Capability(works=isinstance(found, Way), how=found.value)


def _all_there(classes: Collection[Used], seen: Mapping[str, Names]) -> Capability | None:
    """Why these classes cannot be used, or cannot be judged; None if they have all that is needed."""
    for used in classes:
        names = seen[used.name]
        if names is not None and (lack := lacking(used, names.__contains__)) is not None:
            return Capability(works=False, how=lack)
    unseen = [used.name for used in classes if seen[used.name] is None]
    return Capability(works=None, how=_NOT_SEEN.format(", ".join(unseen))) if unseen else None


def _present(used: Used, names: Names) -> dict[str, bool | None]:
    return {name: None if names is None else name in names for name in (*used.needed, *used.optional)}
