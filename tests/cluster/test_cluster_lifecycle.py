"""The local cluster comes and goes without a trace, however it ends. A second one, beside any that runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CLUSTER = Path(__file__).parents[2] / "hack" / "cluster"
INDEX = "7"

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@dataclass(frozen=True, slots=True)
class Second:
    """A cluster of its own: other addresses, another folder."""

    folder: Path

    def run(self, *arguments: str, inheriting: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [CLUSTER, *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            pass_fds=inheriting,
        )

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FLYBALL_CLUSTER": "",
            "FLYBALL_CLUSTER_INDEX": INDEX,
            "FLYBALL_CLUSTER_DIR": str(self.folder),
        }

    def signal_up_at(self, line: str, what: signal.Signals) -> int:
        """`up`, sent a signal as soon as it logs `line`."""
        # Whoever runs the tests in the background ignores interrupts; a shell script inherits that and cannot undo it.
        command = ["env", "--default-signal=INT", str(CLUSTER), "up"]
        with subprocess.Popen(
            command, env=self.environment(), stderr=subprocess.PIPE, text=True, process_group=0
        ) as up:
            assert up.stderr is not None
            for written in up.stderr:
                if line in written:
                    os.killpg(up.pid, what)
                    break
            else:
                pytest.fail(f"up never said {line!r}")
            up.stderr.close()  # as if the terminal went too
            return up.wait(180)

    def traces(self) -> list[str]:
        """Whatever of it this machine still shows."""
        return [
            *(f"process {pid}" for pid in self.processes()),
            *(line for line in said("ip", "-brief", "link") if line.startswith(f"flyball{INDEX}")),
            *(line for line in said("ip", "route") if f"10.231.{INDEX}." in line or f"flyball{INDEX}" in line),
            *(line for line in said("nft", "list", "ruleset") if f"flyball{INDEX}" in line),
            *(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.folder) in line),
            *map(str, Path("/sys/fs/cgroup").glob(f"*/flyball-cluster{INDEX}")),
            *(str(path) for path in self.folder.iterdir() if path.name not in {"images", "lock"}),
        ]

    def processes(self) -> Iterator[str]:
        """Those that see the cluster's folder mounted: all of the box and of its pods."""
        for path in Path("/proc").glob("[0-9]*/mountinfo"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if str(self.folder) in path.read_text():
                    yield path.parent.name


def said(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def kept() -> Iterator[Second]:
    """The cluster whose imported images all scenarios share."""
    with tempfile.TemporaryDirectory(prefix="fly-") as folder:
        cluster = Second(Path(folder))
        try:
            yield cluster
        finally:
            cluster.run("down", "--purge")
            Path(folder).mkdir(exist_ok=True)


@pytest.fixture
def second(kept: Second) -> Iterator[Second]:
    """A cluster that is down, and will be again."""
    yield kept
    kept.run("down")


def test_up_is_healthy_and_down_leaves_nothing(second: Second) -> None:
    assert second.run("status").returncode == 1
    # As under `flock FILE hack/cluster up`: what a caller has open is not for the daemons to keep.
    with tempfile.NamedTemporaryFile() as file:
        with Path(file.name).open() as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            assert second.run("up", inheriting=(locked.fileno(),)).returncode == 0
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = second.run("status")
    assert status.returncode == 0, status.stdout
    assert "already up" in second.run("up").stderr
    assert second.run("down").returncode == 0
    assert second.traces() == []


@pytest.mark.parametrize("moment", ["starting", "API server ready", "node ready"])
def test_a_killed_up_is_removed_by_down(second: Second, moment: str) -> None:
    second.signal_up_at(f"cluster: {moment}", signal.SIGKILL)
    assert second.run("down").returncode == 0
    assert second.traces() == []


def test_an_interrupted_up_removes_itself(second: Second) -> None:
    assert second.signal_up_at("cluster: API server ready", signal.SIGINT) == 130
    assert second.traces() == []


def test_up_after_a_killed_up_starts_anew(second: Second) -> None:
    second.signal_up_at("cluster: API server ready", signal.SIGKILL)
    up = second.run("up")
    assert up.returncode == 0, up.stderr
    assert "removing what an earlier run left" in up.stderr
    assert second.run("status").returncode == 0


def test_up_after_the_box_died_starts_anew(second: Second) -> None:
    assert second.run("up").returncode == 0
    (box,) = said("pgrep", "-f", "--oldest", f"flyball-cluster={second.folder}")
    os.kill(int(box), signal.SIGKILL)
    up = second.run("up")
    assert up.returncode == 0, up.stderr
    assert second.run("status").returncode == 0
    assert second.run("down").returncode == 0
    assert second.traces() == []
