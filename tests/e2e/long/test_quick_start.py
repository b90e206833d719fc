"""The steps of docs/quick-start.md on a cluster, as they are written there, with the example for the CPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.dashboards import files
from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_lab.tools import alerts
from support.cluster import condition, get, kubectl
from support.dashboards import empty
from support.live import RESOURCE, Flyball, helm
from support.prometheus_operator import prometheus_operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

PAGE = (ROOT / "docs/quick-start.md").read_text(encoding="utf-8")


def unindented(block: str) -> str:
    return re.sub(r"^ {4}", "", block, flags=re.MULTILINE)


def block_of(section: str) -> str:
    """The first block of a section that is in no step."""
    (found,) = re.findall(rf"^#+ {section}\n.*?^```\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return str(found)


#: Blocks of the numbered steps. The first builds and pushes images: this cluster has them.
STEPS = [unindented(block) for block in re.findall(r"^ {4}```\n(.*?)^ {4}```$", PAGE, flags=re.MULTILINE | re.DOTALL)]
_, INSTALL, SERVE, ASK, TEACH, LOOK, OPEN = STEPS
ELSEWHERE = block_of("Another Prometheus")
REMOVE = block_of("Remove it")
#: The line that another one replaces.
VALUES = re.compile(r"^ *--values .*\n", flags=re.MULTILINE)
#: Seconds until a step is through, at the most.
PATIENCE = 1500
#: What Grafana makes of its own variables for a data source that is scraped every 30 s.
GRAFANA = {"__rate_interval": "120s", "__range": "3600s"}
#: Flyball's jobs by their ports, all up.
UP = {
    ("flyball-system/flyball", "metrics"): True,
    ("flyball-system/flyball-engines", "http"): True,
    ("flyball-system/flyball-engines", "control"): True,
}
RULES = {rule.get("alert") or rule["record"] for rule in alerts.rules()}


@dataclass
class Reader:
    """Who pastes what the page says into one shell, with what it leaves open filled in."""

    shell: subprocess.Popen[str]
    log: Path
    meant: dict[str, str]
    steps: int = 0

    def follow(self, text: str) -> str:
        """Paste it, and wait until it is through; what it printed."""
        for written, meant in self.meant.items():
            text = text.replace(written, meant)
        text = re.sub(r"(?<=[/ ])chat(?= )|(?<=/)chat$", "chat-cpu", text, flags=re.MULTILINE)
        before, self.steps = len(self._printed()), self.steps + 1
        through = f"step {self.steps} is through"
        assert self.shell.stdin is not None
        self.shell.stdin.write(f"{text}\necho {through}\n")
        self.shell.stdin.flush()

        def ended() -> bool:
            return through in self._printed() or self.shell.poll() is not None

        eventually(ended, expecting=f"to be through with:\n{text}", within=PATIENCE)
        printed = self._printed()[before:]
        assert self.shell.poll() is None, f"{text}\n{printed}"
        return printed

    def _printed(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def reader(folder: Path, flyball: Flyball) -> Iterator[Reader]:
    """In a clone of the repository. What the shell has left in the background ends with it."""
    clone, log, refs = folder / "clone", folder / "shell.log", flyball.refs
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    example = clone / "docs/examples/cpu.yaml"
    example.write_text(example.read_text().replace("localhost/flyball/engine-cpu:latest", refs["engine-cpu"]))
    meant = {
        "<registry>": refs["operator"].partition("/")[0],
        "<operator-tag>": refs["operator"].rpartition(":")[2],
        "<plugin-tag>": refs["plugin"].rpartition(":")[2],
        # Another release on this cluster has the CRD.
        "--create-namespace": "--create-namespace --set crds.install=false",
        "gpu.yaml": "cpu.yaml",
        '"model": "chat"': '"model": "tiny"',
        "localhost:8000 chat": "localhost:8000 tiny",
    }
    with (
        log.open("wb") as to,
        subprocess.Popen(
            ["bash", "-e"], cwd=clone, stdin=subprocess.PIPE, stdout=to, stderr=to, text=True, start_new_session=True
        ) as shell,
    ):
        try:
            yield Reader(shell, log, meant)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)


@pytest.fixture
def operated() -> Iterator[PrometheusApi]:
    """The Prometheus of the Prometheus operator."""
    with prometheus_operator() as prometheus:
        yield prometheus


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Before and after, nothing is there of what the page makes."""

    def remove() -> None:
        with suppress(AssertionError):
            kubectl(
                "delete", RESOURCE, "chat-cpu", "-n", "default", "--ignore-not-found", "--timeout=120s", timeout=150
            )
        helm("uninstall", "flyball", "-n", "flyball-system", "--ignore-not-found", "--wait")
        kubectl("delete", "namespace", "flyball-system", "--ignore-not-found", "--timeout=180s", timeout=240)

    remove()
    yield
    remove()


