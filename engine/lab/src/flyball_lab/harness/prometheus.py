"""A real Prometheus, scraping what a test serves, with the target labels that discovery gives in a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flyball_lab.harness.ports import free_port
from flyball_lab.repository import ROOT
from flyball_operator.prometheus.queries import NAMESPACE, UID

_START_SECONDS = 60.0
_READY = "Server is ready to receive web requests"
ADDRESS = "__address__"


@dataclass(frozen=True)
class ScrapeTarget:
    """A pod's control port, as service discovery would label it."""

    address: str
    uid: str
    namespace: str = "team"
    pod: str = "chat-0"

    def labels(self) -> dict[str, str]:
        """Its labels, which have a target's address among them."""
        return {ADDRESS: self.address, NAMESPACE: self.namespace, "pod": self.pod, UID: self.uid}


@dataclass(frozen=True)
class ScrapeJob:
    """A scrape job: its targets as discovery labels them, or where it finds them, and what it makes of the labels."""

    name: str
    targets: Sequence[Mapping[str, str]]
    relabelings: Sequence[Mapping[str, Any]] = ()
    honor_labels: bool = False
    scrape: str | None = None
    discovery: Mapping[str, Any] | None = None

    def configuration(self) -> dict[str, Any]:
        """As Prometheus' configuration has it."""
        groups = [
            {"targets": [labels[ADDRESS]], "labels": {k: v for k, v in labels.items() if k != ADDRESS}}
            for labels in self.targets
        ]
        times = {} if self.scrape is None else {"scrape_interval": self.scrape, "scrape_timeout": self.scrape}
        return {
            "job_name": self.name,
            "honor_labels": self.honor_labels,
            **(self.discovery or {"static_configs": groups}),
            "relabel_configs": list(self.relabelings),
            **times,
        }


def binary() -> str:
    """The Prometheus to run: `hack/test` names it, else it is looked up (and built if it is missing)."""
    named = os.environ.get("FLYBALL_PROMETHEUS_BIN")
    if named:
        return named
    found = subprocess.run(
        [ROOT / "hack/lib/binaries", "path", "prometheus"], check=True, capture_output=True, text=True
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

    def targets(self) -> list[dict[str, str]]:
        """The labels of the targets that it scrapes, with where and with what came of it."""
        with urllib.request.urlopen(f"{self.url}/api/v1/targets?state=active", timeout=10) as response:
            found = json.load(response)["data"]["activeTargets"]
        return [target["labels"] | {"url": target["scrapeUrl"], "health": target["health"]} for target in found]

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
def prometheus(
    folder: Path,
    targets: Sequence[ScrapeTarget] = (),
    *,
    jobs: Sequence[ScrapeJob] = (),
    scrape: str = "500ms",
    web: Mapping[str, Any] | None = None,
) -> Iterator[Prometheus]:
    """Run Prometheus over these targets, and with these jobs; `web` is its own configuration of users and TLS."""
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(_configuration(targets, jobs, scrape)))
    web_config = folder / "web.yml"
    web_config.write_text(yaml.safe_dump(dict(web or {})))
    port = free_port()
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            binary(),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--web.config.file={web_config}",
            # It takes up its targets at the end of the first such interval, which is 5 s by default.
            "--scrape.discovery-reload-interval=50ms",
        ],
        stdout=log,
        stderr=log,
    )
    scheme = "https" if web and "tls_server_config" in web else "http"
    running = Prometheus(f"{scheme}://127.0.0.1:{port}", process, config)
    try:
        _await_ready(process, folder / "prometheus.log")
        yield running
    finally:
        running.end()
        log.close()


def _configuration(targets: Sequence[ScrapeTarget], jobs: Sequence[ScrapeJob], scrape: str) -> dict[str, object]:
    pods = ScrapeJob("pods", [target.labels() for target in targets])
    return {
        "global": {"scrape_interval": scrape, "scrape_timeout": scrape},
        "scrape_configs": [job.configuration() for job in (pods, *jobs) if job.targets or job.discovery],
    }


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """It may answer none but its users, so what it says of itself is read."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _READY in log.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start: {log.read_text()[-2000:]}")
