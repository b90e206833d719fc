"""What `flyball plan` makes of a Prometheus' answers: which job it believes, which windows, and which ceilings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from flyball_operator.cli.plan.fleet import Asked, fleet
from flyball_operator.cli.plan.fleet_queries import PLUGIN_GAUGES, ceilings, gauges, now, plugin
from flyball_operator.cli.plan.objectives import LookBack
from flyball_operator.cli.plan.windows import ServicePast
from flyball_operator.prometheus import queries
from flyball_operator.prometheus.vector import Sample, Vector

WINDOW = 60
LOOK_BACK = LookBack(end=6_000, seconds=WINDOW, count=3)
GROUP = plugin(None)
OF_SERVICE = {"namespace": "team", queries.UID: "uid-1"}
#: Of a job that scrapes one pod.
GAUGES = {"replicas": 1.0, "present": 1.0, "waiting": 0.0, "running_peak": 4.0, "kv": 0.1, "kv_peak": 0.2}
LOAD = {
    "cores": 1.0,
    "series": 1.0,
    "pods": 1.0,
    "age": 1.0,
    "interval": 15.0,
    "running": 2.0,
    "waiting": 0.0,
    "ended": 60.0,
    "finished": 60.0,
    "prompt_tokens": 6_000.0,
    "generated_tokens": 600.0,
}
Jobs = Mapping[str, Mapping[str, float]]


@dataclass
class Answers:
    """A Prometheus that knows one service; `ceilings` by when engines were started."""

    gauges: Jobs = field(default_factory=lambda: {"flyball": GAUGES})
    load: Jobs = field(default_factory=lambda: {"flyball": LOAD})
    absent: Mapping[int, float] = field(default_factory=dict)
    ceilings: Mapping[int, float] = field(default_factory=dict)

    def query(self, text: str, at: float | None = None) -> Vector:
        """An instant vector."""
        assert at is not None
        if text in (gauges(GROUP, PLUGIN_GAUGES, WINDOW), now(GROUP, PLUGIN_GAUGES)):
            present = self.absent.get(int(at), 1.0)
            return [self._sample(at, value * present if name == "present" else value, job=job, field=name)
                    for job, found in self.gauges.items() for name, value in found.items()]  # fmt: skip
        if text == queries.load(WINDOW, GROUP.matchers):
            return [self._sample(at, value, job=job, field=name)
                    for job, found in self.load.items() for name, value in found.items()]  # fmt: skip
        for seconds in (WINDOW, LOOK_BACK.end - LOOK_BACK.start):
            if text == ceilings(GROUP, seconds):
                seen = [most for started, most in self.ceilings.items() if at - seconds < started <= at]
                return [self._sample(at, min(seen), knob="max_num_seqs")] if seen else []
        return []

    def close(self) -> None:
        """Nothing is held."""

    def past(self) -> ServicePast:
        """What is made of it."""
        asked = Asked(look_back=LOOK_BACK, objectives=(), services={}, by=(), gpus=None, namespace=None)
        (found,) = fleet(self, asked)
        return found

    @staticmethod
    def _sample(at: float, value: float, **labels: str) -> Sample:
        return Sample(OF_SERVICE | labels, (at, str(value)))


def test_of_two_jobs_the_one_that_sees_most_pods_says_how_much_came() -> None:
    """The smaller one scrapes more often."""
    more = LOAD | {"cores": 3.0, "series": 3.0, "pods": 3.0, "ended": 180.0, "interval": 30.0}
    past = Answers(gauges={"all": GAUGES | {"replicas": 3.0}, "one": GAUGES}, load={"all": more, "one": LOAD}).past()
    assert [(window.replicas, window.arrivals) for window in past.windows] == [(3.0, 3.0)] * 3


def test_refused_requests_are_a_part_of_those_that_came() -> None:
    (window, *_) = Answers(load={"flyball": LOAD | {"shed": 60.0}}).past().windows
    assert (window.arrivals, window.refused, window.refused_share) == (2.0, 1.0, 0.5)


def test_a_window_in_which_pods_came_from_none_is_left_out_and_counted() -> None:
    past = Answers(absent={LOOK_BACK.ends()[0]: 0.4}).past()
    assert ([window.at for window in past.windows], past.left_out) == (LOOK_BACK.ends()[1:], 1)


@pytest.mark.parametrize("lacking", ["ended", "cores"])
def test_a_service_that_is_never_seen_whole_is_named(lacking: str) -> None:
    past = Answers(load={"flyball": {name: value for name, value in LOAD.items() if name != lacking}}).past()
    assert (past.name, past.windows, past.left_out) == ("team/uid-1", (), 3)


def test_ceilings_are_those_of_the_last_window() -> None:
    first, _, last = LOOK_BACK.ends()
    assert Answers(ceilings={first: 4.0, last: 64.0}).past().ceiling == 64.0