def expect_tuned(reader: Reader) -> None:
    """The steps until the service is tuned."""
    reader.follow(SERVE)
    assert '"text":' in reader.follow(ASK)
    reader.follow(TEACH)
    service = get(RESOURCE, "chat-cpu", namespace="default")
    found = [condition(service, one) for one in ("MetricsAvailable", "Tuned")]
    assert [(one["status"], one["reason"]) for one in found] == [("True", "Scraped"), ("True", "Applied")], found
    assert "default/chat-cpu: mode Auto, 1 of 1 pods Ready" in reader.follow(LOOK)


def scraped(prometheus: PrometheusApi) -> dict[tuple[str, str], bool]:
    """Whether the targets of a job and port are up, of Flyball's PodMonitors."""
    found = prometheus.instant('min by (job, endpoint) (up{job=~".*/flyball.*"})', time.time())
    return {(labels["job"], labels["endpoint"]): min(values.values()) == 1 for labels, values in found}


def shipped(name: str) -> Any:
    """A dashboard as Grafana's sidecar would take it."""
    found = get("configmap", f"flyball-dashboard-{name}", namespace="flyball-system")
    assert found is not None
    (text,) = found["data"].values()
    return json.loads(text)


def unfilled(boards: Sequence[Any], prometheus: PrometheusApi) -> set[str]:
    """The queries of dashboards that find nothing, annotations in half an hour."""
    return {query for board in boards for query in empty(board, prometheus, GRAFANA, annotated=1800)}


def test_whoever_has_the_prometheus_operator_gets_a_tuned_service_with_alerts_and_dashboards(
    flyball: Flyball, operated: PrometheusApi, nothing_left: None, tmp_path: Path
) -> None:
    assert len(STEPS) <= 10
    with reader(tmp_path, flyball) as who:
        who.follow(INSTALL)
        expect_tuned(who)
        eventually(lambda: scraped(operated) == UP, expecting="each port of the PodMonitors' pods is up")
        eventually(
            lambda: {rule["name"] for rule in operated.rules() if rule["health"] == "ok"} >= RULES,
            expecting="the rules are loaded, and each was evaluated",
        )
        # Grafana is not here. What its sidecar would take up is, and its queries find something.
        listing, _ = OPEN.splitlines()
        listed = who.follow(listing)
        assert all(f"flyball-dashboard-{name}" in listed for name in files.DASHBOARDS), listed
        boards = [shipped(name) for name in files.DASHBOARDS]
        lacking = unfilled(boards, operated)

        def filled() -> bool:
            # What was found once counts.
            lacking.intersection_update(unfilled(boards, operated))
            return not lacking

        with suppress(AssertionError):
            eventually(filled, expecting="figures", within=180, every=5)
        assert not lacking, "\n".join(sorted(lacking))
        who.follow(REMOVE)


def test_whoever_has_another_prometheus_gets_a_tuned_service(
    flyball: Flyball, tmp_path: Path, nothing_left: None
) -> None:
    install, replaced = VALUES.subn(lambda _: ELSEWHERE, INSTALL)
    assert replaced == 1
    with reader(tmp_path, flyball) as who:
        who.follow(install)
        expect_tuned(who)
        who.follow(REMOVE)
