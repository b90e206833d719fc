"""A pod of a group finds its leader, also one that is not there yet."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flyball_engine.launch import group, hold
from flyball_lab.harness.ports import free_port

LEADER = group.Member(index=0, leader="127.0.0.1")
WORKER = group.Member(index=1, leader="127.0.0.1")


def test_a_worker_waits_until_its_leader_listens_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    port, said, waits = free_port(), list[str](), threading.Event()
    monkeypatch.setattr(group, "GROUP_PORT", port)

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    with ThreadPoolExecutor() as pool:
        found = pool.submit(group.leader_address, WORKER, say)
        assert waits.wait(60)
        with socket.create_server(("127.0.0.1", port)):
            assert found.result(60) == "127.0.0.1"
    assert said[0].startswith("waiting for the leader 127.0.0.1: ")


def test_a_leader_waits_for_nobody() -> None:
    assert group.leader_address(LEADER, pytest.fail)


def test_a_worker_that_is_to_end_waits_until_its_leader_has(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(group, "GROUP_PORT", port)
    with ThreadPoolExecutor() as pool:
        with socket.create_server(("127.0.0.1", port)) as leader:
            held = pool.submit(hold.hold, WORKER)
            for _ in range(2):  # it looks again
                leader.accept()[0].close()
            assert not held.done()
        held.result(60)


def test_a_worker_whose_leader_is_gone_waits_for_nobody() -> None:
    hold.hold(group.Member(index=1, leader="nobody.invalid"))
