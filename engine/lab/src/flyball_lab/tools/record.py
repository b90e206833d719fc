"""Records minutes of tuning anew (`tests/recordings`), under the bench's loads, in trouble, and as users and pods act.

Run by hack/gen --recordings. Arguments name the recordings that are made; without any all are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_lab.benches.law.closed_loop import ClosedLoop
from flyball_lab.benches.law.disturbances import Absurd, absurd, noisy
from flyball_lab.benches.law.scenarios import SCENARIOS, Case, Scenario
from flyball_lab.benches.law.tuned_service import manifest, service
from flyball_lab.harness.manifests import Object
from flyball_lab.harness.recordings import FOLDER, LIVE, Recording, tick
from flyball_lab.harness.service_tuners import AWAY, WITH_DEADLINE
from flyball_lab.harness.tuning import signals, step_window
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.virtual import run
from flyball_operator.api.v1alpha1 import Overload
from flyball_operator.tuning.observe.signals import Missing, ObjectiveCounts, Observation, Signals, Unobserved
from flyball_operator.tuning.tunables import TUNABLES

TICK: Final = 5.0
#: Seconds of each load that are recorded.
SECONDS: Final = 180.0


# What the law meets on the bench.


class Watched(ClosedLoop):
    """The bench's closed loop, which keeps what it saw at each tick."""

    def __init__(self, case: Case, *, gated: bool, seen: Callable[[Signals], Observation]) -> None:
        super().__init__(case.tuning, tick=TICK, gated=gated, cores=getattr(case, "pods", 1))
        self.steps: list[Object] = []
        self._seen = seen

    def _decide(self, core: Core) -> None:
        super()._decide(core)
        if self.signals is not None and core.now <= SECONDS:
            # Counts come by a query of their own, whose reader passes figures over that cannot be.
            self.steps.append(tick(self._seen(self.signals), self.signals.outcomes, core.now))


def load(case: Scenario, name: str, *, gated: bool, seen: Callable[[Signals], Observation]) -> Recording:
    """A load of the bench, as one of its engines, or their sum, shows it."""
    closed_loop = Watched(case, gated=gated, seen=seen)
    requests = case.requests(1)
    run(case.core(1), requests, until=SECONDS, events=[*case.events(), *closed_loop.events(SECONDS)])
    made = manifest(replace(case.tuning, overload=Overload.SHED if gated else Overload.QUEUE))
    return Recording(name, made, [f"pod-{number + 1}" for number in range(case.pods)], closed_loop.steps)


def loads() -> dict[str, Callable[[str], Recording]]:
    """Every load, refused and queued in turn, and one of them in trouble."""
    made = {_named("load", case.name): _load(case, gated=number % 2 == 1) for number, case in enumerate(SCENARIOS)}
    steps = next(one for one in SCENARIOS if one.name == "h100 load steps")
    lies = {_named("trouble", kind.value): _load(steps, gated=True, seen=_lies(kind)) for kind in Absurd}
    random = Random(1)
    noise = _load(steps, gated=False, seen=lambda seen: noisy(seen, 0.25, random))
    return made | lies | {"trouble-noise": noise, "trouble-gaps": _load(steps, gated=True, seen=_gaps(Random(2)))}


def _load(
    case: Scenario, *, gated: bool, seen: Callable[[Signals], Observation] = lambda signals: signals
) -> Callable[[str], Recording]:
    return lambda name: load(case, name, gated=gated, seen=seen)


def _named(kind: str, name: str) -> str:
    return "-".join([kind, *name.replace("%", "percent").replace("×", "x").replace(",", "").split()])


def _lies(kind: Absurd) -> Callable[[Signals], Signals]:
    first: list[Signals] = []

    def told(seen: Signals) -> Signals:
        first.append(seen)
        return absurd(kind, seen, first[0]) if len(first) % 2 == 0 else seen

    return told


def _gaps(random: Random) -> Callable[[Signals], Observation]:
    def told(seen: Signals) -> Observation:
        chance = random.random()
        if chance < 0.15:
            return AWAY
        if chance < 0.25:
            return replace(seen, load=Unobserved(Missing.PARTIAL, "1 of 2 pods"))
        return replace(seen, steps=Unobserved(Missing.TOO_FEW_SAMPLES, "one scrape")) if chance < 0.35 else seen

    return told


# What befalls engines, and what users do.

