"""Pods that are not Ready get the setpoint: their engines are Ready only once they have one."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_engine.contract import SETPOINT_WAIT_SECONDS, AnyKnob, Knob, ReadBack, Setpoint
from flyball_lab.harness.service_tuners import AWAY, Engines, Harness, tuned_for
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.engines.client import Address

TUNED = ConditionType.TUNED


async def ticks(harness: Harness, tuner: Any, seen: Any, count: int = 3) -> None:
    for _ in range(count):
        await harness.tick(tuner, seen() if callable(seen) else seen)


@in_virtual_time
async def test_the_first_pod_of_a_service_has_a_setpoint_before_it_is_ready() -> None:
    harness = Harness()
    harness.engines.starting = {"pod-1"}
    tuner = harness.tuner()
    await ticks(harness, tuner, AWAY)
    assert harness.held().order() == (1, 1)


@in_virtual_time
async def test_a_new_pod_gets_what_the_others_have_once_it_has_a_control_port_and_counts_for_nothing() -> None:
    harness = Harness(Engines("pod-1", "pod-2"))
    harness.engines.starting = harness.engines.loading = {"pod-2"}
    tuner = harness.tuner()
    await ticks(harness, tuner, lambda: signals(now()), 12)
    assert harness.condition(TUNED) == ("True", "Applied")
    assert harness.engines.held["pod-2"] is None
    harness.engines.loading = set()
    await ticks(harness, tuner, lambda: signals(now()), 2)
    assert harness.held("pod-2") == harness.held("pod-1")
    assert harness.condition(TUNED) == ("True", "Applied")
    writes = harness.engines.writes
    await ticks(harness, tuner, lambda: signals(now()), 12)
    assert harness.engines.writes == writes, "what it has is not written again"


@in_virtual_time
async def test_an_operator_that_does_not_lead_tells_it_nothing() -> None:
    harness = Harness(Engines("pod-1", "pod-2"))
    harness.engines.starting = {"pod-2"}
    tuner = harness.tuner()
    harness.leading = False
    await ticks(harness, tuner, lambda: signals(now()))
    assert harness.engines.held["pod-2"] is None


LACKS: dict[AnyKnob, str] = {Knob.MAX_NUM_SCHEDULED_TOKENS: "this vLLM plans no steps by tokens"}


@in_virtual_time
async def test_the_first_pod_gets_what_it_can_take_where_it_lacks_a_limit() -> None:
    harness = Harness(Engines("pod-1", unsupported=LACKS))
    harness.engines.starting = {"pod-1"}
    await ticks(harness, harness.tuner(), AWAY)
    assert harness.held().limits.max_num_scheduled_tokens is None


@in_virtual_time
async def test_an_engine_that_lacks_a_limit_is_given_the_same_setpoint_when_it_starts_anew() -> None:
    harness = Harness(Engines("pod-1", unsupported=LACKS))
    tuner = await tuned_for(harness, ticks=4)
    before = harness.held().order()
    harness.engines.restart("pod-1")
    await ticks(harness, tuner, AWAY)
    assert harness.held().order() == before


class Mixed(Engines):
    """Two pods, of which the second is of another image: it lacks a limit, or its plugin is older than the order."""

    def __init__(self, *, older: bool) -> None:
        super().__init__("pod-1", "pod-2")
        self.older = older

    def _unsupported(self, uid: str) -> dict[AnyKnob, str]:
        return LACKS if uid == "pod-2" and not self.older else {}

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        self.untold = self.older and address.key == "pod-2"
        return await super().write(address, setpoint)


@in_virtual_time
@pytest.mark.parametrize("older", [False, True])
async def test_a_pod_that_starts_beside_others_and_lacks_something_gets_what_it_can_take(*, older: bool) -> None:
    harness = Harness(engines=Mixed(older=older))
    harness.orders()
    harness.engines.starting = harness.engines.loading = {"pod-2"}
    tuner = await tuned_for(harness)
    assert harness.held("pod-1").on_time is not None
    harness.engines.loading = set()
    began = now()
    while harness.engines.held["pod-2"] is None and now() - began < SETPOINT_WAIT_SECONDS:
        await ticks(harness, tuner, lambda: signals(now()), 1)
    assert harness.held("pod-2") == harness.held("pod-1")
    assert harness.held("pod-2").on_time is None
    before = harness.held("pod-2").order()
    harness.engines.starting = set()
    await ticks(harness, tuner, lambda: signals(now()), 1)
    before = harness.held("pod-2").order()
    harness.engines.restart("pod-2")
    await ticks(harness, tuner, AWAY, 2)
    assert harness.held("pod-2").order() == before, "at its next start it waits for no other one"


@in_virtual_time
async def test_a_pod_that_never_comes_up_takes_nothing_from_the_others() -> None:
    harness = Harness(engines=Mixed(older=False))
    harness.orders()
    harness.engines.starting = {"pod-2"}
    tuner = await tuned_for(harness)
    assert harness.held("pod-1").limits.max_num_scheduled_tokens is None, "it is to be told what it can take"
    harness.engines.restart("pod-2")
    await ticks(harness, tuner, lambda: signals(now()), 3)
    assert harness.held("pod-1").limits.max_num_scheduled_tokens is not None


@in_virtual_time
async def test_a_pod_that_holds_a_newer_setpoint_is_not_given_the_older_one_again_and_again() -> None:
    harness = Harness(Engines("pod-1", "pod-2"))
    tuner = await tuned_for(harness)
    harness.engines.starting = {"pod-2"}
    newer = harness.held("pod-1").model_copy(update={"generation": 50})
    harness.engines.held["pod-2"] = newer
    await ticks(harness, tuner, lambda: signals(now()), 6)
    assert harness.engines.held["pod-2"] == newer
    assert harness.engines.refused.total() == 1, "what it refused once is not written again"
