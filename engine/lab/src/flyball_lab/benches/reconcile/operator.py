"""The operator as a process of its own: its settings, what it holds, and what the API server saw of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from flyball_lab.harness.engine import SetpointSigner
from flyball_lab.harness.ports import free_port

#: Name of the process, and of its account, by which the audit log tells its requests from others'.
INSTANCE: Final = "bench-operator"
_KUBECONFIG: Final = "kubeconfig"
#: Until it has ended its writes and watches.
_END_SECONDS: Final = 60.0
#: What is read once, however long it lasts, and what a leader writes while nothing happens.
_NOT_COUNTED: Final = frozenset({"watch"})
_LEASES: Final = "leases"


@dataclass
class RunningOperator:
    """A process, and since when it runs, on the monotonic clock."""

    process: subprocess.Popen[bytes]
    port: int
    began: float = field(default_factory=time.monotonic)

    def figures(self, *names: str) -> tuple[float, ...]:
        """The sums of some of its own series, in one scrape. Raises `OSError` while it does not answer."""
        # Of thousands of services all series take a tenth of a second of what is measured.
        asked = urllib.parse.urlencode([("name[]", name) for name in names])
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics?{asked}", timeout=10) as answer:
            text = answer.read().decode()
        return tuple(
            sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, flags=re.MULTILINE))
            for name in names
        )

    def memory(self, kind: str = "VmRSS") -> float:
        """Resident memory in MiB; `VmHWM`: the most there was."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"^{kind}:\s+(\d+) kB", status, flags=re.MULTILINE)[0]) / 1024


@contextmanager
def account(namespace: str, folder: Path) -> Iterator[None]:
    """An account for the operator, and its kubeconfig in the folder. Of reads the log has those of accounts alone."""
    binding = f"{namespace}-{INSTANCE}"
    kubectl("create", "serviceaccount", INSTANCE, "--namespace", namespace)
    kubectl("delete", "clusterrolebinding", binding, "--ignore-not-found")
    kubectl(
        *("create", "clusterrolebinding", binding, "--clusterrole=cluster-admin"),
        f"--serviceaccount={namespace}:{INSTANCE}",
    )
    try:
        token = kubectl("create", "token", INSTANCE, "--namespace", namespace, "--duration=4h").strip()
        found = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        for user in found["users"]:
            user["user"] = {"token": token}
        (folder / _KUBECONFIG).write_text(yaml.safe_dump(found))
        yield
    finally:
        kubectl("delete", "clusterrolebinding", binding)


def kubectl(*words: str) -> str:
    """What a command prints. Raises `CalledProcessError`."""
    return subprocess.run(["kubectl", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def operator(namespace: str, folder: Path) -> Iterator[RunningOperator]:
    """It looks after one namespace, by the kubeconfig that `account` made in the folder, with the chart's settings."""
    key, port = folder / "key.pem", free_port()
    key.write_bytes(SetpointSigner().private_pem)
    settings = {
        "KUBECONFIG": str(folder / _KUBECONFIG),
        "MALLOC_ARENA_MAX": "1",
        "FLYBALL_NAMESPACES": namespace,
        "FLYBALL_POD_NAMESPACE": namespace,
        "FLYBALL_POD_NAME": INSTANCE,
        "FLYBALL_SIGNING_KEY_FILE": str(key),
        "FLYBALL_PLUGIN_IMAGE": "flyball.test/plugin:1",
        "FLYBALL_METRICS_PORT": str(port),
    }
    with (folder / "operator.log").open("ab") as log:
        # A group of its own: a Ctrl-C is ours to answer.
        process = subprocess.Popen(
            [sys.executable, "-m", "flyball_operator"], env=os.environ | settings, stderr=log, start_new_session=True
        )
    try:
        yield RunningOperator(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class AuditLog:
    """What the API server writes of the operator's requests from now on."""

    def __init__(self, path: Path, namespace: str) -> None:
        self._path = path
        self._user = f"system:serviceaccount:{namespace}:{INSTANCE}"
        self._from = path.stat().st_size

    def requests(self) -> tuple[Counter[str], Counter[str]]:
        """Reads, and writes but those of Leases, by `verb resource`. A watch counts as no read."""
        reads: Counter[str] = Counter()
        writes: Counter[str] = Counter()
        with self._path.open("rb") as log:
            log.seek(self._from)
            # The last line may be half written.
            for line in log.read().split(b"\n")[:-1]:
                entry = json.loads(line)
                if entry["user"].get("username") != self._user:
                    continue
                about = entry.get("objectRef") or {}
                verb, resource = entry["verb"], about.get("resource", entry.get("requestURI", ""))
                if verb in ("get", "list"):
                    reads[f"{verb} {resource}"] += 1
                elif verb not in _NOT_COUNTED and resource != _LEASES:
                    writes[f"{verb} {resource}"] += 1
        return reads, writes
