"""What a core tells the gate: the backlog, and what it had received when it counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.backlog import REWEIGHED, Backlog
from flyball_engine.batching.gate import CoreLoad, Work, prompt_work
from flyball_engine.control.state_file import StateReader, find_state_files
from support.engine import setpoint
from support.plain_scheduler import GovernedCore, PlainConfig, PlainScheduler


@pytest.fixture
def core(tmp_path: Path) -> GovernedCore:
    return GovernedCore(tmp_path, PlainScheduler(PlainConfig(max_num_seqs=8, max_num_batched_tokens=256)))


def load(core: GovernedCore) -> CoreLoad:
    seen = StateReader(find_state_files(core.folder)[0]).load()
    assert seen is not None
    return seen


def test_an_idle_core_has_all_its_places(core: GovernedCore) -> None:
    seen = load(core)
    assert (seen.backlog, seen.decodes, seen.places) == (Work(), 0, 8)
    assert (seen.tokens, seen.pipeline_depth, seen.bias) == (256, 1, 1.0)


def test_prompts_that_wait_or_have_begun_are_backlog(core: GovernedCore) -> None:
    for number in range(12):
        core.scheduler.add(f"r{number}", prompt=100)
        core.governor.received(core.scheduler.requests[f"r{number}"])
    core.step()
    seen = load(core)
    # 256 of 1200 tokens are done: two prompts whole, and half of a third.
    half = 44 * (56 + 44 / 2)
    assert seen.backlog == Work(9, 1200 - 256, 9 * 100 * 50 + half)
    assert (seen.decodes, seen.running) == (2, 3)
    assert seen.places == 5
    assert seen.received == 12
    assert not seen.knows_prefixes


def test_the_limits_in_force_are_told(core: GovernedCore) -> None:
    core.governor.apply(setpoint(1, limits={"max_num_active_seqs": 3, "max_num_scheduled_tokens": 64}))
    core.step()
    seen = load(core)
    assert (seen.places, seen.tokens) == (3, 64)


def test_who_was_admitted_or_left_is_no_longer_backlog(core: GovernedCore) -> None:
    for number in range(12):
        core.add(f"r{number}", prompt=100, output=2)
    core.step()
    core.scheduler.finish_requests("r11")
    core.governor.after_finish()
    assert load(core).backlog.tokens == 11 * 100 - 256
    while core.scheduler.requests:
        core.step()
    assert load(core).backlog == Work()


def test_a_prompt_that_comes_back_is_backlog_again(core: GovernedCore) -> None:
    for number in range(12):
        core.add(f"r{number}", prompt=100)
    core.step()
    before = load(core).backlog
    preempt(core)
    core.governor.after_finish()
    after = load(core).backlog
    assert (after.requests, after.tokens) == (before.requests + 1, before.tokens + 56)


def preempt(core: GovernedCore) -> None:
    """The youngest loses its place, as vLLM does it."""
    request = core.scheduler.running.pop()
    request.num_computed_tokens, request.is_prefill_chunk = 0, False
    core.scheduler.waiting.appendleft(request)


@dataclass
class Prompt:
    """One that waits; `held` of its tokens are cached."""

    request_id: str
    tokens: int = 100
    held: int = 0


class Counting:
    """A backlog of prompts, and how many were weighed, and looked for in the queue."""

    def __init__(self, *prompts: Prompt) -> None:
        self.weighed = 0
        self.looked = 0
        self.queue = list(prompts)
        self.ended: list[str] = []
        self.backlog = Backlog(self._weigh)
        for prompt in prompts:
            self.backlog.add(prompt.request_id, prompt)

    def count(self, waiting: int | None = None) -> Work:
        self.weighed = self.looked = 0
        number = len(self.queue) if waiting is None else waiting
        return self.backlog.count(number, queue=self._queue, ended=lambda: self.ended)

    def _queue(self) -> Iterator[Prompt]:
        for prompt in self.queue:
            self.looked += 1
            yield prompt

    def _weigh(self, prompt: Prompt) -> tuple[int, float]:
        self.weighed += 1
        return prompt.tokens - prompt.held, 0.0


def prompts(number: int) -> list[Prompt]:
    return [Prompt(f"r{index}") for index in range(number)]


def test_a_long_queue_is_not_walked_through() -> None:
    counting = Counting(*prompts(1000))
    assert counting.count() == Work(1000, 100_000)
    assert (counting.weighed, counting.looked) == (REWEIGHED, 0)


def test_what_becomes_cached_meanwhile_is_seen_in_turn() -> None:
    counting = Counting(*prompts(30))
    for prompt in counting.queue:
        prompt.held = 60
    seen = [counting.count().tokens for _ in range(31 // REWEIGHED)]
    assert (seen[0], seen[-1]) == (3000 - 60 * REWEIGHED, 30 * 40)


def test_those_that_come_back_are_found_at_the_front() -> None:
    counting = Counting(*prompts(1000))
    counting.queue = [Prompt("preempted", 50), *counting.queue]
    assert counting.count() == Work(1001, 100_050)
    assert counting.looked == 1


def test_of_those_that_left_the_names_are_enough() -> None:
    counting = Counting(*prompts(1000))
    counting.ended = [counting.queue.pop(500).request_id, "one that ran"]
    assert counting.count() == Work(999, 99_900)
    assert counting.looked == 0


def test_whoever_left_without_a_word_makes_the_sum_anew() -> None:
    counting = Counting(*prompts(10))
    counting.queue = counting.queue[:4]
    assert counting.count() == Work(4, 400)


def test_whom_the_queue_does_not_show_is_not_looked_for_again_and_again() -> None:
    counting = Counting(*prompts(10))
    assert counting.count(waiting=11) == Work(11, 1000)
    assert counting.looked == 10
    assert counting.count(waiting=11) == Work(11, 1000)
    assert counting.looked == 0


@given(st.data())
def test_the_running_sum_is_what_a_walk_finds(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        config = PlainConfig(max_num_seqs=4, max_num_batched_tokens=64)
        core = GovernedCore(Path(folder), PlainScheduler(config))
        for number in range(data.draw(st.integers(1, 40))):
            event = data.draw(st.sampled_from(("add", "add", "step", "step", "abort", "preempt")))
            if event == "add":
                core.add(f"r{number}", prompt=data.draw(st.integers(1, 200)), output=data.draw(st.integers(1, 4)))
            elif event == "abort" and core.scheduler.requests:
                core.scheduler.finish_requests(data.draw(st.sampled_from(sorted(core.scheduler.requests))))
                core.governor.after_finish()
            elif event == "preempt" and core.scheduler.running:
                preempt(core)
                core.governor.after_finish()
            if event in ("add", "step"):
                core.step()
            assert load(core).backlog == walked(core)


def walked(core: GovernedCore) -> Work:
    """The backlog, request by request."""
    begun = [request for request in core.scheduler.running if request.is_prefill_chunk]
    works = [
        prompt_work(request.num_tokens, request.num_computed_tokens) for request in (*begun, *core.scheduler.waiting)
    ]
    whole = sum(works, Work())
    return Work(len(core.scheduler.waiting), whole.tokens, whole.attention)
