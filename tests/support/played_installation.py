"""A good installation, all of it real but kubelets and GPUs: what `flyball doctor` says of it, and after each mend."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.harness.engines import ServedEngine
from flyball_lab.harness.prometheus import prometheus
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.cli.entry import main
from support.binaries import binary
from support.cluster import Object, apply, get, items, namespace
from support.discovery import annotation_job
from support.kubelet import make_ready, play_endpoints
from support.loopback_engines import served
from support.operators import RESOURCE, idle_service
from support.played_release import PlayedRelease, played_release
from support.prometheus_user import NAME, PASSWORD, WEB

Findings = list[dict[str, str]]
#: Of the Secret with the password of Prometheus.
PASSWORD_SECRET: Final = "prometheus-password"
_GOOD: Final = frozenset({"OK"})


def run_line(line: str, folder: Path) -> tuple[int, str]:
    """Run a line in a shell that has flyball, kubectl and helm, where the chart is. Returns exit code and output."""
    tools = f"{folder}:{Path(binary('helm')).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=ROOT, env=dict(os.environ) | {"PATH": tools}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def flyball_command(folder: Path) -> None:
    """Put `flyball` into a folder, as a user has it."""
    command = folder / "flyball"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flyball_operator.cli "$@"\n')
    command.chmod(0o755)


def doctor(*options: str) -> Findings:
    """What `flyball doctor` finds, by its document, without the time that another Python takes to start."""
    said = StringIO()
    with redirect_stdout(said):
        code = main(["doctor", "-o", "json", *options])
    document = json.loads(said.getvalue())
    assert document["healthy"] is (code == 0)
    found: Findings = document["checks"]
    return found


def bad(findings: Findings) -> Findings:
    """Those that are not OK."""
    return [one for one in findings if one["level"] not in _GOOD]


@dataclass(frozen=True)
class PlayedInstallation:
    """A release with one governed, scraped service `chat` in the namespace `team`."""

    release: PlayedRelease
    team: str
    prometheus_url: str
    folder: Path

    @property
    def own(self) -> str:
        """The release's namespace."""
        return self.release.own

    def options(self, team: str = "") -> tuple[str, ...]:
        """Of the command: this installation alone."""
        return "-n", team or self.team, "--operator-namespace", self.own

    def expect_named(self, check: str, level: str, *words: str, team: str = "") -> str:
        """Wait until what is first to mend is this; the command prints it and ends as documented.

        Returns the mend. `team`: the namespace that is looked at, in place of the installation's.
        """
        options = self.options(team)

        def named() -> dict[str, str] | None:
            found = bad(doctor(*options))
            for first in ([one for one in found if one["level"] == "FAIL"] or found)[:1]:
                right = (first["check"], first["level"]) == (check, level)
                return first if right and all(word in first["message"] for word in words) else None
            return None

        try:
            found = eventually(named, expecting=f"{level} {check}: {words}", every=1, within=150)
        except AssertionError as error:
            raise AssertionError(f"{error}; doctor says {bad(doctor(*options))}") from None
        code, text = self.run(" ".join(("flyball doctor", *options)))
        shown = " ".join(text.split())
        assert code == (1 if level == "FAIL" else 0), text
        assert f"{level} {check}: " in shown
        assert all(word in shown for word in words), text
        assert f"mend: {' '.join(found['mend'].split())}" in shown
        return found["mend"]

    def begin(self) -> None:
        """Well, whatever an earlier test has left."""
        if bad(doctor(*self.options())):
            self.release.restore()
            self.expect_well()

    def run(self, line: str) -> tuple[int, str]:
        """Run a line in a shell."""
        return run_line(line, self.folder)

    def mend(self, line: str) -> None:
        """Carry a printed mend out, as it stands."""
        code, text = self.run(line)
        assert code == 0, f"{line}: {text}"

    def expect_well(self, team: str = "", *, but: str = "", within: float = 150) -> None:
        """Wait until every check of doctor is OK, `but` one."""
        seen: Findings = []

        def well() -> bool:
            seen[:] = [one for one in bad(doctor(*self.options(team))) if one["check"] != but]
            return not seen

        try:
            eventually(well, expecting="all is well", every=1, within=within)
        except AssertionError as error:
            raise AssertionError(f"{error}; doctor says {seen}") from None


@contextmanager
def played_installation(folder: Path) -> Iterator[PlayedInstallation]:
    """Install and serve; gone at the end."""
    with ExitStack() as stack:
        own = stack.enter_context(namespace("flyball-doctor"))
        team = stack.enter_context(namespace("flyball-doctor-team"))
        found = {"role": "pod", "kubeconfig_file": os.environ["KUBECONFIG"], "namespaces": {"names": [team]}}
        job = replace(annotation_job([]), discovery={"kubernetes_sd_configs": [found]})
        asked = stack.enter_context(prometheus(folder, jobs=[job], web=WEB))
        make_secret(PASSWORD_SECRET, own)
        values: Object = {
            "watch": {"namespaces": [team]},
            "prometheus": {"url": asked.url, "basicAuth": {"username": NAME, "secret": PASSWORD_SECRET}},
            "tickSeconds": 1,
            "resyncSeconds": 5,
            "admissionPolicies": {"operator": True},
        }
        release = stack.enter_context(played_release(own, folder, values))
        commands = folder / "bin"
        commands.mkdir()
        flyball_command(commands)
        installation = PlayedInstallation(release, team, asked.url, commands)
        apply(idle_service(), namespace=team)
        stack.enter_context(_engine(team, folder))
        installation.expect_well()
        yield installation


def make_secret(name: str, place: str) -> None:
    """Make a Secret with the password of Prometheus."""
    data = {"password": base64.b64encode(PASSWORD.encode()).decode()}
    apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}, namespace=place)


@contextmanager
def _engine(place: str, folder: Path) -> Iterator[None]:
    """The engine of the service's one pod, which takes the keys that the operator has published."""

    def published() -> str:
        keys = get("configmap", names.PUBLIC_KEYS, namespace=place) or {}
        return str((keys.get("data") or {}).get(names.PUBLIC_KEYS_KEY) or "")

    (pod,) = eventually(lambda: items("pods", namespace=place), expecting="a pod of the service")
    keys, meta = folder / "public-keys.pem", pod["metadata"]
    keys.write_text(eventually(published, expecting="public keys"))
    service = get(RESOURCE, "chat", namespace=place)
    assert service is not None
    engine = ServedEngine(
        meta["name"], meta["uid"], service["metadata"]["uid"], Ed25519PrivateKey.generate(), CONTROL_PORT,
        public_keys=keys,
    )  # fmt: skip
    with served(engine):
        make_ready(place, meta["name"], engine.ip)
        play_endpoints(place, [pod])
        yield
