"""VLLM's own limits of its queue: put in place as it asks for them, and only where it asks."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_engine.batching.gate import AdmissionReason
from flyball_engine.contract import QueueKnob, QueueLimits, Refusal, Setpoint
from flyball_engine.control.acceptance import SetpointRefused, judge
from flyball_engine.vllm.gate import RequestGate
from flyball_engine.vllm.queue_limiter import QueueLimiter
from flyball_lab.harness.engine import SERVICE, setpoint
from support.gates import GatedCores


class Full(Exception):  # noqa: N818 – stands for vLLM's own
    """The queue is full."""


def a_server(unfinished: int = 3, **limits: int | None) -> Any:
    """VLLM's API server, of a class of its own, with so many requests and the limits it was started with."""

    class Server:
        def __init__(self) -> None:
            self.scheduler_config = SimpleNamespace(
                **{"max_num_queued_reqs": None, "max_num_queued_tokens": None} | limits
            )
            self.shared = self.scheduler_config

        def check_admission(self, n: int = 1) -> None:
            most = self.scheduler_config.max_num_queued_reqs
            if most is not None and unfinished + n > most:
                raise Full

    return Server()


class Held:
    """A queue limiter in front of a server, at a time that the test sets."""

    def __init__(self, server: Any, *, servers: int = 1) -> None:
        self.now = 0.0
        self.server = server
        self.refused = 0
        self.queue_limiter = QueueLimiter(server, refused=self._refused, clock=lambda: self.now, servers=servers)

    def _refused(self) -> None:
        self.refused += 1

    def told(self, generation: int, **limits: int) -> None:
        self.queue_limiter.follow(a_setpoint(generation, **limits))

    def lets_in(self, n: int = 1) -> bool:
        try:
            self.server.check_admission(n)
        except Full:
            return False
        return True


def a_setpoint(generation: int, **limits: int) -> Setpoint:
    return setpoint(generation, queue=QueueLimits(**limits), expires_seconds=100.0)


def test_a_limit_holds_from_the_next_request_on_and_is_read_back() -> None:
    held = Held(a_server())
    assert held.queue_limiter.limits() == QueueLimits()
    held.told(1, max_num_queued_reqs=4)
    assert held.lets_in()
    assert not held.lets_in(n=2)
    assert held.refused == 1
    assert held.queue_limiter.limits() == QueueLimits(max_num_queued_reqs=4)


def test_what_a_setpoint_leaves_out_has_the_value_the_server_started_with() -> None:
    held = Held(a_server(max_num_queued_reqs=3, max_num_queued_tokens=900))
    assert not held.lets_in()
    held.told(1, max_num_queued_reqs=10)
    assert held.lets_in()
    assert held.queue_limiter.limits() == QueueLimits(max_num_queued_reqs=10, max_num_queued_tokens=900)
    held.told(2)
    assert not held.lets_in()


def test_an_expired_setpoint_holds_for_nobody() -> None:
    held = Held(a_server())
    held.told(1, max_num_queued_reqs=1)
    assert not held.lets_in()
    held.now = 100.0
    assert held.lets_in()
    assert held.queue_limiter.limits() == QueueLimits()


def test_each_of_several_servers_holds_its_part_of_a_limit() -> None:
    held = Held(a_server(max_num_queued_tokens=900), servers=4)
    held.told(1, max_num_queued_reqs=14)
    assert held.lets_in(), "the fourth of four"
    assert not held.lets_in(n=2)
    assert held.queue_limiter.limits() == QueueLimits(max_num_queued_reqs=14, max_num_queued_tokens=3600)


def test_the_configuration_that_others_share_stays_as_it_is() -> None:
    server = a_server()
    Held(server).told(1, max_num_queued_reqs=1, max_num_queued_tokens=5)
    assert server.shared == SimpleNamespace(max_num_queued_reqs=None, max_num_queued_tokens=None)


def test_another_backstop_replaces_the_one_before() -> None:
    server = a_server()
    first, second = Held(server), Held(server)
    second.told(1, max_num_queued_reqs=1)
    assert not second.lets_in()
    assert (first.refused, second.refused) == (0, 1)


@pytest.mark.parametrize("lacking", ["check_admission", "scheduler_config", "max_num_queued_reqs"])
def test_what_a_version_lacks_is_refused_by_name(lacking: str) -> None:
    server = a_server()
    for owner in (server.scheduler_config, server, type(server)):
        if lacking in vars(owner):
            delattr(owner, lacking)
    queue_limiter = QueueLimiter(server, refused=lambda: None, clock=lambda: 0.0)
    queue_limiter.follow(setpoint(1))
    offer = functools.partial(judge, held=None, service=SERVICE, unsupported=queue_limiter.unsupported)
    with pytest.raises(SetpointRefused, match=r"queue\.max_num_queued_reqs: this vLLM has no such limit") as refused:
        offer(offered=a_setpoint(1, max_num_queued_reqs=4))
    assert refused.value.refusal is Refusal.UNSUPPORTED
    offer(offered=setpoint(1))
    if lacking == "max_num_queued_reqs":
        offer(offered=a_setpoint(1, max_num_queued_tokens=4))
    else:
        assert set(queue_limiter.unsupported) == set(QueueKnob)
        assert queue_limiter.limits() is None


def test_what_vllm_refuses_is_counted_once_and_told_to_come_back() -> None:
    cores = GatedCores()
    request_gate = RequestGate(cores.gate, lambda: 0.0, lambda: 0.5)
    request_gate.overflowed()  # outside of a request for tokens nobody was refused
    ticket = request_gate.opened()
    request_gate.overflowed()
    request_gate.overflowed()
    request_gate.closed(ticket)
    assert ticket.retry_after == 8, "spread, as those that the gate refuses"
    assert {reason: count for reason, count in cores.gate.counts.items() if count} == {AdmissionReason.QUEUE_FULL: 1}
