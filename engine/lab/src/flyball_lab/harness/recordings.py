"""Minutes of one service's tuning as they were recorded: what it saw and was told, and all that came of it.

A recording has two files in `tests/recordings`. `NAME.inputs.jsonl.gz` has the service, its pods, and then what
happened, a JSON object a line: a tick with its signals, an edit, something that befell the engines. `NAME.jsonl` has
what came of each tick: setpoints that engines were told anew, status where it was written, events. Time is virtual, so
that the same inputs give the same outcome to the digit; what is meant to change it is shown by the difference.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from flyball_engine.contract import StepKind
from flyball_engine.figures import significant
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.service_tuners import Engines, Harness
from flyball_lab.harness.virtual_time import now, run
from flyball_lab.repository import ROOT
from flyball_operator.kube.errors import ClusterError
from flyball_operator.tuning.insight import Insight
from flyball_operator.tuning.observe.signals import (
    Applied,
    Attainment,
    CellKey,
    Identity,
    Missing,
    ObjectiveCounts,
    Observation,
    OrderOutcome,
    PodOutcomes,
    PromptSums,
    RequestLoad,
    Signals,
    StepWindow,
    Sums,
    Unobserved,
)
from flyball_operator.tuning.tuner import SignalReader

FOLDER: Final = ROOT / "tests/recordings"
#: How the names of those begin that were recorded on a real engine.
LIVE: Final = "live-"
#: Digits of a recorded figure: what Prometheus shows has hardly more that mean something.
_DIGITS: Final = 7


@dataclass(frozen=True)
class Recording:
    """`service`: metadata and spec, as of a manifest. `pods`: their UIDs at first. `steps`: what happened."""

    name: str
    service: Object
    pods: Sequence[str]
    steps: Sequence[Object]

    @classmethod
    def named(cls, name: str) -> Recording:
        """One that is committed."""
        with gzip.open(FOLDER / f"{name}.inputs.jsonl.gz", "rt", encoding="utf-8") as file:
            first, *steps = map(json.loads, file)
        return cls(name, first["service"], first["pods"], steps)

    def write(self, folder: Path = FOLDER) -> None:
        """Write the inputs, and what comes of them now."""
        lines = [{"service": self.service, "pods": self.pods}, *self.steps]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        # Without a time, so that the same recording is the same file.
        (folder / f"{self.name}.inputs.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        self.write_outcome(folder)

    def write_outcome(self, folder: Path = FOLDER) -> None:
        """Write what comes of the inputs now."""
        (folder / f"{self.name}.jsonl").write_text("".join(f"{line}\n" for line in self.replayed()))

    def outcome(self) -> list[str]:
        """What came of it when it was recorded, a line for each tick."""
        return (FOLDER / f"{self.name}.jsonl").read_text().splitlines()

    def replayed(self) -> list[str]:
        """What comes of it now."""
        return run(_replay(self)).lines

    def replay(self) -> Replayed:
        """All that there is at its end now."""
        return run(_replay(self))


class RecordingReader:
    """Signals of another reader, each tick of which is kept for one service (implements `SignalReader`)."""

    def __init__(self, reader: SignalReader, identity: Identity) -> None:
        self._reader, self._identity = reader, identity
        self._seen: Observation | None = None
        self.steps: list[Object] = []

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """What the other reader sees."""
        found = await self._reader.read(pods)
        self._seen = found.get(self._identity)
        return found

    async def attainment(self) -> Mapping[Identity, Attainment | Unobserved] | Unobserved:
        """What the other reader sees; the last question of a tick."""
        found = await self._reader.attainment()
        if self._seen is not None:
            mine = found if isinstance(found, Unobserved) else found.get(self._identity, Attainment())
            counts = mine if isinstance(mine, Unobserved) else mine.outcomes
            self.steps.append(tick(self._seen, counts, time.time()))
        return found

    async def pod_outcomes(self, windows: Mapping[Identity, int]) -> Mapping[Identity, PodOutcomes | Unobserved]:
        """What the other reader sees."""
        return await self._reader.pod_outcomes(windows)


def names() -> list[str]:
    """The recordings there are."""
    return sorted(path.name.removesuffix(".inputs.jsonl.gz") for path in FOLDER.glob("*.inputs.jsonl.gz"))


def tick(observation: Observation, counts: Mapping[str, ObjectiveCounts] | Unobserved, at: float) -> Object:
    """A tick that sees this. `at`: the time of the tick, by the clock that the observation goes by."""
    step: Object = {"see": _observation(observation, at)}
    if isinstance(counts, Unobserved):
        step["counts"] = _unobserved(counts)
    elif counts:
        step["counts"] = {name: [_figure(one.met), _figure(one.violated)] for name, one in counts.items()}
    return step


@dataclass(frozen=True)
class Replayed:
    """`lines`: what came of each tick; `services`: the object after each. `insight`: what its tuner knew at the end."""

    lines: list[str]
    services: list[Object]
    insight: Insight


async def _replay(recording: Recording) -> Replayed:
    harness = Harness(engines=Engines(*recording.pods))
    harness.raw = {**recording.service, "metadata": {**harness.raw["metadata"], **recording.service["metadata"]}}
    tuner, lines, known = harness.tuner(), [], _Known(dict.fromkeys(recording.pods, ""))
    services = []
    for step in recording.steps:
        if "see" in step:
            counts = _read_counts(step.get("counts"))
            harness.written.clear()
            harness.events.clear()
            failed = {}
            try:
                await harness.tick(tuner, _read_observation(step["see"], now()), counts)
            except ClusterError as error:
                # As the tuner does; the next tick is another try.
                tuner.liveness.failed(error)
                failed = {"failed": str(error)}
            lines.append(json.dumps(known.came(harness) | failed, ensure_ascii=False))
            services.append(harness.raw)
        elif step.get("restart"):
            harness.epoch += 1
            tuner = harness.tuner()
        else:
            _happens(harness, step)
    return Replayed(lines, services, tuner.insight)


def _happens(harness: Harness, step: Object) -> None:
    """What befell engines or the cluster, or what a user did; raises ValueError for what nobody knows."""
    ((what, said),) = step.items()
    match what:
        case "edit":
            harness.edit(**said)
        case "annotate":
            harness.annotate(**said)
        case "trip":
            harness.engines.trip(said)
        case "api_away":
            harness.api_away = said
        case "leading":
            harness.leading = said
        case "order":
            harness.ordered = OrderOutcome(**said)
        case "pods":
            harness.engines.held = {uid: harness.engines.held.get(uid) for uid in said}
        case "engines":
            for name, value in said.items():
                setattr(harness.engines, name, set(value) if isinstance(value, list) else value)
        case _:
            raise ValueError(f"what is {what}?")


@dataclass
class _Known:
    """What engines held, by pod, and what status said when last looked."""

    told: dict[str, str]
    status: Object = field(default_factory=dict)

    def came(self, harness: Harness) -> Object:
        """What came of a tick: what is new."""
        came: Object = {}
        for uid, setpoint in harness.engines.held.items():
            text = "" if setpoint is None else setpoint.model_dump_json(exclude_none=True)
            if text != self.told.get(uid):
                self.told[uid] = text
                came.setdefault("told", {})[uid] = json.loads(text or "null")
        if harness.written:
            came["status"] = [changed(before, after) for before, after in pairwise([self.status, *harness.written])]
            self.status = harness.written[-1]
        if harness.events:
            came["events"] = list(harness.events)
        return came


def changed(before: Object, after: Object) -> Object:
    """What differs, by field; None for one that is gone."""
    gone: Object = dict.fromkeys(name for name in before if name not in after)
    new = {name: value for name, value in after.items() if name not in before or before[name] != value}
    within = {
        name: changed(before[name], value)
        for name, value in new.items()
        if isinstance(value, dict) and isinstance(before.get(name), dict)
    }
    return gone | new | within


# Signals as JSON. Times are seconds before the tick, so that they are played at any time.


def _figure(value: float) -> float:
    return significant(value, _DIGITS)


def _of_load(load: RequestLoad) -> Object:
    """All figures but those that are 0, or are not known where they need not be."""
    given = {one: getattr(load, one.name) for one in fields(load)}
    return {
        one.name: _figure(value)
        for one, value in given.items()
        if value is not None and (value != 0 or one.default is None)
    }


def _of_steps(sums: Sums) -> Object:
    return {name: _figure(value) for name, value in sums._asdict().items() if value}


def _unobserved(one: Unobserved) -> Object:
    return {"unobserved": one.reason.value, "detail": one.detail}


def _observation(observation: Observation, at: float) -> Object:
    if isinstance(observation, Unobserved):
        return _unobserved(observation)
    steps, load = observation.steps, observation.load
    seen: Object = {
        "ago": _figure(at - observation.at),
        "age_seconds": _figure(observation.age_seconds),
        "window_seconds": observation.window_seconds,
        "cores": observation.cores,
        "outcomes": {name: [_figure(one.met), _figure(one.violated)] for name, one in observation.outcomes.items()},
        "pods": observation.pods,
        "unseen": observation.unseen,
        "twice": observation.twice,
        "load": _unobserved(load) if isinstance(load, Unobserved) else _of_load(load),
    }
    if observation.applied is not None:
        seen["applied"] = list(vars(observation.applied).values())
    if steps is None:
        return seen
    if isinstance(steps, Unobserved):
        return seen | {"steps": _unobserved(steps)}
    cells = [[key.bucket, key.kind.value, _of_steps(sums)] for key, sums in steps.cells.items()]
    window: Object = {"from": _figure(at - steps.start), "to": _figure(at - steps.end), "cells": cells}
    if (prompts := steps.prompts) is not None:
        window["prompts"] = [_figure(prompts.tokens), _figure(prompts.squares)]
    return seen | {"steps": window}


def _read_unobserved(seen: Object) -> Unobserved:
    return Unobserved(Missing(seen["unobserved"]), seen["detail"])


def _read_observation(seen: Object, at: float) -> Observation:
    if "unobserved" in seen:
        return _read_unobserved(seen)
    steps, load = seen.get("steps"), seen["load"]
    no_load = {one.name: 0.0 for one in fields(RequestLoad) if one.default is not None}
    return Signals(
        at=at - seen["ago"],
        age_seconds=seen["age_seconds"],
        window_seconds=seen["window_seconds"],
        cores=seen["cores"],
        outcomes={name: ObjectiveCounts(*counts) for name, counts in seen["outcomes"].items()},
        pods=seen["pods"],
        unseen=seen["unseen"],
        twice=seen["twice"],
        load=_read_unobserved(load) if "unobserved" in load else RequestLoad(**no_load | load),
        steps=None if steps is None else _read_steps(steps, at),
        applied=Applied(*seen["applied"]) if "applied" in seen else None,
    )


def _read_steps(steps: Object, at: float) -> StepWindow | Unobserved:
    if "unobserved" in steps:
        return _read_unobserved(steps)
    cells = dict(_read_cells(steps["cells"]))
    tokens, squares = steps.get("prompts", (None, None))
    prompts = None if tokens is None else PromptSums(tokens=tokens, squares=squares)
    return StepWindow(start=at - steps["from"], end=at - steps["to"], cells=cells, prompts=prompts)


def _read_cells(cells: Iterable[Sequence[Any]]) -> Iterator[tuple[CellKey, Sums]]:
    return ((CellKey(bucket, StepKind(kind)), Sums(**sums)) for bucket, kind, sums in cells)


def _read_counts(counts: Object | None) -> Mapping[str, ObjectiveCounts] | Unobserved:
    if counts is None:
        return {}
    if "unobserved" in counts:
        return _read_unobserved(counts)
    return {name: ObjectiveCounts(*one) for name, one in counts.items()}
