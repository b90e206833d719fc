"""A pod of a group finds its leader, also one that is not there yet."""

from __future__ import annotations

import errno
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from flyball_engine.launch import await_leader, group
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


def test_a_worker_that_is_to_end_waits_until_its_leader_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once nobody knows the leader's name: it asks the address alone."""
    port = free_port()
    monkeypatch.setattr(group, "GROUP_PORT", port)
    group.note("127.0.0.1", tmp_path)

    def nobody(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(group, "_resolved", nobody)
    with ThreadPoolExecutor() as pool:
        with socket.create_server(("127.0.0.1", port)) as leader:
            waits = pool.submit(await_leader.await_leader, tmp_path)
            for _ in range(2):  # it looks again
                leader.accept()[0].close()
            assert not waits.done()
        waits.result(60)


FAILED = TimeoutError("timed out")
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")


@pytest.mark.parametrize(
    ("answers", "attempts"),
    [
        ([None, FAILED, FAILED, None, REFUSED], 5),
        ([FAILED, OSError(errno.EHOSTUNREACH, "no route")], 2),
        ([FAILED] * (await_leader.MOST_FAILURES - 1) + [None] + [FAILED] * 9, 2 * await_leader.MOST_FAILURES),
    ],
    ids=["refused", "no way there", "time-outs in a row"],
)
def test_one_attempt_that_times_out_ends_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[OSError | None], attempts: int
) -> None:
    asked = list[str]()

    def connect(address: str) -> None:
        asked.append(address)
        if (failure := answers[len(asked) - 1]) is not None:
            raise failure

    monkeypatch.setattr(group, "connect", connect)
    monkeypatch.setattr(await_leader, "_AGAIN_SECONDS", 0.0)
    group.note("127.0.0.1", tmp_path)
    await_leader.await_leader(tmp_path)
    assert asked == ["127.0.0.1"] * attempts


def test_a_worker_that_never_found_its_leader_waits_for_nobody(tmp_path: Path) -> None:
    await_leader.await_leader(tmp_path)
