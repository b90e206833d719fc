"""A revision that is too slow is found out by the requests that still wait in it, though it answers others in time.

Clients that wait for an answer before they ask anew, as people do: those that the slow pod keeps waiting ask for
nothing more, so what it ends is soon as little as it can answer in time.
"""

from __future__ import annotations

from random import Random

import pytest

from flyball_engine.batching.outcomes import LedgerCounts
from flyball_engine.contract import Metric, ObjectiveSpec, OnTime
from flyball_engine.model import StepModel
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.plant import StepTimes
from flyball_lab.simulator.requests import Fate, Request
from flyball_operator.api.v1alpha1 import AnalysisPhase
from flyball_operator.prometheus.answers import pod_outcomes_of
from flyball_operator.prometheus.queries import COUNTED, OPEN, SCRAPED
from flyball_operator.tuning.revision_analysis import Compared, Verdict, judge
from flyball_operator.tuning.spec import LatencyObjective
from support.simulated import a_budget, a_core, a_request, a_setpoint

#: A step of an engine on a slow core: 60 ms, and a millisecond for each token.
SLOW = StepTimes(
    model=StepModel(t0=60e-3, h=0.0, c1=1e-3, c2=1e-3, beta=1e-3, g=0.0, kappa=64), kv_token=0.0, reread=0.0
)
TTFT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=10.0)
CLIENTS, PROMPT, ANSWER = 24, 64, 24
#: Seconds that the earlier pod serves alone, that both are judged, and in between the clients come back.
ALONE, JUDGED, TICK = 30.0, 180.0, 0.05


def a_pod(*, places: int, in_order: bool) -> Core:
    """An engine with so many places at once; `in_order`: who can be in time is served before who is late."""
    core = a_core(seqs=places, tokens=1024, step_times=SLOW)
    order = OnTime(first_token_deadline_seconds=8.5) if in_order else None
    setpoint = a_setpoint(objectives=(TTFT,), step=a_budget(0.9, SLOW), on_time=order)
    core.follow(setpoint)
    core.apply(setpoint)
    return core


class Clients:
    """Each sends its next request, to one of the pods by chance, once the one before is answered."""

    def __init__(self) -> None:
        self._random = Random(1)
        self._open: list[Request | None] = [None] * CLIENTS

    def ask(self, pods: list[Core], *, since: float, until: float) -> None:
        for tick in range(int((until - since) / TICK)):
            now = since + tick * TICK
            for pod in pods:
                pod.run(now)
            for number, asked in enumerate(self._open):
                if asked is None or asked.fate is Fate.FINISHED:
                    request = self._open[number] = a_request(PROMPT, ANSWER, at=now)
                    self._random.choice(pods).submit([request])


def counted(pod: Core, before: LedgerCounts) -> dict[tuple[str, str, str], float]:
    """What came of its requests since: by figure, objective and outcome."""
    found = pod.ledger.collect(pod.now)
    figures: dict[tuple[str, str, str], float] = {}
    for name, now, then in (
        (COUNTED, found.objectives, before.objectives),
        (OPEN, found.open_objectives, before.open_objectives),
    ):
        figures |= {(name, *key): float(count - then.get(key, 0)) for key, count in now.items()}
    return figures


def judged(*, places: int, in_order: bool = True) -> Verdict:
    """What is said of a revision with so many places beside an earlier one with enough, at the end of its time."""
    earlier, new = a_pod(places=64, in_order=in_order), a_pod(places=places, in_order=in_order)
    clients = Clients()
    clients.ask([earlier], since=0.0, until=ALONE)
    new.run(ALONE)
    before = {pod: pod.ledger.collect(pod.now) for pod in (earlier, new)}
    clients.ask([earlier, new], since=ALONE, until=ALONE + JUDGED)
    said = {(SCRAPED, name, "", ""): 1.0 for name in ("old", "new")}
    for name, pod in (("old", earlier), ("new", new)):
        for (figure, objective_id, outcome), value in counted(pod, before[pod]).items():
            said[figure, name, objective_id, outcome] = value
    outcomes = pod_outcomes_of({"job": said})
    objective = LatencyObjective("first-token", TTFT.metric, TTFT.threshold_seconds, 0.1)
    pods = Compared(frozenset({"new"}), frozenset({"old"}), ALONE)
    return judge(pods, outcomes, (objective,), passed=JUDGED, duration=JUDGED)


@pytest.mark.parametrize("in_order", [True, False], ids=["on-time order", "first come, first served"])
def test_a_revision_in_which_most_clients_wait_is_aborted(in_order: bool) -> None:
    found = judged(places=1, in_order=in_order)
    assert found.phase is AnalysisPhase.FAILED, found.message


def test_one_that_has_a_place_for_each_is_promoted() -> None:
    found = judged(places=96)
    assert found.phase is AnalysisPhase.SUCCESSFUL, found.message
