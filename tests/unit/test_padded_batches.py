"""The batches that a padded engine forms, what becomes of their rows, and what of the work is padding."""

from __future__ import annotations

import pytest

from flyball_engine.contract import Batching, BatchingKnob, Knob, QueueKnob, SchedulingPolicy, Setpoint
from flyball_engine.control.acceptance import SetpointRefused, judge
from flyball_engine.knobs import Bucketed, Continuous, Dynamic, NoEvict, Static
from flyball_lab.harness.engine import SERVICE, setpoint
from flyball_lab.harness.padded import END, a_row
from flyball_lab.padded.batch import Batch, ComputePhase, Padding, Stepped, Use
from flyball_lab.padded.former import form, whole
from flyball_lab.padded.requests import Row, Text
from flyball_lab.padded.support import UNGATED, UNSUPPORTED
from support.simulated import a_budget

START = Dynamic(batch_size=8, max_delay_seconds=0.5)


def formed(batching: Batching, *prompts: int, most: int = 32, now: float = 0.0) -> tuple[list[int], float | None]:
    """The prompts' lengths of the next batch of those that came a tenth of a second after each other, and its time.

    Times are since the first came.
    """
    rows = [a_row(number, prompt=prompt, arrival=50 + number / 10) for number, prompt in enumerate(prompts)]
    found = form(rows, batching, most=most, now=50 + now)
    return [row.prompt_tokens for row in found.rows], None if found.until is None else found.until - 50


def test_a_static_batch_begins_with_what_waits() -> None:
    static = Batching(strategy=Static(batch_size=3))
    assert formed(static, 5, 90, 7, 8) == ([5, 90, 7], None)
    assert formed(static, 5) == ([5], None)
    assert formed(static) == ([], None)


def test_a_dynamic_batch_waits_to_be_full_but_not_for_long() -> None:
    dynamic = Batching(strategy=Dynamic(batch_size=3, max_delay_seconds=1.0, max_batch_tokens=100))
    assert formed(dynamic, 5, 6, now=0.9) == ([], 1.0)
    assert formed(dynamic, 5, 6, now=1.0) == ([5, 6], None)
    assert formed(dynamic, 5, 6, 7, 8, now=0.3) == ([5, 6, 7], None)
    assert formed(dynamic, 60, 60, now=0.2) == ([60], None), "their tokens fill it"


def test_a_bucketed_batch_is_of_like_lengths_and_has_the_oldest() -> None:
    by_edges = Batching(strategy=Bucketed(batch_size=3, boundaries=(10, 100)))
    assert formed(by_edges, 50, 5, 60, 300, 70, 99) == ([50, 60, 70], None)
    by_order = Batching(strategy=Bucketed(batch_size=2, sorted=True))
    assert formed(by_order, 50, 5, 300, 60, 7) == ([50, 60], None)


def test_a_delay_keeps_static_batches_back_too() -> None:
    kept = Batching(strategy=Static(batch_size=3), admission_delay_seconds=0.5)
    assert formed(kept, 5, 6, now=0.2) == ([], 0.5)
    assert formed(kept, 5, 6, now=0.5) == ([5, 6], None)


def test_the_active_limit_bounds_every_batch() -> None:
    assert formed(Batching(strategy=Static(batch_size=30)), 1, 2, 3, 4, most=2) == ([1, 2], None)
    assert formed(Batching(strategy=Dynamic(batch_size=30, max_delay_seconds=60.0)), 1, 2, 3, most=2) == ([1, 2], None)


def test_priority_goes_before_arrival_where_it_is_asked_for() -> None:
    rows = [a_row(1, prompt=1, priority=1), a_row(2, prompt=2, priority=0), a_row(3, prompt=3, priority=1)]
    first = {
        policy: [
            row.number for row in form(rows, Batching(strategy=Static(batch_size=2), policy=policy), most=9, now=0).rows
        ]
        for policy in SchedulingPolicy
    }
    assert first == {SchedulingPolicy.FCFS: [1, 2], SchedulingPolicy.PRIORITY: [2, 1]}


def test_who_names_no_strategy_gets_that_of_the_start() -> None:
    assert whole(Batching(policy=SchedulingPolicy.PRIORITY), START) == Batching(
        strategy=START, policy=SchedulingPolicy.PRIORITY
    )
    static = Batching(strategy=Static(batch_size=3), admission_delay_seconds=1.0)
    assert whole(static, START) == static


