"""How long answers are expected to be, and whom the gate refuses for it where a whole answer is asked for in time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from flyball_engine.batching.answers import Answers
from flyball_engine.batching.gate import AdmissionReason, Arrival
from flyball_engine.contract import Metric, ObjectiveSpec
from flyball_engine.vllm.gate import _most_tokens
from support.gates import BUSY, IDLE, GatedCores, a_policy
from support.simulated import two_classes

WHOLE = ObjectiveSpec(metric=Metric.END_TO_END_LATENCY, threshold_seconds=10.0)


def seen(*answers: tuple[int, int | None], per_token: float = 0.01, times: int = 50) -> Answers:
    """After many answers of so many tokens, whose requests named so many."""
    found = Answers()
    for _ in range(times):
        for tokens, named in answers:
            found.ended(tokens=tokens, named=named, per_token=per_token)
    return found


def test_before_an_answer_ended_nothing_is_expected() -> None:
    assert Answers().left(10.0, 4096) == math.inf


def test_an_answer_is_expected_to_be_as_long_as_those_that_named_about_as_much() -> None:
    answers = seen((50, 64), (801, 1024))
    assert answers.left(10.0, 1000) == pytest.approx(10.0 - 800 * 0.01, rel=0.5)
    assert answers.left(1.0, 1024) < 0, "however early it begins"


@pytest.mark.parametrize("named", [None, 64, 200])
def test_one_that_is_expected_to_be_no_longer_than_others_has_the_deadline_of_a_mean_answer(
    named: int | None,
) -> None:
    assert seen((50, 64), (801, 1024)).left(10.0, named) == math.inf


def test_where_all_name_as_much_none_is_long() -> None:
    answers = Answers()
    for tokens in (2000, 20, 333) * 100:
        answers.ended(tokens=tokens, named=4096, per_token=1.0)
        assert answers.left(10.0, 4096) == math.inf


def test_a_size_that_nobody_named_yet_is_expected_to_be_a_mean_answer() -> None:
    assert seen((50, 64), (800, 1024)).left(1.0, 30_000) == math.inf


def test_a_size_of_which_no_answer_ends_any_more_is_tried_again() -> None:
    answers = seen((50, 64), (801, 1024))
    assert answers.left(5.0, 1024) < 0
    for _ in range(5000):
        answers.ended(tokens=50, named=64, per_token=0.01)
    assert answers.left(5.0, 1024) > 4.0


def test_a_mix_that_becomes_long_answers_alone_is_not_refused_for_long() -> None:
    answers = seen(*[(60, 100)] * 10, (2000, 4096), per_token=0.03)
    for _ in range(100):
        answers.left(30.0, 100)
    assert answers.left(30.0, 4096) < 0, "among short ones it is long"
    refused = [answers.left(30.0, 4096) < 0 for _ in range(400)]
    assert not refused[-1], "though not one of them ended"


# The gate.


def a_gate(*objectives: ObjectiveSpec, margin: float = 1.0, **fields: Any) -> GatedCores:
    cores = GatedCores(BUSY, policy=a_policy(5.0, margin=margin, objectives=objectives or (WHOLE,), **fields))
    cores.gate.answers = seen((50, 64), (801, 1024), per_token=0.011)
    return cores


def judged(cores: GatedCores, *, prompt: int, named: int | None, of_class: str = "") -> AdmissionReason:
    return cores.gate.decide(Arrival(prompt, None, of_class, named), now=0.0).reason


def test_a_long_answer_must_begin_the_earlier() -> None:
    """Some 750 tokens at 11 ms leave 2 s of the 10: a prompt of three seconds is late, if not that of a mean answer."""
    cores = a_gate()
    assert judged(cores, prompt=3000, named=64) is AdmissionReason.IN_TIME
    assert judged(cores, prompt=3000, named=1024) is AdmissionReason.LATE
    assert judged(cores, prompt=3000, named=None) is AdmissionReason.IN_TIME
    assert judged(cores, prompt=100, named=1024) is AdmissionReason.IN_TIME


def test_what_will_be_too_long_is_hopeless_and_told_so() -> None:
    verdict = a_gate(margin=0.5).gate.decide(Arrival(1, None, "", 1024), now=0.0)
    assert verdict.reason is AdmissionReason.LATE
    assert verdict.deadline == 0.0


def test_an_idle_engine_serves_it_all_the_same() -> None:
    cores = a_gate(margin=0.5)
    cores.loads = [IDLE]
    assert judged(cores, prompt=1, named=1024) is AdmissionReason.IDLE


def test_without_an_objective_for_whole_answers_lengths_say_nothing() -> None:
    cores = a_gate(ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=5.0), margin=0.5)
    assert judged(cores, prompt=1, named=1024) is AdmissionReason.IN_TIME


def test_the_objective_is_that_of_the_class() -> None:
    chats = ObjectiveSpec(metric=Metric.END_TO_END_LATENCY, threshold_seconds=1.0, of_class="chat")
    cores = a_gate(chats, classes=two_classes(5.0))
    assert judged(cores, prompt=1, named=1024, of_class="chat") is AdmissionReason.LATE
    assert judged(cores, prompt=1, named=1024) is AdmissionReason.IN_TIME


# What requests name.


@dataclass
class Asked:
    """A request of some route."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    sampling_params: Any = None


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Asked(), None),
        (Asked(max_tokens=7), 7),
        (Asked(max_tokens=7, max_completion_tokens=9), 9),
        (Asked(max_output_tokens=8), 8),
        (Asked(sampling_params=Asked(max_tokens=5)), 5),
        (object(), None),
    ],
)
def test_each_route_has_its_name_for_the_most_tokens(request_: object, named: int | None) -> None:
    assert _most_tokens(request_) == named
