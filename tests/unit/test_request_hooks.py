"""The hooks in vLLM's output processor where it is not as expected: serving goes on, and what is lost is counted."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.batching.outcomes import End, OpenSequence, RequestLedger
from flyball_engine.vllm import requests as counting
from flyball_engine.vllm.gate import RequestGate
from flyball_engine.vllm.refusal import LATE, class_in, mark_in, told_of
from support.gates import GatedCores, no_gate


class Processor:
    """An output processor of the shape that vLLM's has."""

    def __init__(self) -> None:
        self.request_states: dict[str, Any] = {}

    def add_request(self, request: Any, prompt: str | None = None) -> str:
        self.request_states[request.request_id] = request.state
        return "added"

    def _update_stats_from_output(
        self, req_state: Any, engine_core_output: Any, engine_core_timestamp: float | None, iteration_stats: Any
    ) -> str:
        return "updated"

    def _update_stats_from_finished(self, req_state: Any, finish_reason: Any, iteration_stats: Any) -> str:
        return "finished"


@pytest.fixture
def processor() -> type[Processor]:
    """A class of its own for each test: its methods are wrapped."""
    return type("Wrapped", (Processor,), dict(vars(Processor)))


@pytest.fixture
def ledger() -> RequestLedger:
    return RequestLedger()


@pytest.fixture
def in_a_request(ledger: RequestLedger) -> Iterator[None]:
    token = counting._current.set(ledger.opened(0.0))
    yield
    counting._current.reset(token)


def state(**fields: Any) -> SimpleNamespace:
    """What the processor keeps of a generating sequence."""
    return SimpleNamespace(**{"detokenizer": object(), "prompt_len": 4, "num_cached_tokens": 1} | fields)


def sequence_of(made: Processor, sequence_state: SimpleNamespace) -> SimpleNamespace:
    request = SimpleNamespace(request_id="a", state=sequence_state)
    assert made.add_request(request, None) == "added"
    return sequence_state


def answered(
    processor: type[Processor], ledger: RequestLedger, kept: SimpleNamespace, *outputs: SimpleNamespace
) -> OpenSequence:
    """What was counted of a sequence with these outputs of the core. The processor's own methods answer as before."""
    counting._wrap(processor, counting._Feed(ledger, no_gate(), lambda: 2.0))
    made = processor()
    sequence = sequence_of(made, kept)
    for output in outputs:
        assert made._update_stats_from_output(sequence, output, 1.0, None) == "updated"
    assert made._update_stats_from_finished(sequence, SimpleNamespace(name="STOP"), None) == "finished"
    counted: OpenSequence = getattr(sequence, counting._MARK)
    return counted


@pytest.mark.usefixtures("in_a_request")
def test_tokens_reach_the_ledger_and_what_is_wrapped_answers_as_before(
    processor: type[Processor], ledger: RequestLedger
) -> None:
    counted = answered(processor, ledger, state(), SimpleNamespace(new_token_ids=[1, 2]))
    assert (counted.tokens, counted.first, counted.done) == (2, 1.0, True)
    assert (counted.request.prompt_tokens, counted.request.cached_prompt_tokens) == (4, 1)


@pytest.mark.usefixtures("in_a_request")
def test_a_prompt_that_was_loaded_counts_as_cached_whatever_was_cached_where_it_was_processed(
    processor: type[Processor], ledger: RequestLedger
) -> None:
    first = SimpleNamespace(new_token_ids=[1], prefill_stats=SimpleNamespace(num_cached_tokens=3))
    then = SimpleNamespace(new_token_ids=[2], prefill_stats=None)
    counted = answered(processor, ledger, state(num_cached_tokens=0), first, then)
    assert (counted.request.prompt_tokens, counted.request.cached_prompt_tokens) == (4, 3)


def test_a_sequence_that_the_core_refused_turns_its_request_into_a_refusal(
    processor: type[Processor], ledger: RequestLedger
) -> None:
    cores = GatedCores()
    request_gate = RequestGate(cores.gate, lambda: 0.0, lambda: 0.5, marks=True)
    counting._wrap(processor, counting._Feed(ledger, request_gate, lambda: 2.0))
    request, ticket = ledger.opened(0.0), request_gate.opened()
    token = counting._current.set(request)
    request_gate.ask({"prompt_token_ids": [1] * 10})
    params = SimpleNamespace(extra_args=None)
    made, waiting = processor(), state()
    made.add_request(SimpleNamespace(request_id="a", state=waiting, sampling_params=params), None)
    mark = mark_in(told_of(SimpleNamespace(sampling_params=params)))
    assert mark is not None
    assert (mark.number, mark.sequences, mark.waited) == (ticket.number, 1, 2.0)
    made._update_stats_from_output(waiting, SimpleNamespace(new_token_ids=[], stop_reason=LATE), 1.0, None)
    made._update_stats_from_finished(waiting, SimpleNamespace(name="ERROR"), None)
    assert (ticket.expired, ticket.retry_after) == (True, 3)
    ledger.ended(request, End.REFUSED, 2.0)
    assert {name: count for name, count in ledger.collect().requests.items() if count} == {"refused": 1}
    assert cores.gate._finished == 0, "an answer of no tokens says nothing of others"
    counting._current.reset(token)
    request_gate.closed(ticket)


