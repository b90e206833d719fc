"""What the harness does with vLLM's processes, with a script in vLLM's place."""

from __future__ import annotations

from pathlib import Path

from flyball_lab.harness.vllm_server import started
from flyball_lab.harness.waiting import eventually


def test_what_a_server_that_died_left_running_ends_with_it(tmp_path: Path) -> None:
    left, python = tmp_path / "left", tmp_path / "python"
    # The first process dies, as one does that is killed, and its engine core knows nothing of it.
    python.write_text(f'#!/bin/sh\nsleep 600 &\necho $! >"{left}.new"\nmv "{left}.new" "{left}"\n')
    python.chmod(0o755)
    with started(str(python), tmp_path, model=tmp_path, plugin=tmp_path) as server:
        assert server.process.wait(60) == 0
        core = Path(f"/proc/{left.read_text().strip()}/stat")
        assert core.exists()
    eventually(lambda: not core.exists() or core.read_text().rpartition(")")[2].split()[0] == "Z", expecting="its end")


def test_a_server_that_left_nothing_is_no_failure(tmp_path: Path) -> None:
    with started("/bin/true", tmp_path, model=tmp_path, plugin=tmp_path) as server:
        assert server.process.wait(60) == 0
