"""Alerts that a Prometheus fires, and the first step that the page on alerts asks for."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.repository import ROOT

_PAGE = (ROOT / "docs/reference/alerts.md").read_text(encoding="utf-8")
#: The namespace of the operator on that page.
_OPERATORS = "flyball-system"
#: What commands begin with. All else is a query.
_COMMANDS = ("flyball", "kubectl")


@dataclass(frozen=True)
class Alert:
    """An alert of one of our rules, by its name and its other labels."""

    name: str
    labels: frozenset[tuple[str, str]]

    def label(self, name: str) -> str:
        """A label; empty where it has none of this name."""
        return dict(self.labels).get(name, "")

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in sorted(self.labels) if name != "severity")
        return f"{self.name} ({told})"


@dataclass
class FiringAlerts:
    """Which of our alerts fire, and when each was first seen to, on the monotonic clock."""

    prometheus: PrometheusApi
    since: dict[Alert, float] = field(default_factory=dict)

    def look(self, state: str = "firing") -> set[Alert]:
        """Those in this state now; firing ones are kept in `since`."""
        found = {
            Alert(one["labels"]["alertname"], frozenset((k, v) for k, v in one["labels"].items() if k != "alertname"))
            for one in self.prometheus.alerts()
            if one["state"] == state and one["labels"]["alertname"].startswith("Flyball")
        }
        if state == "firing":
            for alert in found:
                self.since.setdefault(alert, time.monotonic())
        return found


def first_step(alert: str) -> str:
    """The command or query that the page asks for first, as it is written there."""
    found = re.search(rf"^## {alert}\n(?:(?!## ).*\n)*?- Look at: `([^`]+)`", _PAGE, flags=re.MULTILINE)
    assert found is not None, f"the page's section on {alert} begins with no command"
    return found[1]


def carry_out(alert: Alert, *, operators: str, prometheus: PrometheusApi) -> tuple[str, str]:
    """The first step for an alert, with its labels filled in, and what came of it, in one line.

    `operators`: the namespace of the operator that it is about. Raises `AssertionError` where the step fails.
    """
    step = _filled(
        first_step(alert.name),
        {
            "NAMESPACE": alert.label("namespace"),
            "NAME": alert.label("service"),
            "POD": alert.label("pod"),
            _OPERATORS: operators,
        },
    )
    command, *arguments = shlex.split(step)
    if command not in _COMMANDS:
        return step, json.dumps(prometheus.instant(step, time.time()))
    program = [sys.executable, "-m", "flyball_operator.cli"] if command == "flyball" else [command]
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{step}: {done.stderr.strip()}"
    return step, " ".join(done.stdout.split())


def _filled(step: str, meant: Mapping[str, str]) -> str:
    return re.sub("|".join(rf"\b{name}\b" for name in meant), lambda found: meant[found[0]], step)