@pytest.mark.parametrize(("how", "learnt"), [("STOP", True), ("LENGTH", True), ("ABORT", False), ("ERROR", False)])
def test_the_gate_learns_the_length_of_an_answer_that_came_to_its_end(
    processor: type[Processor], ledger: RequestLedger, how: str, learnt: bool
) -> None:
    gate = GatedCores().gate
    request_gate = RequestGate(gate, lambda: 0.0, lambda: 0.5)
    counting._wrap(processor, counting._Feed(ledger, request_gate, lambda: 2.0))
    token, ticket = counting._current.set(ledger.opened(0.0)), request_gate.opened()
    made = processor()
    for named, tokens in ((4, 2), (64, 50)):
        request_gate.name_length(named)
        sequence = sequence_of(made, state())
        for at in range(tokens):
            made._update_stats_from_output(sequence, SimpleNamespace(new_token_ids=[1]), float(at), None)
        for _ in range(20):
            made._update_stats_from_finished(sequence, SimpleNamespace(name=how), None)
    request_gate.closed(ticket)
    counting._current.reset(token)
    assert (gate.answers.left(10.0, 64) < 0.0) is learnt


@pytest.mark.parametrize("marks", [True, False])
def test_a_sequence_is_told_the_class_of_its_request_where_the_core_can_hear_it(
    processor: type[Processor], ledger: RequestLedger, marks: bool
) -> None:
    request_gate = RequestGate(GatedCores().gate, lambda: 0.0, lambda: 0.5, marks=marks)
    counting._wrap(processor, counting._Feed(ledger, request_gate, lambda: 2.0))
    token = counting._current.set(ledger.opened(0.0, "chat"))
    sent = SimpleNamespace(request_id="a", state=state(), sampling_params=SimpleNamespace(extra_args=None))
    processor().add_request(sent, None)
    counting._current.reset(token)
    assert class_in(told_of(sent)) == ("chat" if marks else "")


@pytest.mark.parametrize("inside", [True, False])
def test_what_a_client_wrote_in_our_place_reaches_no_core(
    processor: type[Processor], ledger: RequestLedger, inside: bool
) -> None:
    counting._wrap(processor, counting._Feed(ledger, no_gate(), lambda: 2.0))
    token = counting._current.set(ledger.opened(0.0) if inside else None)
    forged = {"flyball_refusable": [1], "flyball_class": "chat", "theirs": 1}
    sent = SimpleNamespace(request_id="a", state=state(), sampling_params=SimpleNamespace(extra_args=forged))
    processor().add_request(sent, None)
    counting._current.reset(token)
    assert sent.sampling_params.extra_args == {"theirs": 1}
    assert (mark_in(told_of(sent)), class_in(told_of(sent))) == (None, "")


@pytest.mark.usefixtures("in_a_request")
def test_pooling_requests_are_not_counted(processor: type[Processor], ledger: RequestLedger) -> None:
    counting._wrap(processor, counting._Feed(ledger, no_gate(), lambda: 2.0))
    assert not hasattr(sequence_of(processor(), state(detokenizer=None)), counting._MARK)


def test_a_sequence_outside_of_any_http_request_is_not_counted(
    processor: type[Processor], ledger: RequestLedger
) -> None:
    counting._wrap(processor, counting._Feed(ledger, no_gate(), lambda: 2.0))
    made = processor()
    sequence = sequence_of(made, state())
    assert made._update_stats_from_output(sequence, SimpleNamespace(new_token_ids=[1]), 1.0, None) == "updated"
    assert set(ledger.collect().requests.values()) == {0}


@pytest.mark.usefixtures("in_a_request")
def test_a_fault_of_ours_costs_the_count_of_one_request_and_nothing_else(
    processor: type[Processor], ledger: RequestLedger
) -> None:
    counting._wrap(processor, counting._Feed(ledger, no_gate(), lambda: 2.0))
    made = processor()
    sequence = sequence_of(made, state())
    for _ in range(3):
        assert made._update_stats_from_output(sequence, SimpleNamespace(), 1.0, None) == "updated"
    assert ledger.collect().requests["uncounted"] == 1


@pytest.mark.usefixtures("in_a_request")
def test_wrapping_again_feeds_the_newer_ledger_alone(processor: type[Processor], ledger: RequestLedger) -> None:
    older = RequestLedger()
    counting._wrap(processor, counting._Feed(older, no_gate(), lambda: 2.0))
    counting._wrap(processor, counting._Feed(ledger, no_gate(), lambda: 2.0))
    made = processor()
    sequence = sequence_of(made, state())
    made._update_stats_from_output(sequence, SimpleNamespace(new_token_ids=[1]), 1.0, None)
    assert getattr(sequence, counting._MARK).tokens == 1


def test_another_shape_of_the_processor_is_a_reason_not_a_crash(processor: type[Processor]) -> None:
    assert counting._missing(processor) is None
    processor.add_request = lambda self, prompt: None  # type: ignore[method-assign, assignment, misc]
    assert counting._missing(processor) == "OutputProcessor.add_request takes self, prompt"
    assert counting._missing(object) == "OutputProcessor has no add_request"


def test_where_there_is_no_vllm_the_reason_says_so(ledger: RequestLedger) -> None:
    reason = counting.install(ledger, app=None, request_gate=no_gate())
    assert reason is not None
    assert "vllm" in reason
