"""Where the gate stands in vLLM's API server: one decision for an HTTP request, and nothing kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flyball_engine.batching.gate import AdmissionReason, Admitted, CoreLoad
from flyball_engine.contract import Setpoint
from flyball_engine.vllm import gate as keeping
from flyball_engine.vllm.gate import AdmissionTicket, RequestGate, install_gate
from flyball_engine.vllm.refusal import Mark
from support.gates import BUSY, IDLE, GatedCores, a_policy


class Turned(Exception):  # noqa: N818 – stands for vLLM's own
    """A request was turned away."""


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> GatedCores:
    def refusal(verdict: Admitted, retry_after: int) -> Exception:
        return Turned(f"retry after {retry_after}")

    monkeypatch.setattr(keeping, "refusal", refusal)
    return GatedCores()


@pytest.fixture
def request_gate(cores: GatedCores) -> RequestGate:
    return RequestGate(cores.gate, lambda: 0.0, lambda: 0.5)


@pytest.fixture
def ticket(request_gate: RequestGate) -> Iterator[AdmissionTicket]:
    ticket = request_gate.opened()
    yield ticket
    request_gate.closed(ticket)


@pytest.fixture
def marking(cores: GatedCores) -> RequestGate:
    """A gate before cores that can refuse what they have."""
    return RequestGate(cores.gate, lambda: 0.0, lambda: 0.5, marks=True)


@pytest.fixture
def marked(marking: RequestGate) -> Iterator[AdmissionTicket]:
    ticket = marking.opened()
    yield ticket
    marking.closed(ticket)


def tokens(number: int) -> dict[str, Any]:
    return {"prompt_token_ids": [1] * number}


def counted(cores: GatedCores) -> dict[AdmissionReason, int]:
    return {reason: count for reason, count in cores.gate.counts.items() if count}


def test_what_is_late_is_turned_away_with_a_time(request_gate: RequestGate, ticket: AdmissionTicket) -> None:
    with pytest.raises(Turned):
        request_gate.ask(tokens(10_000))
    assert ticket.retry_after == 12


def test_a_request_of_several_prompts_is_decided_on_once(
    request_gate: RequestGate, cores: GatedCores, ticket: AdmissionTicket
) -> None:
    for _ in range(5):
        request_gate.ask(tokens(1500))
    assert counted(cores) == {AdmissionReason.IN_TIME: 1}
    assert ticket.prompts == 5
    assert ticket.retry_after is None


def test_prompts_outside_of_such_an_exchange_are_not_asked_about(request_gate: RequestGate, cores: GatedCores) -> None:
    request_gate.ask(tokens(10**6))
    assert counted(cores) == {}


@pytest.mark.parametrize(("load", "length"), [(BUSY, 600), (IDLE, 10_000)], ids=["in time", "late and alone"])
def test_what_was_let_in_with_a_deadline_may_be_refused_later(
    cores: GatedCores, marking: RequestGate, marked: AdmissionTicket, load: CoreLoad, length: int
) -> None:
    cores.loads = [load]
    marking.ask(tokens(length))
    assert marking.mark() == Mark(marked.number, 1)


@pytest.mark.parametrize("policy", [a_policy(trusted=False), a_policy(None)], ids=["no model", "no deadline"])
def test_what_was_let_in_for_another_reason_is_served_however_late(
    cores: GatedCores, marking: RequestGate, marked: AdmissionTicket, policy: Setpoint
) -> None:
    cores.gate.set_policy(policy, now=0.0)
    marking.ask(tokens(10_000))
    assert marking.mark() is None


def test_the_core_is_told_of_how_many_sequences_a_request_is(marking: RequestGate, marked: AdmissionTicket) -> None:
    for _ in range(2):
        marking.ask(tokens(10))
    assert [marking.mark(siblings=3) for _ in range(6)] == [Mark(marked.number, 6)] * 6


@pytest.mark.parametrize(("sequences", "marks"), [(1, True), (2, False)])
def test_of_several_cores_none_knows_all_sequences_of_a_request(cores: GatedCores, sequences: int, marks: bool) -> None:
    cores.loads = [BUSY, BUSY]
    request_gate = RequestGate(cores.gate, lambda: 0.0, lambda: 0.5, cores=lambda: 2, marks=True)
    ticket = request_gate.opened()
    request_gate.ask(tokens(10))
    assert (request_gate.mark(siblings=sequences) is not None) is marks
    assert ticket.refusable is marks, "the answer to who cannot be refused is not held back"
    request_gate.closed(ticket)


def test_what_follows_an_answer_that_has_begun_is_not_marked(marking: RequestGate, marked: AdmissionTicket) -> None:
    marking.ask(tokens(10))
    marked.refusable = False
    assert marking.mark() is None


def test_a_refusal_of_what_waited_is_counted_once_and_says_how_long_it_waited(
    cores: GatedCores, marking: RequestGate, marked: AdmissionTicket
) -> None:
    cores.gate.set_policy(a_policy(refusal_status=429), now=0.0)
    marking.ask(tokens(10))
    for _ in range(3):
        marking.expired(marked, waited=3.5)
    assert counted(cores) == {AdmissionReason.IN_TIME: 1, AdmissionReason.EXPIRED: 1}
    assert (marked.expired, marked.status, marked.retry_after) == (True, 429, 6)


@pytest.mark.parametrize("nothing", [{}, {"prompt_token_ids": None}, {"encoder_prompt": {}}, None])
def test_a_fault_of_ours_turns_nobody_away(request_gate: RequestGate, ticket: AdmissionTicket, nothing: Any) -> None:
    request_gate.ask(nothing)
    assert ticket.retry_after is None


def test_embeddings_have_a_length_too(request_gate: RequestGate, ticket: AdmissionTicket) -> None:
    with pytest.raises(Turned):
        request_gate.ask({"prompt_embeds": [[0.0]] * 10_000})


def test_where_there_is_no_vllm_the_reason_says_so(request_gate: RequestGate) -> None:
    reason = install_gate(request_gate)
    assert reason is not None
    assert "vllm" in reason
