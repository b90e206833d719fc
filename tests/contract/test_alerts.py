"""Which alert fires in which outage, and that no other does: the rule file, evaluated by Prometheus' own promtool."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_engine.contract import MetricName
from flyball_lab.tools import alerts, metrics
from flyball_operator.cli.main import parser
from support.binaries import binary
from support.firing_alerts import first_step
from support.helm import of_kind, render

#: A service whose objective asks for 99 %, and its pod.
SERVICE = 'namespace="team-a", service="chat"'
POD = 'namespace="team-a", pod="chat-1", serving_flyball_dev_service_uid="u1"'
OBJECTIVE = f'{POD}, objective="TimeToFirstToken/0.5"'
TARGET = (
    f'flyball_operator_objective_target_ratio{{{SERVICE}, serving_flyball_dev_service_uid="u1",'
    ' objective="TimeToFirstToken/0.5", name="first-token"}'
)

#: Whether another release's operator leads.
OTHER_RELEASE = 'flyball_operator_leader{namespace="flyball-b", job="flyball-b/flyball"}'


def condition(kind: str, status: str, reason: str) -> str:
    return f'flyball_operator_condition{{{SERVICE}, condition="{kind}", status="{status}", reason="{reason}"}}'


def requests(outcome: str) -> str:
    return f'flyball_objective_requests_total{{{OBJECTIVE}, outcome="{outcome}"}}'


def pushes(outcome: str) -> str:
    return f'flyball_operator_pushes_total{{{SERVICE}, outcome="{outcome}"}}'


#: All is well: each series with its value, and what it grows by each minute.
CALM: dict[str, tuple[float, float]] = {
    "flyball_operator_leader": (1, 0),
    OTHER_RELEASE: (1, 0),
    'flyball_operator_shard_held{shard="0"}': (1, 0),
    'flyball_operator_services_by_template{standing="failed"}': (0, 0),
    "flyball_operator_resync_age_seconds": (30, 0),
    'flyball_operator_namespace_watched{namespace="team-a"}': (1, 0),
    "flyball_operator_public_keys_unpublished": (0, 0),
    "flyball_operator_signing_key_age_seconds": (86_400, 60),
    'flyball_operator_reconciles_total{outcome="ok"}': (0, 60),
    'flyball_operator_reconciles_total{outcome="bug"}': (0, 0),
    f"flyball_operator_service_failures_total{{{SERVICE}}}": (0, 0),
    f"flyball_operator_tick_age_seconds{{{SERVICE}}}": (3, 0),
    f"flyball_operator_decision_age_seconds{{{SERVICE}}}": (3, 0),
    f"flyball_operator_tuning_paused{{{SERVICE}}}": (0, 0),
    f"flyball_operator_slow_pods{{{SERVICE}}}": (0, 0),
    pushes("applied"): (0, 4),
    pushes("Unreachable"): (0, 0),
    condition("Available", "True", "EndpointsReady"): (1, 0),
    condition("Ready", "True", "Serving"): (1, 0),
    condition("MetricsAvailable", "True", "Scraped"): (1, 0),
    condition("Tuned", "True", "Applied"): (1, 0),
    condition("CapacitySufficient", "True", "Sufficient"): (1, 0),
    TARGET: (0.99, 0),
    requests("met"): (0, 1000),
    requests("violated"): (0, 1),
    f'flyball_admissions_total{{{POD}, decision="admitted", reason="ok"}}': (0, 1000),
    f'flyball_admissions_total{{{POD}, decision="refused", reason="late"}}': (0, 0),
    f"flyball_kv_cache_usage{{{POD}}}": (0.6, 0),
    f"flyball_watchdog_trips_total{{{POD}}}": (0, 0),
    f'flyball_retunes_total{{{POD}, outcome="expired"}}': (0, 0),
}
READY = condition("Ready", "True", "Serving")
#: Of a series that is not there.
GONE = None

Change = dict[str, tuple[float, float] | None]
#: The outage, what it changes from 2 h on, minutes after which it is looked at, and what fires then.
OUTAGES: list[tuple[str, Change, int, set[str]]] = [
    ("all is well", {}, 100, set()),
    ("one request in 20 is late", {requests("violated"): (0, 50)}, 400, {"FlyballObjectiveBurnsSlowly"}),
    ("a third is late", {requests("violated"): (0, 500)}, 60, {
        "FlyballObjectiveBurnsFast", "FlyballObjectiveBurnsSlowly",
    }),
    ("more arrives than is carried", {
        condition("CapacitySufficient", "True", "Sufficient"): GONE,
        condition("CapacitySufficient", "False", "Overloaded"): (1, 0),
    }, 20, {"FlyballCapacityShort"}),
    ("an objective that nothing meets", {
        condition("CapacitySufficient", "True", "Sufficient"): GONE,
        condition("CapacitySufficient", "False", "Infeasible"): (1, 0),
    }, 70, {"FlyballObjectiveInfeasible"}),
    ("one in ten is refused", {
        f'flyball_admissions_total{{{POD}, decision="refused", reason="late"}}': (0, 110),
    }, 30, {"FlyballRequestsRefused"}),
    ("one in ten is refused while no operator is there", {
        f'flyball_admissions_total{{{POD}, decision="refused", reason="late"}}': (0, 110),
        TARGET: GONE,
    }, 30, {"FlyballRequestsRefused"}),
    ("every pod is gone", {
        condition("Available", "True", "EndpointsReady"): GONE,
        condition("Available", "False", "NodeUnavailable"): (1, 0),
        READY: GONE,
        condition("Ready", "False", "NodeUnavailable"): (1, 0),
    }, 10, {"FlyballServiceUnavailable"}),
    ("scaled to zero", {
        condition("Available", "True", "EndpointsReady"): GONE,
        condition("Available", "False", "ScaledToZero"): (1, 0),
    }, 100, set()),
    ("a rollback", {
        READY: GONE,
        condition("Ready", "False", "RolledBack"): (1, 0),
        condition("Stalled", "True", "RolledBack"): (1, 0),
    }, 60, {"FlyballRolloutFailed"}),
    ("no device is free", {
        READY: GONE,
        condition("Ready", "False", "Unschedulable"): (1, 0),
    }, 40, {"FlyballRolloutWaits"}),
    ("a gateway refuses the route", {
        condition("Routed", "False", "RefusedByGateway"): (1, 0),
    }, 40, {"FlyballNotRouted"}),
    ("an adapter cannot be downloaded", {
        condition("AdaptersLoaded", "False", "LoadFailed"): (1, 0),
    }, 60, {"FlyballAdaptersNotLoaded"}),
    ("a rollout brings the first adapters for an hour", {
        condition("AdaptersLoaded", "False", "StartedWithoutAdapters"): (1, 0),
        condition("Progressing", "True", "RollingOut"): (1, 0),
    }, 60, set()),
    ("a new revision is judged for hours", {
        READY: GONE,
        condition("Ready", "False", "CanaryAnalysis"): (1, 0),
    }, 100, set()),
    ("a new revision cannot be judged", {
        READY: GONE,
        condition("Ready", "False", "CanaryNotJudged"): (1, 0),
    }, 40, {"FlyballRolloutWaits"}),
    ("Prometheus loses the pods", {
        condition("MetricsAvailable", "True", "Scraped"): GONE,
        condition("MetricsAvailable", "False", "NotScraped"): (1, 0),
        condition("Tuned", "True", "Applied"): GONE,
        condition("Tuned", "False", "NotDeciding"): (1, 0),
        f"flyball_operator_decision_age_seconds{{{SERVICE}}}": (20, 60),
    }, 40, {"FlyballMetricsLost"}),
    ("a policy closes the control ports, which are scraped, too", {
        condition("MetricsAvailable", "True", "Scraped"): GONE,
        condition("MetricsAvailable", "False", "NotScraped"): (1, 0),
        condition("Tuned", "True", "Applied"): GONE,
        condition("Tuned", "False", "EngineUnreachable"): (1, 0),
    }, 40, {"FlyballMetricsLost", "FlyballNotTuned"}),
    ("an engine takes no setpoint", {
        condition("Tuned", "True", "Applied"): GONE,
        condition("Tuned", "False", "PushFailed"): (1, 0),
        pushes("Unreachable"): (0, 6),
    }, 20, {"FlyballNotTuned", "FlyballPushesFail"}),
    ("it still learns", {
        condition("Tuned", "True", "Applied"): GONE,
        condition("Tuned", "False", "Learning"): (1, 0),
    }, 100, set()),
    ("a pause that was forgotten", {
        f"flyball_operator_tuning_paused{{{SERVICE}}}": (1, 0),
    }, 1450, {"FlyballTuningPaused"}),
    ("a slow pod", {f"flyball_operator_slow_pods{{{SERVICE}}}": (1, 0)}, 40, {"FlyballSlowPods"}),
    ("a full cache", {f"flyball_kv_cache_usage{{{POD}}}": (0.99, 0)}, 40, {"FlyballKVCacheFull"}),
    ("requests stood still", {f"flyball_watchdog_trips_total{{{POD}}}": (1, 0)}, 5, {"FlyballWatchdogTripped"}),
    ("a setpoint ran out", {
        f'flyball_retunes_total{{{POD}, outcome="expired"}}': (1, 0),
    }, 5, {"FlyballSetpointExpired"}),
    ("nobody leads", {"flyball_operator_leader": (0, 0), OTHER_RELEASE: (0, 0)}, 5, {"FlyballOperatorAway"}),
    ("no operator is there", {"flyball_operator_leader": GONE, OTHER_RELEASE: GONE}, 100, {"FlyballOperatorAway"}),
    ("nobody leads of one release of two", {OTHER_RELEASE: (0, 0)}, 5, {"FlyballOperatorAway"}),
    ("one release's operator of two is gone", {OTHER_RELEASE: GONE}, 10, {"FlyballOperatorAway"}),
    ("one release of two was uninstalled long ago", {OTHER_RELEASE: GONE}, 70, set()),
    ("the tuner hangs", {
        f"flyball_operator_tick_age_seconds{{{SERVICE}}}": (100, 60),
    }, 5, {"FlyballTunerStalled"}),
    ("nothing is decided", {
        f"flyball_operator_decision_age_seconds{{{SERVICE}}}": (400, 60),
    }, 15, {"FlyballNotDeciding"}),
    ("a namespace is taken away", {
        'flyball_operator_namespace_watched{namespace="team-a"}': (0, 0),
    }, 10, {"FlyballNamespaceNotWatched"}),
    ("the API server gives no lists", {"flyball_operator_resync_age_seconds": (1000, 60)}, 10, {"FlyballListsStale"}),
    ("a shard that nobody holds", {
        'flyball_operator_shard_held{shard="0"}': (0, 0),
    }, 5, {"FlyballShardWithoutLeader"}),
    ("an adoption that fails", {
        'flyball_operator_services_by_template{standing="failed"}': (1, 0),
        condition("TemplateOutdated", "True", "AdoptionFailed"): (1, 0),
        READY: GONE,
        condition("Ready", "False", "RolledBack"): (1, 0),
        condition("Stalled", "True", "RolledBack"): (1, 0),
    }, 40, {"FlyballAdoptionFailed"}),
    ("a ConfigMap of keys is somebody else's", {
        "flyball_operator_public_keys_unpublished": (1, 0),
    }, 10, {"FlyballPublicKeysNotWritten"}),
    ("the key is not rotated", {
        "flyball_operator_signing_key_age_seconds": (61 * 86_400, 60),
    }, 70, {"FlyballSigningKeyOld"}),
    ("a bug in the reconciler", {
        'flyball_operator_reconciles_total{outcome="bug"}': (0, 2),
    }, 10, {"FlyballOperatorFails"}),
]  # fmt: skip

#: Minutes for which all is well before.
BEFORE = 120


def series(changes: Change, minutes: int) -> list[dict[str, str]]:
    """Values of each minute, as promtool's tests are written."""
    found = []
    for name in dict.fromkeys((*CALM, *changes)):
        calm, after = CALM.get(name), changes.get(name, CALM.get(name))
        first = f"_ _x{BEFORE - 1}" if calm is None else f"{calm[0]}+{calm[1]}x{BEFORE - 1}"
        if after is None:
            then = "stale"
        elif after == calm:
            then = f"{calm[0] + calm[1] * BEFORE}+{calm[1]}x{minutes}"
        else:
            base = calm[0] + calm[1] * (BEFORE - 1) if calm is not None and name.split("{")[0].endswith("_total") else 0
            then = f"{base + after[0]}+{after[1]}x{minutes}"
        found.append({"series": name, "values": f"{first} {then}"})
    return found