def test_a_delay_without_a_strategy_is_that_of_the_start_strategy() -> None:
    delayed = whole(Batching(admission_delay_seconds=2.0), START)
    assert delayed == Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=2.0))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (setpoint(1, limits={"max_num_scheduled_tokens": 64}), Knob.MAX_NUM_SCHEDULED_TOKENS),
        (setpoint(1, limits={"long_prefill_token_threshold": 64}), Knob.LONG_PREFILL_TOKEN_THRESHOLD),
        (setpoint(1, limits={"num_speculative_tokens": 1}), Knob.NUM_SPECULATIVE_TOKENS),
        (setpoint(1, step=a_budget(0.1)), "step"),
        (setpoint(1, batching=Batching(strategy=Continuous())), BatchingKnob.CONTINUOUS),
        (setpoint(1, batching=Batching(no_evict=NoEvict())), BatchingKnob.NO_EVICT),
        (setpoint(1, batching=Batching(max_concurrent_prefills=1)), BatchingKnob.MAX_CONCURRENT_PREFILLS),
        (setpoint(1, queue={"max_num_queued_reqs": 9}), QueueKnob.MAX_NUM_QUEUED_REQS),
        (setpoint(1, shed={"ttft_deadline_seconds": 1.0}), "shed"),
    ],
)
def test_what_padding_has_no_way_to_do_is_refused_by_name(asked: Setpoint, named: str) -> None:
    with pytest.raises(SetpointRefused, match=rf"^{named}: "):
        judge(held=None, offered=asked, service=SERVICE, unsupported=UNSUPPORTED, ungated=UNGATED)


class Heard:
    """A batch of rows, and what it told."""

    def __init__(self, *rows: Row) -> None:
        self.steps: list[Stepped] = []
        self.padding = Padding()
        self.now = 0.0
        self.batch = Batch(rows, ends=frozenset({END}), clock=lambda: self.now, tell=self._tell)

    def _tell(self, stepped: Stepped) -> None:
        self.steps.append(stepped)
        self.padding.count(self.batch, stepped)

    def makes(self, *tokens: int, seconds: float = 1.0) -> list[bool]:
        self.now += seconds
        return self.batch.stepped(tokens)

    def told(self) -> list[list[tuple[int, int, str | None]]]:
        return [[(news.row.number, news.token, news.finish_reason) for news in step.news] for step in self.steps]


def test_rows_end_at_their_own_ends_and_the_batch_with_the_last() -> None:
    heard = Heard(a_row(1, most=2), a_row(2, most=5), a_row(3, most=5, ignore_eos=True))
    assert heard.makes(11, 12, 13) == [False, False, False]
    assert heard.makes(21, END, END) == [True, True, False]
    assert heard.makes(31, 32, 33) == [True, True, False]
    assert heard.told() == [
        [(1, 11, None), (2, 12, None), (3, 13, None)],
        [(1, 21, "length"), (2, END, "stop"), (3, END, None)],
        [(3, 33, None)],
    ]


def test_a_row_whose_client_left_makes_nothing_more() -> None:
    heard = Heard(a_row(1, most=5), a_row(2, most=5))
    heard.makes(11, 12)
    heard.batch.rows[0].left = True
    assert heard.makes(21, 22) == [True, False]
    assert heard.told()[1] == [(2, 22, None)]


def test_what_is_computed_for_nobody_is_padding() -> None:
    heard = Heard(a_row(1, prompt=10, most=1), a_row(2, prompt=4, most=3))
    heard.makes(1, 1)
    heard.makes(1, 1)
    heard.makes(1, 1)
    assert heard.padding.tokens == {
        (ComputePhase.PROMPT, Use.USEFUL): 14,
        (ComputePhase.PROMPT, Use.PADDING): 6,
        (ComputePhase.OUTPUT, Use.USEFUL): 2,
        (ComputePhase.OUTPUT, Use.PADDING): 2,
    }


def test_steps_are_counted_as_they_are_computed() -> None:
    heard = Heard(a_row(1, prompt=10), a_row(2, prompt=4))
    first, later = heard.batch.step(0), heard.batch.step(3)
    assert (first.tokens, first.prefill_tokens, first.decodes, first.prefill_attention) == (20, 20, 0, 100.0)
    assert (later.tokens, later.prefill_tokens, later.decodes, later.kv_tokens) == (2, 0, 2, 26)
    heard.makes(1, 1, seconds=0.5)
    heard.makes(1, 1, seconds=0.25)
    assert [(step.number, step.seconds) for step in heard.steps] == [(0, 0.5), (1, 0.25)]


@pytest.mark.parametrize("text", ["plain", "zürich – 日本語", "🙂🙂", ""])
def test_characters_of_several_tokens_are_told_whole(text: str) -> None:
    told = Text(lambda tokens: bytes(tokens).decode(errors="replace"))
    data = text.encode()
    for place, byte in enumerate(data):
        told.add(byte, last=place == len(data) - 1)
    assert "".join(told.pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in told.pieces)


def test_an_answer_cut_within_a_character_says_so() -> None:
    told = Text(lambda tokens: bytes(tokens).decode(errors="replace"))
    told.add(ord("a"), last=False)
    told.add(0xF0, last=True)
    assert told.pieces == ["a", "\N{REPLACEMENT CHARACTER}"]
