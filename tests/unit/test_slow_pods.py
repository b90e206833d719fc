"""The one pod that is slower than its siblings: when it is named, and in status, events and metrics."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_lab.harness.service_tuners import Engines, Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.tuning.observe.slow_pods import SlowPod, factors, watched
from flyball_operator.tuning.tunables import TUNABLES


def named(*biases: float) -> dict[str, float]:
    """The pods that are named after these biases, of a, b, c and so on, lasted."""
    lags: dict[str, SlowPod] = {}
    for moment in range(int(TUNABLES.compared_seconds / 5) + 1):
        lags = watched(lags, dict(zip("abcdefgh", biases, strict=False)), 5.0 * moment)
    return factors(lags)


@pytest.mark.parametrize(
    ("biases", "expected"),
    [
        ((1.0, 1.0, 1.5), {"c": 1.5}),
        ((2.0, 2.0, 2.1), {}),
        ((1.0, 1.1, 1.25), {}),
        ((1.0, 0.5, 1.0), {}),
        ((1.0, 1.0, 3.0, 1.8), {"c": 3.0, "d": 1.8}),
        ((1.0, 1.5), {}),
        ((1.0, 1.7), {"b": 1.7}),
        ((3.0,), {}),
    ],
)
def test_who_stands_out_is_named_the_slowest_first(biases: tuple[float, ...], expected: dict[str, float]) -> None:
    assert named(*biases) == expected
    assert list(named(*biases)) == list(expected)


def test_what_passes_within_minutes_is_not_named() -> None:
    lags: dict[str, SlowPod] = {}
    for moment in range(200):
        slow = 2.0 if moment % 30 < 20 else 1.0
        lags = watched(lags, {"a": 1.0, "b": 1.0, "c": slow}, 5.0 * moment)
        assert factors(lags) == {}


def test_at_the_edge_it_stays_named_and_its_factor_does_not_flicker() -> None:
    lags: dict[str, SlowPod] = {}
    said = set()
    for moment in range(200):
        lags = watched(lags, {"a": 1.0, "b": 1.0, "c": 1.35 if moment < 50 or moment % 2 else 1.22}, 5.0 * moment)
        said.add(tuple(factors(lags).items()))
    assert said == {(), (("c", 1.4),)}
    assert factors(watched(lags, {"a": 1.0, "b": 1.0, "c": 1.1}, 1000.0)) == {}


async def minutes(harness: Harness, tuner: Any, count: int) -> None:
    for _ in range(12 * count):
        await harness.tick(tuner, signals(now()))


@in_virtual_time
async def test_status_and_one_event_name_it_until_it_is_as_fast_again() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2", "pod-3"))
    harness.engines.biases = {"pod-1": 1.0, "pod-2": 1.05, "pod-3": 1.62}
    harness.sheds()
    tuner = harness.tuner()
    await minutes(harness, tuner, 6)
    (slow,) = harness.service.status.tuning.slow_pods
    assert (slow.name, slow.factor) == ("pod-3", "1.5")
    assert harness.events.count("PodSlow") == 1
    harness.epoch = 2
    again = harness.tuner()
    await minutes(harness, again, 2)
    assert [slow.name for slow in harness.service.status.tuning.slow_pods] == ["pod-3"]
    harness.engines.biases["pod-3"] = 1.0
    await minutes(harness, again, 3)
    assert harness.service.status.tuning.slow_pods == ()
    assert [event for event in harness.events if event.startswith("Pod")] == ["PodSlow", "PodNoLongerSlow"]


@in_virtual_time
async def test_a_pod_that_goes_is_forgotten_without_a_word() -> None:
    harness = Harness(engines=Engines("pod-1", "pod-2", "pod-3"))
    harness.engines.biases = {"pod-1": 1.0, "pod-2": 1.0, "pod-3": 2.0}
    tuner = harness.tuner()
    await minutes(harness, tuner, 5)
    del harness.engines.held["pod-3"]
    await minutes(harness, tuner, 2)
    assert harness.service.status.tuning.slow_pods == ()
    assert "PodNoLongerSlow" not in harness.events
