"""A real Prometheus, scraping what a test serves, with the target labels that discovery gives in a cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from flyball_operator.api.names import CONTAINER_ENGINE, PORT_CONTROL
from flyball_operator.prometheus.queries import NAMESPACE, UID

_ROOT = Path(__file__).parents[2]
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Target:
    """A pod's control port, as service discovery would label it."""

    address: str
    uid: str
    namespace: str = "team"
    pod: str = "chat-0"


def binary() -> str:
    """The Prometheus to run: `hack/test` names it, else it is looked up (and built if it is missing)."""
    named = os.environ.get("FLYBALL_PROMETHEUS_BIN")
    if named:
        return named
    found = subprocess.run(
        [_ROOT / "hack/lib/binaries", "path", "prometheus"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], config: Path) -> None:
        self.url = url
        self._process = process
        self._config = config

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def freeze(self) -> None:
        """It stops answering, with its connections open."""
        self._process.send_signal(signal.SIGSTOP)
        # Until every thread of it stands still: on a busy machine one of them answers a request more.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """It answers again."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """It is gone."""
        self.thaw()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


@contextmanager
def prometheus(folder: Path, targets: Sequence[Target], *, scrape: str = "500ms") -> Iterator[Prometheus]:
    """Run Prometheus over these targets."""
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(_configuration(targets, scrape)))
    port = _free_port()
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            binary(),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            # It takes up its targets at the end of the first such interval, which is 5 s by default.
            "--scrape.discovery-reload-interval=50ms",
        ],
        stdout=log,
        stderr=log,
    )
    running = Prometheus(f"http://127.0.0.1:{port}", process, config)
    try:
        _await_ready(running.url, process, folder / "prometheus.log")
        yield running
    finally:
        running.end()
        log.close()


def _configuration(targets: Sequence[Target], scrape: str) -> dict[str, object]:
    groups = [
        {
            "targets": [target.address],
            "labels": {
                NAMESPACE: target.namespace,
                "pod": target.pod,
                "container": CONTAINER_ENGINE,
                "port": PORT_CONTROL,
                UID: target.uid,
            },
        }
        for target in targets
    ]
    return {
        "global": {"scrape_interval": scrape, "scrape_timeout": scrape},
        "scrape_configs": [{"job_name": "pods", "static_configs": groups}],
    }


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _is_ready(url):
            return
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start: {log.read_text()[-2000:]}")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
