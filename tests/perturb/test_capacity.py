"""What the law says an engine carries, against what a simulated one keeps: the number must mean something.

The law learns the model from a calm load, in closed loop, and tells the capacity from it. Then other requests come to a
fresh engine whose law knows nothing: below that capacity they keep their objectives, and clearly above it they do not.
A request that was refused has not kept them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flyball_lab.benches.law.closed_loop import ClosedLoop
from flyball_lab.benches.law.scenarios import Scenario, scenario
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.virtual import build, run

Note = Callable[[str], None]
#: Arrivals of the first minute find an engine at its start values.
WARM_UP = 60.0
AFTERWARDS = 60.0


def at(scene: Scenario, rate: float, *, minutes: int) -> Scenario:
    """The same requests at a steady rate."""
    return replace(scene, phases=((rate, scene.phases[0][1]),) * minutes)


def governed(scene: Scenario, *, seed: int, gated: bool) -> tuple[ClosedLoop, float]:
    """The law after a run, and the share of all requests that kept every objective."""
    closed_loop, requests = ClosedLoop(scene.tuning, tick=5.0, gated=gated), scene.requests(seed)
    until = scene.seconds + AFTERWARDS
    run(build(PRESETS[scene.preset], seed=seed), requests, until=until, events=closed_loop.events(until))
    judged = [request for request in requests if request.arrival >= WARM_UP]
    return closed_loop, sum(map(scene.good, judged)) / len(judged)


def capacity(scene: Scenario, *, gated: bool) -> float:
    """Requests per second that the law says the engine carries."""
    closed_loop, _ = governed(at(scene, 0.7 * scene.phases[0][0], minutes=4), seed=1, gated=gated)
    assert closed_loop.balance is not None
    assert closed_loop.balance.settled
    return closed_loop.balance.rate


@pytest.mark.parametrize(
    ("name", "gated", "minutes"),
    [("h100 chat", False, 3), ("h100 chat", True, 3), ("h100 retrieval", False, 20)],
    ids=["chat", "chat behind a gate", "long prompts"],
)
def test_below_capacity_objectives_are_kept_and_above_it_they_are_not(
    name: str, gated: bool, minutes: int, note_figure: Note
) -> None:
    scene = scenario(name)
    carried = capacity(scene, gated=gated)
    shares = [
        governed(at(scene, share * carried, minutes=minutes), seed=2, gated=gated)[1] for share in (0.85, 1.0, 2.0)
    ]
    told = ", ".join(f"{share:.1%}" for share in shares)
    note_figure(f"{name}: {carried:.3g} requests/s carried; kept at 0.85, 1 and 2 of it: {told}")
    below, _, above = shares
    assert below >= 0.95
    assert above < 0.95


def test_what_a_gate_refuses_counts_as_load() -> None:
    scene = at(scenario("h100 chat"), 40.0, minutes=3)
    closed_loop = ClosedLoop(scene.tuning, tick=5.0, gated=True)
    run(scene.core(1), scene.requests(1), until=scene.seconds, events=closed_loop.events(scene.seconds))
    assert closed_loop.balance is not None
    assert closed_loop.balance.overloaded
    assert closed_loop.balance.advised >= 2


def test_prompts_too_long_for_an_idle_engine_leave_hardly_any_capacity(note_figure: Note) -> None:
    long = scenario("a100 long chats")
    carried = capacity(long, gated=False)
    _, kept = governed(at(long, 0.05, minutes=40), seed=2, gated=False)
    note_figure(f"a100 long chats: {carried:.2g} requests/s carried; of 0.05/s an idle engine keeps {kept:.1%}")
    assert carried < long.phases[0][0] / 3
    assert kept < 0.95
