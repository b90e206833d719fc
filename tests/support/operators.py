"""Operators as processes of their own against the real API server, and what tests ask of their services."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from flyball_lab.harness.engine import SetpointSigner
from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.api.objects import annotation
from support.cluster import get, patch
from support.kubelet import play_kubelet

#: No node has it: pods wait for ever, and tests play the kubelet.
NOWHERE = {"flyball.test/nowhere": "true"}
RESOURCE = "inferenceservices.serving.flyball.dev"
IMAGE = "vllm/vllm-openai:v0.32.0"


_SOURCES = ("engine/src", "engine/lab/src", "operator/src", "tests")


class WallClock:
    """The wall clock of one process, which a test can step; its other clocks go on (libfaketime)."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "wall-clock-offset"
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of everybody else's; behind, where negative."""
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}")
        fresh.replace(self._offset)

    def environment(self) -> dict[str, str]:
        """What a process needs to live by this clock."""
        (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


class OperatorProcess:
    """`python3 -m flyball_operator` in one namespace, with a log and a telemetry port."""

    def __init__(
        self,
        namespace: str,
        folder: Path,
        *,
        name: str = "one",
        kubeconfig: str = "",
        command: Sequence[str] = (),
        clock: WallClock | None = None,
        **settings: str,
    ) -> None:
        self.name = f"{name}-{namespace}"
        self.port = free_port()
        self.log = folder / f"{self.name}-{self.port}.log"
        key = folder / "key.pem"
        if not key.exists():
            key.write_bytes(SetpointSigner().private_pem)
        environment = {
            "FLYBALL_NAMESPACES": namespace,
            "FLYBALL_POD_NAMESPACE": namespace,
            "FLYBALL_POD_NAME": self.name,
            "FLYBALL_SIGNING_KEY_FILE": str(key),
            "FLYBALL_PLUGIN_IMAGE": "flyball.test/plugin:1",
            "FLYBALL_METRICS_PORT": str(self.port),
            "PYTHONPATH": ":".join(
                str(ROOT / part) for part in ("engine/src", "engine/lab/src", "operator/src", "tests")
            ),
            "KUBECONFIG": kubeconfig or os.environ["KUBECONFIG"],
            **(clock.environment() if clock is not None else {}),
            **{f"FLYBALL_{setting.upper()}": value for setting, value in settings.items()},
        }
        if "watch_namespace_selector" in settings:
            del environment["FLYBALL_NAMESPACES"]
        if "signing_key_secret" in settings:
            del environment["FLYBALL_SIGNING_KEY_FILE"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("FLYBALL_")}
        if "FLYBALL_PROMETHEUS_URL" in os.environ:
            inherited["FLYBALL_PROMETHEUS_URL"] = os.environ["FLYBALL_PROMETHEUS_URL"]
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *(command or ["-m", "flyball_operator"])], env=inherited | environment, stderr=output
            )

    def readyz(self) -> tuple[int, str]:
        """What readiness says; 0 while it does not answer."""
        return self._ask("readyz")

    def healthz(self) -> tuple[int, str]:
        """What liveness says; 0 while it does not answer."""
        return self._ask("healthz")

    def watches(self, namespace: str) -> bool:
        """Whether its metrics say that a namespace is watched."""
        line = f'flyball_operator_namespace_watched{{namespace="{namespace}"}} '
        found = [text for text in self.metrics().splitlines() if text.startswith(line)]
        return bool(found) and float(found[0].removeprefix(line)) == 1

    def leaves(self, place: str) -> bool:
        """Whether it answers, and exports nothing of a namespace."""
        status, text = self._ask("metrics")
        return status == 200 and f'namespace="{place}"' not in text

    def metrics(self) -> str:
        """Its own series; an error while it does not answer."""
        return self._ask("metrics")[1]

    def _ask(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{page}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def expect_ready(self) -> None:
        """Wait until it says it is ready."""
        eventually(lambda: self.readyz()[0] == 200, expecting=f"{self.name} ready; it says {self.readyz()[1]}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it, and to it alone."""
        self.process.send_signal(number)

    def expect_exit(self, within: float = 240) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(timeout=within)

    def stop(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def trouble(self) -> list[str]:
        """What it logged as an error."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line["message"] for line in lines if line["level"] in ("ERROR", "CRITICAL") or "exception" in line]


def idle_service(name: str = "chat", **changes: Any) -> Object:
    """A service whose pods run nowhere: tests play its kubelet."""
    changes.setdefault("spec__podTemplate__nodeSelector", NOWHERE)
    changes.setdefault("spec__rollout", {"startupTimeout": "10s"})
    return good(name, **changes)


def ungoverned_service(name: str = "chat", **changes: Any) -> Object:
    """An idle service whose engines wait for no setpoint: its progress deadline is 40 s, not 130."""
    return idle_service(name, spec__engine__governed=False, spec__tuning={"mode": "Disabled"}, **changes)


def condition(namespace: str, kind: str, name: str = "chat") -> tuple[str, str, str]:
    """Status, reason and message of a condition of a service."""
    found = get("inferenceservices.serving.flyball.dev", name, namespace=namespace) or {}
    conditions = (found.get("status") or {}).get("conditions") or []
    one: Object = next((item for item in conditions if item["type"] == kind), {})
    return one.get("status", ""), one.get("reason", ""), one.get("message", "")


def expect_condition(
    namespace: str, kind: str, status: str, reason: str, *, within: float = 240, name: str = "chat"
) -> str:
    """Wait for a condition; returns its message."""
    seen: list[tuple[str, str, str]] = []

    def holds() -> tuple[str, str, str] | None:
        seen[:] = [condition(namespace, kind, name)]
        return seen[0] if seen[0][:2] == (status, reason) else None

    try:
        return eventually(holds, expecting=f"{kind}={status}/{reason}", within=within)[2]
    except AssertionError as error:
        raise AssertionError(f"{error}; it was {seen}") from None


def expect_seen(place: str) -> None:
    """Wait until what status says was decided from now on: of the generation of an edit that rolls no pod."""
    patch(RESOURCE, "chat", {"spec": {"objectives": []}}, namespace=place)
    generation = one(RESOURCE, place)["metadata"]["generation"]

    def seen() -> bool:
        status = one(RESOURCE, place).get("status") or {}
        return bool(status.get("observedGeneration") == generation)

    eventually(seen, expecting=f"generation {generation} to be seen")


def one(kind: str, place: str, name: str = "chat") -> Object:
    """An object that must be there."""
    found = get(kind, name, namespace=place)
    assert found is not None, f"no {kind} {name}"
    return found


def made(place: str, image: str = IMAGE) -> Object:
    """Wait until everything is made and claimed; returns the Deployment."""

    def settled() -> Object | None:
        found = get("deployment", "chat", namespace=place, managed=True)
        if found is None or found["spec"]["template"]["spec"]["containers"][0]["image"] != image:
            return None
        operations = {
            entry["operation"] for entry in found["metadata"]["managedFields"] if "flyball" in entry["manager"]
        }
        return found if operations == {"Apply"} else None

    found = eventually(settled, expecting=f"a Deployment with {image}")
    eventually(lambda: get("poddisruptionbudget", "chat", namespace=place), expecting="everything else")
    return found


def serve(place: str, *, image: str = IMAGE, replicas: int = 1) -> None:
    """Play the kubelet until the service as it is asked for now is Ready with this image.

    Counts and conditions of the spec before an edit are no answer: the edit would roll pods that nobody then plays.
    """

    def rolled_out() -> bool:
        play_kubelet(place, image=image)
        status = (get("deployment", "chat", namespace=place) or {}).get("status") or {}
        counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")}
        return counts == {replicas} and _says_ready(place)

    eventually(rolled_out, expecting=f"{replicas} pods of {image} Ready", within=300, every=0.5)


def _says_ready(place: str) -> bool:
    """Whether the status of the generation asked for says that all is rolled out and serves."""
    service = one("inferenceservices.serving.flyball.dev", place)
    said = {
        (item["type"], item["status"], item["reason"])
        for item in (service.get("status") or {}).get("conditions") or []
        if item["observedGeneration"] == service["metadata"]["generation"]
    }
    return {("Progressing", "True", "RolloutComplete"), ("Ready", "True", "Serving")} <= said


def expect_no_node(place: str) -> None:
    """Wait until the Deployment notes that no node takes the pods of an idle service.

    How many writes follow is then the same whether the scheduler is fast or slow.
    """

    def noted() -> str:
        return annotation(get("deployment", "chat", namespace=place) or {"metadata": {}}, names.ANNOTATION_SHORTAGE)

    eventually(noted, expecting="a note that the pods are unschedulable")


def kubeconfig_through(port: int, folder: Path) -> str:
    """A kubeconfig that reaches the API server through a proxy on the loopback."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = folder / f"kubeconfig-{port}"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def api_address() -> tuple[str, int]:
    """Host and port of the API server."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    host, _, port = config["clusters"][0]["cluster"]["server"].removeprefix("https://").partition(":")
    return host, int(port)


@contextmanager
def proxy(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A TCP proxy to the API server in a process of its own, that can be stopped; and a kubeconfig through it."""
    port = free_port()
    host, target = api_address()
    script = ROOT / "tests/support/tcp_proxy.py"
    process = subprocess.Popen([sys.executable, str(script), str(port), host, str(target)])
    try:
        eventually(lambda: _listens(port), expecting="the proxy to listen")
        yield kubeconfig_through(port, folder), process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
