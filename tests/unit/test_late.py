"""Which requests are refused after they were let in: all of a request or nothing, and never one that has begun."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from flyball_engine.batching.late import LOOKED_AT_IN_A_STEP, TURNS_IN_A_STEP, LetIn, SequenceProgress, but_one_alone
from flyball_engine.batching.prefill_rate import PrefillRate

#: A thousand tokens take a second.
RATE = PrefillRate(per_token=0.001)
STARTED, GONE = SequenceProgress(started=True), SequenceProgress(gone=True)


def left(tokens: float) -> SequenceProgress:
    return SequenceProgress(tokens=tokens)


@pytest.mark.parametrize(
    ("tokens", "now", "late"), [(1000, 1.0, False), (1000, 1.01, True), (0, 2.0, False), (0, 2.01, True)]
)
def test_late_is_what_cannot_be_in_time_even_if_it_is_served_alone(tokens: float, now: float, late: bool) -> None:
    assert RATE.misses(2.0, tokens=tokens, attention=0.0, now=now) is late


def test_attention_takes_its_time_too() -> None:
    rate = PrefillRate(per_token=0.0, per_attention=0.001)
    assert rate.misses(2.0, tokens=0.0, attention=3000, now=0.0)


def test_of_those_that_are_late_one_stays_where_nobody_else_is_there() -> None:
    late = [["a"], ["b", "b2"], ["c"]]
    assert but_one_alone(late, present=4) == ([["a"], ["b", "b2"]], ["c"])
    assert but_one_alone(late, present=5) == (late, [])
    assert but_one_alone([], present=0) == ([], [])


@dataclass
class Engine:
    """Requests that were let in at time 0 with a deadline of 2 s, and how far each is."""

    let_in: LetIn[str] = field(default_factory=LetIn)
    progress: dict[str, SequenceProgress] = field(default_factory=dict)

    def comes(self, name: str, tokens: int = 1000, *, of: str = "", size: int = 1, arrived: float = 0.0) -> None:
        self.progress[name] = left(tokens)
        self.let_in.add(name, key=of or name, size=size, arrived=arrived, tokens=tokens)

    def late(self, now: float, rate: PrefillRate | None = RATE) -> list[list[str]]:
        return self.let_in.late(self.progress.__getitem__, deadlines={"": 2.0}, rate=rate, now=now)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_what_cannot_be_in_time_any_more_is_refused_once(engine: Engine) -> None:
    engine.comes("long", 1500)
    engine.comes("short", 100)
    assert engine.late(0.4) == []
    assert engine.late(0.6) == [["long"]]
    assert engine.late(0.6) == []
    assert engine.late(2.0) == [["short"]]
    assert len(engine.let_in) == 0


def test_a_prompt_that_has_come_far_has_the_rest_of_its_deadline(engine: Engine) -> None:
    engine.comes("one", 1900)
    engine.progress["one"] = left(100)
    assert engine.late(1.5) == []


def test_the_deadline_begins_with_the_arrival(engine: Engine) -> None:
    engine.comes("later", 1500, arrived=10.0)
    assert engine.late(10.4) == []
    assert engine.late(10.6) == [["later"]]


@pytest.mark.parametrize("over", [STARTED, GONE], ids=["begun", "gone"])
def test_what_has_begun_or_left_is_forgotten(engine: Engine, over: SequenceProgress) -> None:
    engine.comes("one")
    engine.progress["one"] = over
    assert engine.late(100.0) == []
    assert len(engine.let_in) == 0


def test_without_a_trusted_model_nobody_is_refused(engine: Engine) -> None:
    engine.comes("one")
    assert engine.late(100.0, rate=None) == []
    assert engine.late(100.0) == [["one"]]


def test_of_several_sequences_all_are_refused_or_none(engine: Engine) -> None:
    for name, tokens in (("a", 1500), ("b", 100)):
        engine.comes(name, tokens, of="both", size=2)
    assert engine.late(1.0) == [], "the shorter can be in time"
    assert engine.late(2.0) == [["a", "b"]]


def test_a_request_of_which_one_sequence_has_begun_goes_on(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.comes(name, of="both", size=2)
    engine.progress["b"] = STARTED
    assert engine.late(100.0) == []
    assert len(engine.let_in) == 0


def test_a_request_is_left_alone_until_all_its_sequences_are_here(engine: Engine) -> None:
    engine.comes("a", of="both", size=2)
    assert engine.late(100.0) == []
    engine.comes("b", of="both", size=2)
    assert engine.late(100.0) == [["a", "b"]]


def test_of_what_left_by_itself_nobody_is_told(engine: Engine) -> None:
    for name in ("a", "b"):
        engine.comes(name, of="both", size=2)
    engine.progress["a"] = GONE
    assert engine.late(100.0) == [["b"]]


def test_in_some_steps_everybody_has_a_turn(engine: Engine) -> None:
    for number in range(3 * TURNS_IN_A_STEP):
        engine.comes(f"r{number}", 1500 if number == 2 * TURNS_IN_A_STEP else 100)
    assert [engine.late(1.0) for _ in range(3)] == [[], [], [[f"r{2 * TURNS_IN_A_STEP}"]]]


def test_a_step_looks_at_so_many_and_the_next_goes_on(engine: Engine) -> None:
    for number in range(2 * LOOKED_AT_IN_A_STEP):
        engine.comes(f"r{number}")
    first, second = engine.late(100.0), engine.late(100.0)
    assert [len(first), len(second)] == [LOOKED_AT_IN_A_STEP, LOOKED_AT_IN_A_STEP]
    assert [name for (name,) in first + second] == [f"r{number}" for number in range(2 * LOOKED_AT_IN_A_STEP)]


def test_what_is_over_is_forgotten_long_before_its_deadline(engine: Engine) -> None:
    for number in range(100):
        engine.comes(f"r{number}")
        engine.progress[f"r{number}"] = STARTED
    for _ in range(20):
        engine.late(0.0)
    assert len(engine.let_in) == 0


def test_a_request_of_more_sequences_than_a_step_looks_at_is_left_alone(engine: Engine) -> None:
    engine.comes("a", of="many", size=LOOKED_AT_IN_A_STEP + 1)
    engine.comes("b")
    assert engine.late(100.0) == [["b"]]
