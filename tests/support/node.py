"""The cluster's node from outside its pods: processes killed as the kernel would, containers found by their pod."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from flyball_lab.repository import ROOT
from support.cluster import Object, kubectl
from support.devices import DEVICE


def on_node(*command: str) -> str:
    """Run a command in the cluster's namespaces, as root of the node."""
    done = subprocess.run(
        [ROOT / "hack/cluster", "exec", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.strip()
    return done.stdout


def node_address() -> str:
    """The address by which this machine reaches the node."""
    (node,) = json.loads(kubectl("get", "nodes", "-l", "type!=kwok", "-o", "json"))["items"]
    return next(str(one["address"]) for one in node["status"]["addresses"] if one["type"] == "InternalIP")


@contextmanager
def devices_on_node(number: int) -> Iterator[str]:
    """The node has so many devices, which nobody looks after, for as long as the block lasts. Gives their resource."""
    (node,) = json.loads(kubectl("get", "nodes", "-l", "type!=kwok", "-o", "json"))["items"]

    def has(devices: int | None) -> None:
        # A kubelet keeps what others say of its node, but for what it says itself.
        of_node = {field: {DEVICE: None if devices is None else str(devices)} for field in ("capacity", "allocatable")}
        named = ("patch", "node", node["metadata"]["name"], "--subresource=status", "--type=merge")
        kubectl(*named, "-p", json.dumps({"status": of_node}))

    has(number)
    try:
        yield DEVICE
    finally:
        has(None)


@contextmanager
def daemon_on_node(
    program: str,
    options: Mapping[str, object],
    log: Path,
    *,
    verb: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the cluster's namespaces for as long as the block lasts; one of an earlier run is ended first.

    `verb`: what it is to do, before the options.
    """
    end_on_node(program)
    variables = [f"{name}={value}" for name, value in environment.items()]
    given = [*verb.split(), *(f"--{name}={value}" for name, value in options.items())]
    command = [str(ROOT / "hack/cluster"), "exec", *variables, program, *given]
    with log.open("wb") as to:
        process = subprocess.Popen(command, stdout=to, stderr=to)
    try:
        yield process
    finally:
        end_on_node(program)
        process.wait(60)


def end_on_node(program: str) -> None:
    """End a program in the cluster's namespaces, if it runs, by its path."""
    on_node("sh", "-c", f"pkill -f '^{program} ' || true")


def container_pid(pod: Object, *, container: str) -> int:
    """Pid of a container's first process, as the node sees it."""
    statuses = {one["name"]: one for one in pod["status"]["containerStatuses"]}
    identifier = statuses[container]["containerID"].rpartition("/")[2]
    return _pids()[identifier]


def _pids() -> dict[str, int]:
    """Pids of first processes by the identifiers of their containers."""
    rows = (row.split() for row in on_node("ctr", "-n", "k8s.io", "tasks", "list").splitlines()[1:])
    return {row[0]: int(row[1]) for row in rows}


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


def sandbox_pid(pod: Object) -> int:
    """Pid of the process that holds a pod's namespaces, whatever becomes of its containers."""
    wanted = f'labels."io.kubernetes.pod.uid"=={pod["metadata"]["uid"]},labels."io.cri-containerd.kind"==sandbox'
    (identifier,) = on_node("ctr", "-n", "k8s.io", "containers", "list", "-q", wanted).split()
    return _pids()[identifier]


@dataclass(frozen=True)
class Held:
    """What a process holds: resident memory in MiB, threads, open files; and its age in seconds."""

    memory: float
    threads: int
    files: int
    age: float


#: Memory, threads, open files and age of a process by its pid.
_HELD = "awk '/^VmRSS|^Threads/ {print $2}' /proc/$0/status; ls /proc/$0/fd | wc -l; ps -o etimes= -p $0"


def held(pod: Object, *, container: str) -> Held:
    """What a container's first process holds now."""
    memory, threads, files, age = on_node("sh", "-c", _HELD, str(container_pid(pod, container=container))).split()
    return Held(int(memory) / 1024, int(threads), int(files), float(age))
