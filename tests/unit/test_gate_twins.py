"""The simulated engine and the governed scheduler say the same of requests, at arrival and while they wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flyball_engine.batching.gate import AdmissionReason, Arrival, Gate
from flyball_engine.contract import OnTime, Setpoint, Shed
from flyball_engine.control.state_file import StateReader, find_state_files
from flyball_engine.model import StepModel
from flyball_engine.vllm.refusal import Mark, set_mark
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.plant import StepTimes
from flyball_lab.simulator.requests import Fate, Request
from support.plain_scheduler import GovernedCore, PlainConfig, PlainRefuser, PlainScheduler
from support.simulated import a_budget, a_core, a_request, a_setpoint

#: A step takes 10 ms, and 1 ms more for each token.
STEP_TIMES = StepTimes(model=StepModel(t0=0.010, h=0.0, c1=1e-3, c2=1e-3, beta=1e-4, g=1e-7, kappa=1))
SEQS, TOKENS = 8, 256
DEADLINE = 1.0


def told(*, orders: bool) -> Setpoint:
    order = OnTime(first_token_deadline_seconds=DEADLINE, margin=0.85)
    shed = Shed(ttft_deadline_seconds=DEADLINE)
    return a_setpoint(step=a_budget(0.060, STEP_TIMES), shed=shed, on_time=order if orders else None)


class Twins:
    """The same requests in both, step by step; each step takes what the model says."""

    def __init__(self, folder: Path, *, orders: bool) -> None:
        self.simulated: Core = a_core(seqs=SEQS, tokens=TOKENS, step_times=STEP_TIMES, jumps=False)
        self.simulated.follow(told(orders=orders))
        self.simulated.apply(told(orders=orders))
        self.real = GovernedCore(
            folder, PlainScheduler(PlainConfig(max_num_seqs=SEQS, max_num_batched_tokens=TOKENS)), now=0.0
        )
        self.refused = self.real.hooks._refuser = PlainRefuser(self.real.scheduler)  # type: ignore[assignment]
        self.real.hooks.apply(told(orders=orders))
        self.reader = StateReader(find_state_files(folder)[0])
        self.gate = Gate(lambda: None if (load := self.reader.load()) is None else [load])
        self.gate.set_policy(told(orders=orders), now=0.0)
        self.requests: dict[str, Request] = {}
        self.output: Any = None

    def comes(self, prompt: int, output: int = 400) -> AdmissionReason:
        """A request of so many tokens comes to both; both must say the same."""
        real = self.gate.decide(Arrival(prompt, (0,)), now=self.real.now)
        request = a_request(prompt, output, at=self.simulated.now)
        simulated = self.simulated.submit([request])
        assert simulated is not None
        assert simulated.reason is real.reason
        assert simulated.refusable is real.refusable
        assert simulated.predicted == pytest.approx(real.predicted, rel=0.05)
        if real.admitted:
            name = f"r{len(self.requests)}"
            self.requests[name] = request
            self.real.scheduler.add(name, prompt=prompt, output=output)
            sent = self.real.scheduler.requests[name]
            sent.sampling_params.extra_args = None
            if real.refusable:
                set_mark(sent, Mark(len(self.requests), 1, sent_at=self.real.now))
            self.real.hooks.received(sent)
        return real.reason

    def step(self) -> None:
        """The step in flight ends in both, and the next one begins: engines are seldom between two."""
        if self.output is not None:
            self._land(self.output)
        self.real.hooks.before_schedule()
        self.output = self.real.scheduler.schedule()
        self.real.hooks.after_schedule(self.output)
        self.simulated.run(self.simulated.now + 1e-9)

    def _land(self, output: Any) -> None:
        load, began = self.reader.load(), self.real.now
        assert load is not None
        until = self.simulated.next_change
        assert until - began == pytest.approx(2 * load.in_flight_seconds, rel=0.05)
        self.real.now = until
        self.real.scheduler.update_from_output(output)
        self.real.hooks.after_update(output)
        self.real.hooks.refuse_late({})
        self.simulated.run(until)

    def refused_of_simulated(self) -> list[str]:
        return [name for name, request in self.requests.items() if request.fate is Fate.SHED]


@pytest.fixture(params=[True, False], ids=["in order", "as they come"])
def twins(request: pytest.FixtureRequest, tmp_path: Path) -> Twins:
    return Twins(tmp_path, orders=request.param)


def test_both_say_the_same_of_a_prompt_that_comes(twins: Twins) -> None:
    assert twins.comes(2000, 2) is AdmissionReason.IDLE
    assert twins.comes(20, 400) is AdmissionReason.IN_TIME
    twins.step()
    assert twins.comes(2000) is AdmissionReason.LATE
    for number in range(30):
        twins.comes(100 + 7 * number)
        twins.step()
    assert twins.comes(900) is AdmissionReason.LATE
    assert twins.comes(50) is AdmissionReason.IN_TIME


def test_both_refuse_the_same_of_a_crowd_while_it_waits(twins: Twins) -> None:
    twins.comes(20, 4000)
    twins.step()
    came = [twins.comes(150, 30) for _ in range(24)]
    assert came == 24 * [AdmissionReason.IN_TIME], "the queue is no reason to refuse"
    for _ in range(60):
        twins.step()
    assert len(twins.refused.names) > 5
    assert sorted(twins.refused.names) == sorted(twins.refused_of_simulated())
    assert twins.simulated.gate.counts[AdmissionReason.EXPIRED] == len(twins.refused.names)
    first = [one.first_token for one in twins.requests.values() if one.fate is not Fate.SHED]
    assert all(at is not None for at in first)


def test_both_serve_what_is_late_and_alone(twins: Twins) -> None:
    assert twins.comes(3000, 2) is AdmissionReason.IDLE
    while twins.requests["r0"].fate is Fate.OPEN:
        twins.step()
    assert twins.refused.names == twins.refused_of_simulated() == []
    assert twins.requests["r0"].fate is Fate.FINISHED
