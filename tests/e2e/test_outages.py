"""What goes on when a part is away: engine, operator, Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import kubectl, patch, throughout
from support.engine_starts import EngineStarts
from support.live import RESOURCE, Service
from support.node import kill_process

pytestmark = pytest.mark.cluster


@contextmanager
def pinned(chat: Service, seqs: int) -> Iterator[None]:
    """The number of active requests pinned by the bounds, for as long as the block lasts."""
    bounds = {"maxNumActiveSeqs": {"min": seqs, "max": seqs}}
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"mode": "Auto", "bounds": bounds}}}, namespace=chat.namespace)
    try:
        eventually(lambda: chat.effective()["max_num_active_seqs"] == seqs, expecting=f"{seqs} requests at once")
        yield
    finally:
        patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)


def test_a_killed_engine_core_is_named_and_its_engine_gets_its_setpoint_back(
    chat: Service, starts: EngineStarts, note_figure: Callable[[str], None]
) -> None:
    with pinned(chat, 11):
        before = chat.pod()
        restarts = before["status"]["containerStatuses"][0]["restartCount"]
        generation = chat.tuning()["generation"]
        kill_process(before, container="engine", named="EngineCore")
        message = chat.expect_condition("Available", "False", reason="EngineFailed")["message"]
        note_figure(message)
        assert "ended at" in message
        assert "exit code" in message
        starts.ask_next()

        def back() -> bool:
            pod = chat.pod()
            status = pod["status"]["containerStatuses"][0]
            return bool(status["ready"] and status["restartCount"] > restarts)

        eventually(back, expecting="the engine container restarted and is ready", within=420)
        ready = time.monotonic()
        eventually(lambda: chat.effective()["max_num_active_seqs"] == 11, expecting="the setpoint is back", within=240)
        note_figure(f"the setpoint was back {time.monotonic() - ready:.1f} s after the engine was seen Ready again")
        assert chat.pod()["metadata"]["uid"] == before["metadata"]["uid"]
        assert chat.read_back()["cores"][0]["applied"]["generation"] >= generation
        chat.expect_governed()


@pytest.mark.long  # a real Prometheus that goes away is in tests/contract, too
def test_limits_hold_while_prometheus_is_away(chat: Service) -> None:
    chat.expect_condition("MetricsAvailable", "True")
    pod = chat.pod()
    kubectl("scale", "deployment", "prometheus", "-n", "monitoring", "--replicas=0")
    try:
        chat.expect_condition("MetricsAvailable", "False", within=180)
        held = chat.effective()
        # Three looks of the tuner.
        throughout(lambda: chat.effective() == held, expecting="the limits hold", seconds=15, every=1)
    finally:
        kubectl("scale", "deployment", "prometheus", "-n", "monitoring", "--replicas=1")
    chat.expect_condition("MetricsAvailable", "True", within=240)
    assert chat.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