_TOKENS: Final = (
    {"name": "tpot", "metric": "TimePerOutputToken", "threshold": "60ms"},
    {"name": "itl", "metric": "InterTokenLatency", "threshold": "250ms"},
)


def seen(seconds: float, *, slower: float = 1.0, **load: float) -> list[Object]:
    """Ticks of a calm chat load for so long, with steps that take so many times as long."""
    at = 1000.0
    window = step_window(start=at - 15, end=at, slower=slower)
    return [tick(signals(at, window=window, **load), {}, at)] * int(seconds / TICK)


def dark(seconds: float) -> list[Object]:
    """Ticks for so long while Prometheus is away."""
    return [tick(AWAY, AWAY, 0.0)] * int(seconds / TICK)


def met(seconds: float, met: float, violated: float) -> list[Object]:
    """Ticks of a calm load with so many requests that met and violated the time per output token asked for."""
    at = 1000.0
    asked = ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=0.06)
    outcomes = {asked.id: ObjectiveCounts(met, violated)}
    return [tick(replace(signals(at), outcomes=outcomes), outcomes, at)] * int(seconds / TICK)


def sequence(
    *steps: Object | list[Object], pods: int = 1, objectives: Sequence[Object] = _TOKENS, **tuning: Any
) -> Callable[[str], Recording]:
    """What happens to one service, in order."""
    flat = [one for step in steps for one in (step if isinstance(step, list) else [step])]
    made = service(objectives, seqs=128, tokens=2048, **tuning)
    return lambda name: Recording(name, made, [f"pod-{number + 1}" for number in range(pods)], flat)


def engines(**state: Any) -> Object:
    """Something of the engines is so from now on."""
    return {"engines": state}


_WORKING: Final = engines(working=["pod-1", "pod-2", "pod-3"], running=1)
_RESTART: Final[Object] = {"restart": True}
_CLASSES: Final = ({"name": "interactive", "weight": 4}, {"name": "batch", "prefillShare": 20})