#: Minutes of a leader of before that end when a new one takes over, until its series are there, and before the look.
GAP, SINCE = 2, 3
#: What begins anew with a new leader: its tuner has just looked at the service.
BEGINS_ANEW = {"FlyballTunerStalled"}


def moved(found: list[dict[str, str]], at: int) -> list[dict[str, str]]:
    """The same, but another replica takes over at a minute: series of services and their count are its own then."""
    return [
        one
        for whole in found
        for one in (
            _both(whole, at) if re.match(r"flyball_operator_.*(service=|by_template)", whole["series"]) else [whole]
        )
    ]


def _both(whole: dict[str, str], at: int) -> list[dict[str, str]]:
    values = _expanded(whole["values"])
    before, after = values[:at], values[at + GAP :]
    if "_total{" in whole["series"]:
        first = float(after[0])
        after = [f"{float(value) - first:g}" for value in after]
    old, new = (whole["series"].replace("{", f'{{pod="{pod}", ', 1) for pod in ("old", "new"))
    return [
        {"series": old, "values": " ".join([*before, "stale"])},
        {"series": new, "values": " ".join([*("_" for _ in range(at + GAP)), *after])},
    ]


def _expanded(values: str) -> list[str]:
    """Each value by itself, of what promtool writes as 1+2x3."""
    found: list[str] = []
    for part in values.split():
        if (run := re.fullmatch(r"(-?[\d.]+)\+(-?[\d.]+)x(\d+)", part)) is not None:
            first, step, number = float(run[1]), float(run[2]), int(run[3])
            found += [f"{first + step * turn:g}" for turn in range(number + 1)]
        elif (run := re.fullmatch(r"_x(\d+)", part)) is not None:
            found += ["_"] * int(run[1])
        else:
            found.append(part)
    return found


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [binary("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", "--lint=all", "--lint-fatal", alerts.RULES)


@pytest.mark.parametrize(
    "takes_over",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["one leader", "another takes over just before the look"],
)
def test_each_outage_raises_its_alerts_and_no_others(tmp_path: Path, takes_over: bool) -> None:
    tests = [
        {
            "name": outage,
            "interval": "1m",
            "input_series": moved(found, BEFORE + minutes - GAP - SINCE) if takes_over else found,
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{BEFORE + minutes}m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
                }
            ],
        }
        for outage, changes, minutes, expected in OUTAGES
        for found in [series(changes, minutes)]
        if not takes_over or not expected & BEGINS_ANEW
    ]
    path = tmp_path / "alerts.test.yaml"
    # JSON is YAML; thousands of values are written in no time.
    path.write_text(json.dumps({"rule_files": [str(alerts.RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", path)


def test_there_is_an_outage_for_each_alert() -> None:
    fired = {name for *_, expected in OUTAGES for name in expected}
    assert fired == {rule["alert"] for rule in alerts.rules() if "alert" in rule}


@pytest.mark.parametrize("rule", alerts.rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_for_metrics_that_there_are(rule: dict[str, Any]) -> None:
    expect_known_metrics(rule["expr"])


def expect_one_service(arguments: list[str]) -> None:
    """`flyball` takes them, and they name both of a service."""
    found = parser().parse_args([{"NAME": "chat", "NAMESPACE": "team"}.get(one, one) for one in arguments])
    assert (found.name, found.namespace) == ("chat", "team")


def expect_known_metrics(query: str) -> None:
    known = set(re.findall(r"^\| `(flyball_\w+)` ", metrics.metrics_page(), flags=re.MULTILINE)) | set(MetricName)
    asked = set(re.findall(r"\bflyball_\w+", re.sub(r"flyball_dev\w*", "", query)))
    recorded = {one["record"] for one in alerts.rules() if "record" in one}
    assert asked <= known
    assert set(re.findall(r"flyball:\w+:\w+", query)) <= recorded


@pytest.mark.parametrize("alert", [rule["alert"] for rule in alerts.rules() if "alert" in rule])
def test_where_to_look_begins_with_a_command_or_a_query(alert: str) -> None:
    step = first_step(alert)
    command, *arguments = shlex.split(step)
    if command == "flyball":
        expect_one_service(arguments)
    elif command != "kubectl":
        promtool("promql", "format", step, "--experimental")
        expect_known_metrics(step)


def test_commands_in_what_to_do_name_the_service() -> None:
    actions = [rule["annotations"]["action"] for rule in alerts.rules() if "alert" in rule]
    commands = [command for action in actions for command in re.findall(r"`flyball ([^`]+)`", action)]
    assert commands
    for command in commands:
        expect_one_service(shlex.split(command))


def test_the_chart_installs_the_rules_where_they_are_asked_for() -> None:
    assert not of_kind(render({}), "PrometheusRule")
    (made,) = of_kind(
        render({"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "k"}}}}), "PrometheusRule"
    )
    assert made["metadata"]["labels"]["release"] == "k"
    assert made["spec"] == yaml.safe_load(alerts.RULES.read_text())
