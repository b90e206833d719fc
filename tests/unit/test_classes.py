"""Classes of requests in the engine: who has which deadline, who is given up, what is counted, and what is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from flyball_engine.batching.classes import RequestClassifier, Terms, terms
from flyball_engine.batching.gate import AdmissionReason, Arrival
from flyball_engine.batching.late import LetIn, SequenceProgress
from flyball_engine.batching.on_time import OnTimeOrder
from flyball_engine.batching.outcomes import End, RequestLedger
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.contract import Classes, Metric, ObjectiveSpec, OnTime, OrderKnob, RequestClass, Setpoint, Shed
from flyball_engine.control_port import body_of
from flyball_engine.vllm.refusal import class_in, set_class, told_of
from flyball_lab.simulator.requests import Fate
from support.gates import BUSY, GatedCores, a_policy
from support.simulated import a_budget, a_core, a_request, a_setpoint, submitted, two_classes

ON_TIME = OnTime(first_token_deadline_seconds=2.0, margin=0.5)
CHAT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5, of_class="chat")
ALL = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5)
BUDGET = 0.030
LATER = 1e6


# The contract.


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"classes": []}, "at least 1 item"),
        ({"classes": [{"name": f"c{number}", "value": f"{number}"} for number in range(9)]}, "at most 8 items"),
        ({"classes": [{"name": "a", "value": "x"}, {"name": "a", "value": "y"}]}, "each name may appear once"),
        ({"classes": [{"name": "a", "value": "x"}, {"name": "b", "value": "x"}]}, "each value may appear once"),
        (
            {"classes": [{"name": "a", "value": "x", "priority": 5}, {"name": "b", "value": "y", "priority": 5}]},
            "each priority may appear once, got 5, 5",
        ),
        ({"classes": [{"name": "a", "value": "x", "priority": 0}]}, "accepted: any whole number but 0"),
        ({"classes": [{"name": "a", "value": "x", "priority": 2**31}]}, "less than or equal to 2147483647"),
        ({"classes": [{"name": "default", "value": "x"}]}, "any but 'default'"),
        ({"classes": [{"name": "A", "value": "x"}]}, "should match pattern"),
        ({"classes": [{"name": "a", "value": " x"}]}, "should match pattern"),
        ({"classes": [{"name": "a", "value": "x", "weight": 0.0}]}, "greater than 0"),
        ({"classes": [{"name": "a", "value": "x", "prefill_share": 0.6}]}, "less than or equal to 0.5"),
        (
            {
                "classes": [
                    {"name": "a", "value": "x", "prefill_share": 0.3},
                    {"name": "b", "value": "y", "prefill_share": 0.3},
                ]
            },
            "sum of prefill_share: at most 0.5, got 0.6",
        ),
        ({"header": "X-Class", "classes": [{"name": "a", "value": "x"}]}, "should match pattern"),
    ],
)
def test_what_cannot_be_told_apart_or_kept_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Classes.model_validate(fields)


def a_body(**fields: Any) -> dict[str, Any]:
    return {"service": "s", "epoch": 1, "generation": 1, **fields}


def test_an_objective_is_of_a_class_that_is_there() -> None:
    with pytest.raises(ValidationError, match="'chat' is no class, accepted: none"):
        Setpoint.model_validate(a_body(objectives=[CHAT]))
    with pytest.raises(ValidationError, match="'chat' is no class, accepted: batch"):
        Setpoint.model_validate(a_body(objectives=[CHAT], classes=Classes(classes=(a_class("batch"),))))


def a_class(name: str, seconds: float | None = None, **fields: Any) -> RequestClass:
    return RequestClass(name=name, value=name, first_token_deadline_seconds=seconds, **fields)


@pytest.mark.parametrize("without", [{"on_time": OnTime()}, {"shed": Shed()}], ids=str)
def test_somebody_must_have_a_deadline(without: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="deadline_seconds: required where no class has a deadline"):
        Setpoint.model_validate(a_body(classes=two_classes(None), **without))
    Setpoint.model_validate(a_body(classes=two_classes(1.0), **without))


def test_one_threshold_may_stand_for_two_classes() -> None:
    told = Setpoint.model_validate(a_body(objectives=[CHAT, ALL], classes=two_classes(1.0)))
    assert [one.id for one in told.objectives] == ["TimeToFirstToken/0.5@chat", "TimeToFirstToken/0.5"]
    assert OrderKnob.CLASSES in told.asks()


def test_an_engine_that_is_older_is_sent_nothing_that_it_does_not_know() -> None:
    body = body_of(a_setpoint(objectives=[ALL], on_time=ON_TIME))
    assert b"class" not in body
    told = a_setpoint(objectives=[CHAT, ALL], on_time=OnTime(), classes=two_classes(1.0))
    assert Setpoint.model_validate_json(body_of(told)) == told
    by_header = told.model_copy(update={"classes": Classes(classes=(a_class("chat", 1.0),))})
    assert b"priority" not in body_of(by_header)


# Which class a request is of.


def test_the_header_says_the_class_and_a_value_nobody_configured_is_counted() -> None:
    classifier = RequestClassifier()
    said = (b"x-gateway-inference-objective", b"Chat")
    assert classifier.name([said]) == "", "no classes yet"
    classifier.follow(two_classes(1.0))
    assert classifier.name([(b"host", b"x"), said]) == "chat"
    assert classifier.name([(said[0], b" batch ")]) == "batch"
    assert classifier.unknown == 0
    assert [classifier.name([(said[0], value)]) for value in (b"chat", b"x" * 10_000, b"\xff")] == ["", "", ""]
    assert classifier.unknown == 3
    classifier.follow(None)
    assert classifier.name([said]) == ""
    assert classifier.unknown == 3


def test_another_header_may_say_it() -> None:
    classifier = RequestClassifier()
    classifier.follow(two_classes(1.0).model_copy(update={"header": "x-class"}))
    assert classifier.name([(b"x-gateway-inference-objective", b"batch"), (b"x-class", b"Chat")]) == "chat"


PRIORITY = b"x-vllm-priority"


def a_classifier() -> RequestClassifier:
    """Batch work is of priority 5."""
    classifier = RequestClassifier()
    classifier.follow(two_classes(1.0))
    return classifier


def test_without_a_header_the_priority_says_the_class() -> None:
    classifier = a_classifier()
    assert classifier.name([(b"host", b"x")]) is None, "the body says it"
    assert [classifier.of_priority(priority) for priority in (5, 0)] == ["batch", ""]
    assert classifier.unknown == 0
    assert [classifier.of_priority(priority) for priority in (-5, 2**63 - 1)] == ["", ""]
    assert classifier.unknown == 2


def test_the_class_in_a_header_goes_before_every_priority() -> None:
    classifier = a_classifier()
    for value, of_class in ((b"Chat", "chat"), (b"unheard-of", "")):
        assert classifier.name([(b"x-gateway-inference-objective", value), (PRIORITY, b"5")]) == of_class


@pytest.mark.parametrize(
    ("value", "of_class"), [(b"5", "batch"), (b" 5", "batch"), (b"0", ""), (b"7", ""), (b"high", None), (b"", None)]
)
def test_a_priority_in_vllms_header_goes_before_that_in_the_body(value: bytes, of_class: str | None) -> None:
    assert a_classifier().name([(PRIORITY, value)]) == of_class


def test_where_no_class_is_named_by_a_priority_none_is_looked_at_or_counted() -> None:
    classifier = RequestClassifier()
    classifier.follow(Classes(classes=(a_class("chat", 1.0),)))
    assert [classifier.name([]), classifier.name([(PRIORITY, b"5")])] == ["", ""]
    assert classifier.of_priority(5) == ""
    assert classifier.unknown == 0


def test_a_class_travels_to_the_core_with_the_sampling_parameters() -> None:
    request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"theirs": 1}))
    assert class_in(told_of(request)) == ""
    set_class(request, "chat")
    assert class_in(told_of(request)) == "chat"
    assert request.sampling_params.extra_args["theirs"] == 1
    assert class_in(told_of(SimpleNamespace(sampling_params=None))) == "", "pooling"


def test_each_class_has_its_terms_and_an_unknown_one_those_of_all() -> None:
    classes = two_classes(4.0, weight=10.0)
    assert terms(ON_TIME, classes, "chat") == Terms(2.0, 10.0)
    assert terms(ON_TIME, classes, "batch") == Terms(math.inf, 1.0)
    assert terms(ON_TIME, classes, "") == terms(ON_TIME, classes, "gone") == terms(ON_TIME, None, "chat") == Terms(1.0)
    assert terms(OnTime(), classes, "") == Terms(math.inf)


# What is counted.


def test_requests_are_counted_against_the_objectives_of_their_class() -> None:
    ledger = RequestLedger()
    ledger.set_objectives([CHAT, ALL])
    ledger.set_classes(two_classes(1.0))
    for of_class, first in (("chat", 0.1), ("chat", 0.9), ("", 0.1), ("batch", 9.0)):
        request = ledger.opened(0.0, of_class)
        sequence = ledger.started(request)
        ledger.received(sequence, tokens=1, at=first, now=first)
        ledger.done(sequence, prompt=1, cached=0, now=first)
        ledger.ended(request, End.ANSWERED, first)
    counts = ledger.collect()
    assert {key: count for key, count in counts.objectives.items() if count} == {
        (CHAT.id, "met"): 1,
        (CHAT.id, "violated"): 1,
        (ALL.id, "met"): 1,
    }
    assert counts.all_objectives == {
        (CHAT.id, "met"): 1,
        (CHAT.id, "violated"): 1,
        (ALL.id, "met"): 1,
        (ALL.id, "violated"): 0,
    }
    assert {key: count for key, count in counts.classes.items() if count} == {
        ("chat", "finished"): 2,
        ("default", "finished"): 1,
        ("batch", "finished"): 1,
    }


def test_only_classes_that_there_are_have_counters() -> None:
    ledger = RequestLedger()
    ledger.set_classes(two_classes(1.0))
    stays, goes = ledger.opened(0.0, "chat"), ledger.opened(0.0, "batch")
    ledger.set_classes(Classes(classes=(a_class("chat"),)))
    for request in (stays, goes):
        ledger.ended(request, End.REFUSED, 0.0)
    counted = ledger.collect().classes
    assert {name for name, _ in counted} == {"chat", "default"}
    assert counted["chat", "refused"] == 1
    ledger.set_classes(None)
    assert ledger.collect().classes == {}


# Who is served, and who is refused.


def an_order() -> OnTimeOrder[str]:
    order: OnTimeOrder[str] = OnTimeOrder(late_share=0.0)
    order.keep(0.0, {"batch": 0.25})
    return order


def test_the_share_of_a_class_goes_to_its_oldest() -> None:
    order = an_order()
    order.add("other", arrived=0.0, deadline=math.inf, tokens=1e6)
    order.add("old", arrived=0.0, deadline=math.inf, tokens=1e6, of_class="batch")
    order.add("young", arrived=0.0, deadline=math.inf, tokens=1e6, of_class="batch")
    order.add("good", arrived=0.0, deadline=1e9, tokens=1e6)
    seen = []
    for _ in range(100):
        first = next(order.in_order()).request
        seen.append(first)
        got = 100 * (first == "old")
        order.served(tokens=100, behind={"batch": got}, most=100, now=0.0)
    assert seen.count("old") == pytest.approx(25, abs=1)
    assert set(seen) == {"old", "good"}
    order.discard("old")
    order.discard("young")
    assert next(order.in_order()).request == "good", "nothing is owed to nobody"


def test_who_has_no_deadline_any_more_is_served_behind_and_who_has_one_again_is_not() -> None:
    order = an_order()
    order.add("a", arrived=0.0, deadline=5.0, tokens=10, of_class="batch")
    order.add("b", arrived=0.0, deadline=9.0, tokens=10)
    order.redate(lambda one: (math.inf if one.of_class == "batch" else 9.0, 1.0))
    assert [one.request for one in order.in_order()] == ["b", "a"]
    assert (order.behind(), order.moved_behind) == (1, 0)
    order.redate(lambda _: (9.0, 1.0))
    assert [one.request for one in order.in_order()] == ["a", "b"]
    assert order.behind() == 0


def test_who_cannot_be_refused_any_more_has_its_share() -> None:
    order = an_order()
    order.keep(0.1, {})
    order.refuses = True
    order.add("batch", arrived=0.0, deadline=5.0, tokens=10, of_class="batch", refusable=True)
    order.add("good", arrived=0.0, deadline=9.0, tokens=10)
    order.redate(lambda one: (math.inf if one.of_class == "batch" else 9.0, 1.0))
    order.served(tokens=100, behind={}, most=100, now=0.0)
    assert next(order.in_order()).request == "batch"


def test_the_gate_refuses_by_the_deadline_of_the_class() -> None:
    cores = GatedCores(BUSY, policy=a_policy(classes=two_classes(0.5)))
    for of_class, tokens, reason in (
        ("", 1900, AdmissionReason.IN_TIME),
        ("", 2100, AdmissionReason.LATE),
        ("chat", 400, AdmissionReason.IN_TIME),
        ("chat", 600, AdmissionReason.LATE),
        ("batch", 100_000, AdmissionReason.NO_DEADLINE),
    ):
        assert cores.gate.decide(Arrival(tokens, None, of_class), now=0.0).reason is reason
    assert not cores.gate.decide(Arrival(1, None, "batch"), now=0.0).refusable


def test_what_waits_is_refused_by_the_deadline_of_its_class() -> None:
    let_in: LetIn[str] = LetIn()
    for name in ("", "chat", "batch", "gone"):
        let_in.add(name, key=name, size=1, arrived=0.0, tokens=100, of_class=name)
    look, rate = lambda _: SequenceProgress(tokens=100.0), PrefillRate(per_token=0.001)
    deadlines = {"": 2.0, "chat": 0.5, "batch": math.inf}
    assert let_in.late(look, deadlines=deadlines, rate=rate, now=1.0) == [["chat"]]
    assert let_in.late(look, deadlines=deadlines, rate=rate, now=9.0) == [[""], ["gone"]]


def test_batch_work_waits_for_people_loses_nothing_and_is_never_refused() -> None:
    core = a_core(seqs=32, tokens=256)
    told = a_setpoint(
        step=a_budget(BUDGET),
        objectives=[CHAT],
        shed=Shed(),
        on_time=OnTime(late_share=0.0),
        classes=two_classes(0.5),
    )
    core.follow(told)
    core.apply(told)
    batch = [a_request(2000, 4, of_class="batch") for _ in range(4)]
    people = [a_request(40, 2, at=0.05 * number, of_class="chat") for number in range(20)]
    submitted(core, *batch, *people)
    core.run(LATER)
    assert all(one.first_token is not None and one.first_token - one.arrival <= 0.5 for one in people)
    assert all(one.fate is Fate.FINISHED for one in batch)
    counts = core.ledger.collect()
    assert counts.objectives[CHAT.id, "met"] == 20
    assert (counts.classes["batch", "finished"], counts.classes["chat", "finished"]) == (4, 20)


def test_the_least_weight_is_given_up_first() -> None:
    """Two prompts of which one can be in time: the other class is worth more, though its prompt is longer."""
    for weight, kept in ((1.0, "short"), (10.0, "long")):
        core = a_core(seqs=32, tokens=256)
        dear = replace_class(two_classes(0.5), weight=weight)
        told = a_setpoint(step=a_budget(BUDGET), on_time=OnTime(first_token_deadline_seconds=0.5), classes=dear)
        core.follow(told)
        core.apply(told)
        long = a_request(900, 2, of_class="chat")
        short = a_request(700, 2)
        submitted(core, long, short)
        core.run(LATER)
        first = "long" if (long.first_token or 0.0) < (short.first_token or 0.0) else "short"
        assert first == kept


def replace_class(classes: Classes, **changes: Any) -> Classes:
    chat, *others = classes.classes
    return classes.model_copy(update={"classes": (chat.model_copy(update=changes), *others)})


def test_gaps_are_counted_for_the_decodes_of_the_class() -> None:
    gaps = ObjectiveSpec(metric=Metric.INTER_TOKEN_LATENCY, threshold_seconds=10.0, of_class="chat")
    core = a_core(seqs=32, tokens=256)
    told = a_setpoint(objectives=[gaps], classes=two_classes(None))
    core.follow(told)
    core.apply(told)
    submitted(core, a_request(32, 11, of_class="chat"), a_request(32, 41, of_class="batch"), a_request(32, 21))
    core.run(LATER)
    assert core.ledger.collect().objectives[gaps.id, "met"] == 10