SEQUENCES: Final[dict[str, Callable[[str], Recording]]] = {
    "trial-passes": sequence(_WORKING, dark(5), seen(150), pods=3),
    "trial-trips": sequence(
        _WORKING,
        dark(5),
        seen(30),
        {"trip": "pod-1"},
        {"trip": "pod-2"},
        seen(30 + TUNABLES.rollback_hold),
        seen(60),
        pods=3,
    ),
    "trial-makes-no-step": sequence(engines(running=1), dark(5), seen(180), pods=3),
    "trial-of-a-new-model": sequence(_WORKING, seen(120), seen(120, slower=2.5), seen(60), pods=3),
    "trial-paused": sequence(
        _WORKING,
        dark(5),
        seen(20),
        {"annotate": {"tuning": "Paused"}},
        seen(40),
        _RESTART,
        seen(40),
        {"annotate": {}},
        seen(60),
        pods=3,
    ),
    "stall-falls-back": sequence(
        seen(180), seen(60, slower=2.0), engines(stuck=["pod-1"]), seen(150, slower=2.0), engines(stuck=[]), seen(60)
    ),
    "stall-at-the-gate": sequence(
        seen(120),
        engines(stuck=["pod-1"]),
        seen(150),
        engines(stuck=[]),
        seen(60),
        objectives=WITH_DEADLINE,
        overload="Shed",
    ),
    "stall-of-one-of-many": sequence(
        seen(120), engines(stuck=["pod-1"], working=["pod-2", "pod-3"]), seen(150), pods=3
    ),
    "core-that-makes-no-step": sequence(seen(120), engines(stuck=["pod-1"], frozen=["pod-1"]), seen(150)),
    "watchdog-trips": sequence(
        seen(90), {"trip": "pod-1"}, seen(30), seen(60, slower=2.0), {"trip": "pod-1"}, seen(30)
    ),
    "overload-refused": sequence(
        seen(60),
        seen(120, arrivals=40.0, refused=20.0, waiting=60.0, running=120.0),
        seen(120),
        objectives=WITH_DEADLINE,
        overload="Shed",
    ),
    "overload-waits": sequence(
        seen(60), seen(150, arrivals=60.0, waiting=200.0, running=128.0), seen(120), objectives=WITH_DEADLINE
    ),
    "prometheus-away": sequence(seen(90), dark(200), seen(60)),
    "prometheus-away-from-the-start": sequence(dark(120), seen(60)),
    "no-requests": sequence(seen(60), seen(60, arrivals=0.0, finished=0.0, running=0.0, waiting=0.0), seen(30)),
    "api-server-away": sequence(
        seen(20), {"api_away": True}, seen(40), {"api_away": False}, seen(60), {"api_away": True}, seen(20, slower=2.0)
    ),
    "lease-lost": sequence(seen(60), {"leading": False}, seen(60, slower=2.0), {"leading": True}, seen(60, slower=2.0)),
    "new-leader": sequence(seen(90), _RESTART, seen(60), _RESTART, dark(60), seen(30), pods=2),
    "new-leader-in-the-dark": sequence(seen(90), _RESTART, dark(200), objectives=WITH_DEADLINE, overload="Shed"),
    "objectives-edited": sequence(
        seen(90),
        {"edit": {"objectives": [{"name": "tpot", "metric": "TimePerOutputToken", "threshold": "20ms"}]}},
        seen(90),
        {"edit": {"objectives": WITH_DEADLINE}},
        seen(90),
    ),
    "bounds-edited": sequence(
        seen(90),
        {"edit": {"tuning": {"bounds": {"maxNumActiveSeqs": {"max": 8}}}}},
        seen(60),
        {"edit": {"tuning": {}}},
        seen(60),
    ),
    "modes-in-turn": sequence(
        seen(60),
        {"edit": {"tuning": {"mode": "Recommend"}}},
        seen(60, slower=2.0),
        {"edit": {"tuning": {"mode": "Disabled"}}},
        seen(40),
        {"edit": {"tuning": {"mode": "Auto", "overload": "Shed", "refusalStatus": 429}}},
        seen(90, slower=2.0),
        {"edit": {"tuning": {"mode": "Auto", "order": "Arrival"}}},
        seen(60),
        objectives=WITH_DEADLINE,
    ),
    "objectives-violated": sequence(met(60, 100, 0), met(200, 80, 20), met(200, 100, 0)),
    "classes": sequence(
        seen(120),
        {"edit": {"tuning": {"mode": "Auto", "overload": "Shed", "classes": [{"name": "interactive", "weight": 2}]}}},
        seen(60),
        _RESTART,
        seen(60),
        objectives=[
            *WITH_DEADLINE,
            {"name": "fast", "metric": "TimeToFirstToken", "threshold": "1s", "class": "interactive"},
        ],
        overload="Shed",
        classes=list(_CLASSES),
    ),
    "order-is-told": sequence(
        {"order": {"moved_behind": 40.0, "in_time_after_all": 3.0, "longest_wait": 12.5}},
        seen(120),
        {"order": {"moved_behind": 80.0, "in_time_after_all": 5.0, "longest_wait": 40.0}},
        seen(60),
        objectives=WITH_DEADLINE,
    ),
    "plain-vllm": sequence(engines(plain=["pod-1"]), seen(120), objectives=WITH_DEADLINE, overload="Shed"),
    "engine-that-cannot-refuse": sequence(
        engines(ungated="the tokenizer runs elsewhere"), seen(120), objectives=WITH_DEADLINE, overload="Shed"
    ),
    "older-plugin": sequence(engines(untold=True), seen(120), objectives=WITH_DEADLINE),
    "slow-pod": sequence(
        engines(biases={"pod-1": 1.0, "pod-2": 1.0, "pod-3": 1.6}),
        seen(400),
        engines(biases={"pod-1": 1.0, "pod-2": 1.0, "pod-3": 1.0}),
        seen(200),
        pods=3,
    ),
    "pods-come-and-go": sequence(
        seen(60),
        {"pods": ["pod-1", "pod-2"]},
        seen(30),
        {"pods": ["pod-2"]},
        seen(60),
        {"pods": []},
        seen(30),
    ),
    "impossible-objectives": sequence(
        seen(150), objectives=[{"name": "tpot", "metric": "TimePerOutputToken", "threshold": "5ms"}]
    ),
}


def main(only: Sequence[str]) -> None:
    """Record all, or those that are named; what has no source any more goes."""
    sources = loads() | SEQUENCES
    if unknown := set(only) - set(sources):
        raise SystemExit(f"hack/gen: no recording {', '.join(sorted(unknown))}; there are {', '.join(sorted(sources))}")
    for name, record in sources.items():
        if not only or name in only:
            print(f"  {name}", file=sys.stderr, flush=True)
            record(name).write()
    for path in FOLDER.glob("*.jsonl*"):
        # Those of a real engine come of `hack/bench live --out`.
        if path.name.split(".")[0] not in sources and not path.name.startswith(LIVE):
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
