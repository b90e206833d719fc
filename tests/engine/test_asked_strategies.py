"""A strategy in an InferenceService, edited live: the operator's tuner on a real vLLM under load."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_engine.contract import Batching, ReadBack, Setpoint, StrategyType
from flyball_engine.knobs import Dynamic
from flyball_lab.harness.engine import SERVICE
from flyball_lab.harness.service_tuners import AWAY, Engines, Harness
from flyball_lab.harness.streams import StreamLoad, StreamTotals
from flyball_lab.harness.virtual_time import run
from flyball_lab.harness.vllm_server import MODEL_NAME
from flyball_lab.harness.waiting import eventually
from flyball_operator.engines.client import Address
from support.installed import Installed
from support.served import Served

pytestmark = pytest.mark.engine

DYNAMIC: dict[str, Any] = {"strategy": {"type": "Dynamic", "batchSize": 8, "maxDelay": "200ms"}}


class LiveEngine(Engines):
    """The one engine is real."""

    def __init__(self, served: Served) -> None:
        super().__init__("pod-1")
        self._served = served

    async def read(self, address: Address) -> ReadBack:
        return self._served.control.read()

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        answer = self._served.control.put(setpoint)
        self.held[address.key] = setpoint
        return answer


def test_a_strategy_that_is_edited_live_comes_and_goes_and_no_request_is_lost(
    served: Served, installed: Installed
) -> None:
    if not installed.admits_chosen:
        pytest.skip("this vLLM's scheduler admits no chosen requests")
    load = StreamLoad(url=served.server.url, model=MODEL_NAME, concurrency=16, prompt_tokens=40, max_tokens=16)
    with load.running() as totals:
        eventually(lambda: served.core().running > 0, expecting="a first request runs")
        run(edited(served, totals))
    totals.expect_nothing_lost()


async def edited(served: Served, totals: StreamTotals) -> None:
    """The user asks for no strategy, for one, and for none again; meanwhile requests come to their ends."""
    harness = Harness(LiveEngine(served))
    harness.raw["metadata"]["uid"] = SERVICE
    # As if the service had been tuned before: setpoints of all tests are one sequence.
    harness.raw["status"] = {"epoch": 1, "tuning": {"epoch": 1, "generation": served.generation}}
    tuner = harness.tuner()
    for batching, strategy in (
        ({}, StrategyType.CONTINUOUS),
        (DYNAMIC, StrategyType.DYNAMIC),
        ({}, StrategyType.CONTINUOUS),
    ):
        harness.edit(tuning={"order": "Arrival", "batching": batching})
        await harness.tick(tuner, AWAY, AWAY)
        read_back = served.control.read()
        assert [core.strategy for core in read_back.cores] == [strategy]
        assert read_back.accepted is not None
        asked = Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=0.2)) if batching else Batching()
        assert read_back.accepted.batching == asked
        assert harness.service.status.tuning.applied_pods == "1/1"
        _expect_more(totals)


def _expect_more(totals: StreamTotals) -> None:
    goal = totals.finished + 24
    eventually(lambda: totals.finished >= goal, expecting="more requests end")
