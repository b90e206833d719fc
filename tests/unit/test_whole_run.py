"""What the processes of one run of tests share: who has the machine, and what is made once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flyball_lab.harness.waiting import eventually
from support.whole_run import Machine, made_once

#: Has the machine alone, says so, and does not end.
_KEEPS = """
import sys
from pathlib import Path
from support.whole_run import Machine
with Machine(Path(sys.argv[1])).held(alone=True):
    print("mine", flush=True)
    sys.stdin.read()
"""


def waited_for(file: Path) -> bool:
    """Whether somebody has this lock."""
    with file.open("w") as ours:
        try:
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_all_share_the_machine_and_who_needs_it_alone_comes_before_those_that_came_later(tmp_path: Path) -> None:
    machine, order = Machine(tmp_path), []

    def use(*, alone: bool) -> None:
        with machine.held(alone=alone):
            order.append("alone" if alone else "shared")

    # Each opens the files anew: threads lock each other out as processes do.
    with ThreadPoolExecutor(2) as others:
        with machine.held(alone=False):
            others.submit(use, alone=False).result(timeout=60)
            first = others.submit(use, alone=True)
            eventually(lambda: waited_for(tmp_path / "turn.lock"), expecting="it waits")
            second = others.submit(use, alone=False)
            assert not first.done()
        first.result(timeout=60)
        second.result(timeout=60)
    assert order == ["shared", "alone", "shared"]


def test_of_those_that_need_it_alone_one_has_it_at_a_time(tmp_path: Path) -> None:
    machine, having = Machine(tmp_path), []

    def use(_: int) -> int:
        with machine.held(alone=True):
            having.append(1)
            seen = len(having)
            having.pop()
            return seen

    with ThreadPoolExecutor(8) as others:
        assert set(others.map(use, range(200))) == {1}


def test_a_process_that_is_killed_gives_it_back(tmp_path: Path) -> None:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _KEEPS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"mine\n"
        assert waited_for(tmp_path / "machine.lock")
        keeper.kill()
        with Machine(tmp_path).held(alone=True):
            assert keeper.wait(timeout=60) != 0


def test_what_is_made_once_is_there_for_all(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("whole")

    with ThreadPoolExecutor(8) as others:
        found = list(others.map(lambda _: (made_once(tmp_path, "thing", make) / "file").read_text(), range(8)))
    assert found == ["whole"] * 8
    assert len(made) == 1
