"""The cluster's node from outside its pods: processes killed as the kernel would, containers found by their pod."""

from __future__ import annotations

import subprocess

from flyball_lab.repository import ROOT
from support.cluster import Object


def on_node(*command: str) -> str:
    """Run a command in the cluster's namespaces, as root of the node."""
    done = subprocess.run(
        [ROOT / "hack/cluster", "exec", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.strip()
    return done.stdout


def container_pid(pod: Object, *, container: str) -> int:
    """Pid of a container's first process, as the node sees it."""
    statuses = {one["name"]: one for one in pod["status"]["containerStatuses"]}
    identifier = statuses[container]["containerID"].rpartition("/")[2]
    table = on_node("ctr", "-n", "k8s.io", "tasks", "list").splitlines()[1:]
    return next(int(row.split()[1]) for row in table if row.split()[0] == identifier)


def kill_container(pod: Object, *, container: str, signal: str = "KILL") -> None:
    """Signal a container's first process from outside: a container cannot kill its own pid 1 with -9."""
    signal_process(container_pid(pod, container=container), signal)


def kill_process(pod: Object, *, container: str, named: str) -> None:
    """Kill processes of a container whose command line has this in it, as the kernel would."""
    pid = container_pid(pod, container=container)
    on_node("pkill", "-KILL", "--ns", str(pid), "--nslist", "pid", "-f", named)


def signal_process(pid: int, signal: str) -> None:
    """Signal a process by its pid on the node."""
    on_node("kill", f"-{signal}", str(pid))
