"""The operator dies before or after any of its writes: the end must be the same, and nothing made or deleted twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.memory_api import CrashingApi
from support.memory_cluster import MemoryCluster
from support.reconcile_scenarios import SCENARIOS, Scenario, counts, end_state


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_write_changes_nothing_in_the_end(
    scenario: Scenario, after: bool, note_figure: Callable[[str], None]
) -> None:
    undisturbed = MemoryCluster()
    scenario(undisturbed)
    note_figure(f"{undisturbed.api.writes} crashes")
    for at in range(1, undisturbed.api.writes + 1):
        world = MemoryCluster(CrashingApi(at, after=after))
        scenario(world)
        assert world.crashes == 1, f"the operator was to die at write {at}"
        assert end_state(world) == end_state(undisturbed), f"died at write {at}"
        assert counts(world) == counts(undisturbed), f"died at write {at}"
