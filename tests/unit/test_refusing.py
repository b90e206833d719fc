"""A governed scheduler refuses what was let in and became late, and tells those that sent it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.contract import Shed
from flyball_engine.model import StepModel
from flyball_engine.vllm import refusal
from flyball_engine.vllm.refusal import Mark, is_refusal, mark_in, set_mark, told_of
from flyball_lab.harness.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainRefuser
from support.reflexes import a_budget

#: A step takes 100 ms, and one of 110 ms has 100 tokens of prompts.
MODEL = StepModel(t0=0.100, h=0.0, c1=0.0001, c2=0.0001, beta=0.0, g=0.0, kappa=1)


class Core(GovernedCore):
    """A core with a deadline of 2 s, whose steps take 100 ms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refused = self.hooks._refuser = PlainRefuser(self.scheduler)  # type: ignore[assignment]
        self.sheds_after(2.0)

    def sheds_after(self, deadline: float | None, *, trusted: bool = True, generation: int = 1) -> None:
        self.hooks.apply(
            setpoint(
                generation,
                limits={"max_num_active_seqs": 1},
                step=a_budget(0.110, MODEL, trusted=trusted),
                shed=None if deadline is None else Shed(ttft_deadline_seconds=deadline, margin=1.0),
            )
        )

    def comes(
        self, name: str, *, prompt: int = 50, output: int = 4, mark: Mark | None = None, ago: float = 0.0
    ) -> None:
        """A request that was let in, some seconds ago as its API server says."""
        self.scheduler.add(name, prompt=prompt, output=output)
        request = self.scheduler.requests[name]
        request.sampling_params.extra_args = None
        mark = mark or Mark(len(self.scheduler.requests), 1)
        set_mark(request, mark._replace(sent_at=self.now - ago))
        self.hooks.received(request)

    def step_and_refuse(self, *, seconds: float = 0.1) -> None:
        self.step(seconds=seconds)
        self.hooks.refuse_late({})

    def goes_on(self, *, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.step_and_refuse()


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core(tmp_path)


def test_what_waits_behind_another_is_refused_when_its_deadline_cannot_be_kept(core: Core) -> None:
    core.comes("runs", output=1000)
    core.step_and_refuse()
    core.comes("waits", prompt=90)
    core.goes_on(seconds=1.8)
    assert core.refused.names == []
    core.goes_on(seconds=0.2)
    assert core.refused.names == ["waits"]


def test_what_has_its_first_token_is_served_however_late(core: Core) -> None:
    core.comes("runs", output=1000)
    core.comes("too", output=1000)
    core.goes_on(seconds=10.0)
    assert core.refused.names == ["too"]
    assert core.scheduler.requests["runs"].num_output_tokens > 90


def test_what_was_not_marked_is_never_refused(core: Core) -> None:
    core.comes("runs", output=1000)
    core.add("unmarked", prompt=50)
    core.goes_on(seconds=10.0)
    assert core.refused.names == []


@pytest.mark.parametrize(("deadline", "trusted"), [(None, True), (2.0, False)], ids=["no deadline", "no model"])
def test_without_a_deadline_or_a_trusted_model_everything_waits(
    core: Core, deadline: float | None, trusted: bool
) -> None:
    core.sheds_after(deadline, trusted=trusted, generation=2)
    core.comes("runs", output=1000)
    core.comes("waits")
    core.goes_on(seconds=10.0)
    assert core.refused.names == []


def test_a_setpoint_that_expired_refuses_nobody(core: Core) -> None:
    core.comes("runs", output=100_000)
    core.step_and_refuse()
    core.now += 4 * 3600
    core.comes("waits")
    core.scheduler.max_num_scheduled_tokens = 1
    core.goes_on(seconds=5.0)
    assert core.refused.names == []


def test_one_that_is_late_and_alone_is_served(core: Core) -> None:
    core.comes("alone", prompt=2000, output=1000)
    core.goes_on(seconds=3.0)
    assert core.refused.names == []
    assert core.scheduler.requests["alone"].num_output_tokens > 0


def test_of_several_that_come_at_once_and_are_all_late_one_is_served(core: Core) -> None:
    for name in ("one", "two", "three"):
        core.comes(name, prompt=2500, output=1000)
    core.goes_on(seconds=3.0)
    assert len(core.refused.names) == 2
    (served,) = core.scheduler.requests.values()
    assert served.num_output_tokens > 0


def test_time_at_the_door_counts_as_long_as_the_core_did_not_look(core: Core) -> None:
    core.comes("runs", output=1000)
    core.step(seconds=1.5)
    for name, ago in (("waited", 1.4), ("another clock", 3600.0), ("now", 0.0)):
        core.comes(name, prompt=10, ago=ago)
    core.goes_on(seconds=0.4)
    assert core.refused.names == ["another clock"]
    core.goes_on(seconds=0.1)
    assert core.refused.names == ["another clock", "waited"]


def test_time_in_the_api_server_counts(core: Core) -> None:
    core.comes("runs", output=1000)
    core.step()
    core.comes("waited", prompt=10, mark=Mark(7, 1, waited=1.5))
    core.comes("now", prompt=10)
    core.goes_on(seconds=0.6)
    assert core.refused.names == ["waited"]


def test_an_idle_core_hears_at_once_whatever_another_clock_says(core: Core) -> None:
    core.now += 100.0
    for name in ("one", "two"):
        core.comes(name, ago=3600.0, output=1000)
    core.goes_on(seconds=1.5)
    assert core.refused.names == []


def test_what_lacks_a_name_of_vllm_s_refuses_at_arrival_alone(core: Core) -> None:
    core.refused.lack = "this vLLM's RequestStatus has no FINISHED_ERROR"
    core.comes("runs", output=1000)
    core.comes("waits")
    core.goes_on(seconds=10.0)
    assert core.refused.names == []


def test_a_mark_stands_beside_what_a_client_put_there() -> None:
    request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"theirs": 1}))
    set_mark(request, Mark(7, 3))
    assert mark_in(told_of(request)) == Mark(7, 3)
    assert request.sampling_params.extra_args["theirs"] == 1


@pytest.mark.parametrize("params", [None, SimpleNamespace(extra_args=None), SimpleNamespace(extra_args={"theirs": 1})])
def test_what_has_no_mark_may_not_be_refused(params: Any) -> None:
    assert mark_in(told_of(SimpleNamespace(sampling_params=params))) is None


def test_only_our_own_word_is_a_refusal() -> None:
    assert is_refusal(SimpleNamespace(stop_reason=refusal.LATE))
    assert not is_refusal(SimpleNamespace(stop_reason=None))
    assert not is_refusal(SimpleNamespace(stop_reason=2))
