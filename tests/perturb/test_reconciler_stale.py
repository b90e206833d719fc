"""The operator is shown the past by a lagging API server, is told nothing or twice: the end must be the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flyball_operator.api.service_key import Key
from flyball_operator.kube.resources import DEPLOYMENTS, OWNED
from support.memory_api import MemoryApi, Object
from support.memory_cluster import MemoryCluster, service
from support.reconcile_scenarios import SCENARIOS, Scenario, counts, end_state, without_times

#: The longest, of some hundred looks, takes a third of the time of all. Crashes try it each time.
_LONGEST = frozenset({"collect_revisions"})
_SCENARIOS = [
    pytest.param(one, id=one.__name__, marks=[pytest.mark.long] if one.__name__ in _LONGEST else [])
    for one in SCENARIOS
]


class LaggingApi(MemoryApi):
    """Reads show everything as it was some writes ago, while `lag` says so."""

    lag = 0

    def shown(self) -> dict[tuple[str, str, str], Object]:
        return self.past(self.lag)


def owned(api: MemoryApi) -> dict[str, str]:
    """UID of every owned object there is."""
    found = [item for resource in OWNED.values() for item in api.find(resource)]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in found}


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 8, 13, 21])
def test_a_service_made_again_keeps_its_objects_while_reads_show_the_old_one(lag: int) -> None:
    api = LaggingApi()
    world = MemoryCluster(api)
    world.apply(service())
    world.delete()
    world.apply(service(spec__engine__image="engine:2"))
    before, image = owned(api), world.image()
    api.lag = lag
    world.act()
    world.restart()
    world.act()
    assert owned(api) == before
    assert world.image() == image


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 8])
def test_an_old_spec_never_overwrites_the_new_one(lag: int) -> None:
    api = LaggingApi()
    world = MemoryCluster(api)
    world.apply(service(spec__engine__image="engine:1"))
    world.change(lambda found: found["spec"]["engine"].update(image="engine:2"))
    before = api.one(DEPLOYMENTS, "chat")
    api.lag = lag
    world.act()
    assert api.one(DEPLOYMENTS, "chat") == before
    api.lag = 0
    world.settle()
    assert world.condition("Progressing") == ("True", "RolloutComplete")


class DisturbedCluster(MemoryCluster):
    """At look number `at` (from 1) the operator reads the past, misses the look, or makes it twice.

    `lag`: reads of that look show everything as it was so many writes ago. `times`: the look is made so often.
    """

    def __init__(self, at: int, *, lag: int = 0, times: int = 1) -> None:
        self.looks = 0
        self._at, self._lag, self._times = at, lag, times
        self._lagging = LaggingApi()
        super().__init__(self._lagging)

    def settle(self) -> None:
        """Time for one look more, as a service is looked at anew now and then."""
        super().settle()
        self.wait(120)

    def _look(self, key: Key) -> None:
        self.looks += 1
        here = self.looks == self._at
        self._lagging.lag = self._lag if here else 0
        for _ in range(self._times if here else 1):
            super()._look(key)


def expect_same_end(scenario: Scenario, note_figure: Callable[[str], None], *, lag: int = 0, times: int = 1) -> None:
    """Whichever look is disturbed, objects, creates and deletes come out as if none had been."""
    undisturbed = DisturbedCluster(0)
    scenario(undisturbed)
    note_figure(f"{undisturbed.looks} looks disturbed")
    expected = without_times(end_state(undisturbed))
    for at in range(1, undisturbed.looks + 1):
        world = DisturbedCluster(at, lag=lag, times=times)
        scenario(world)
        assert without_times(end_state(world)) == expected, f"disturbed at look {at}"
        assert counts(world) == counts(undisturbed), f"disturbed at look {at}"


@pytest.mark.parametrize("scenario", _SCENARIOS)
@pytest.mark.parametrize("lag", [pytest.param(1, marks=pytest.mark.long), 3, pytest.param(9, marks=pytest.mark.long)])
def test_a_look_at_the_past_changes_nothing_in_the_end(
    scenario: Scenario, lag: int, note_figure: Callable[[str], None]
) -> None:
    expect_same_end(scenario, note_figure, lag=lag)


@pytest.mark.parametrize("scenario", _SCENARIOS)
@pytest.mark.parametrize(
    "times", [pytest.param(0, id="dropped"), pytest.param(2, id="repeated", marks=pytest.mark.long)]
)
def test_an_event_that_is_dropped_or_repeated_changes_nothing_in_the_end(
    scenario: Scenario, times: int, note_figure: Callable[[str], None]
) -> None:
    expect_same_end(scenario, note_figure, times=times)
