"""All services: which miss their objectives, what is left to miss, and whether the pods carry the load."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

from flyball_lab.dashboards import panels, queries
from flyball_lab.dashboards.panels import Panel, Query
from flyball_lab.dashboards.service import DASHBOARD
from flyball_operator.prometheus.queries import UID

_NAMES: Final = {"namespace": "Namespace", "service": "Service", "name": "Objective"}
_BAD: Final = ((None, "green"), (1.0, "red"))
_LINK: Final = models.DashboardLink(
    title="Open the service",
    url=f"/d/{DASHBOARD}?var-namespace=${{__data.fields.Namespace}}&var-service=${{__data.fields.Service}}"
    "&${datasource:queryparam}&${__url_time_range}",
)


def fleet() -> builders.Dashboard:
    """The dashboard."""
    made = panels.dashboard(
        "Flyball / Fleet", "flyball-fleet", "All InferenceServices: objectives, error budgets, capacity and replicas."
    ).with_variable(
        panels.variable("namespace", f"label_values({queries.CONDITION}, namespace)", label="Namespace", several=True)
    )
    for one in (*_numbers(), _objectives(), _services(), _burn(), _load(), _capacity(), _replicas(), _cost()):
        made = made.with_panel(one)
    return made


def _counted(selector: str) -> str:
    """How many services have a condition so."""
    found = queries.operators(queries.CONDITION, f"{queries.FLEET},{selector}")
    return f"count({found}) or vector(0)"


def _numbers() -> list[Panel]:
    shown = (
        ("Services", "InferenceServices that the operator watches.", 'condition="Ready"', ()),
        ("Ready", "Services whose pods serve the spec.", 'condition="Ready",status="True"', ()),
        ("Not ready", "Services that do not.", 'condition="Ready",status!="True"', _BAD),
        ("Too little capacity", "More arrives than the pods carry at the objectives, or no load meets one.",
         'condition="CapacitySufficient",status="False"', _BAD),
        ("Not tuned", "Limits are not applied in all pods.", 'condition="Tuned",status="False"', _BAD),
        ("Not observed", "Prometheus has no believable signals of the engines.",
         'condition="MetricsAvailable",status="False"', _BAD),
    )  # fmt: skip
    return [
        panels.number(title, text, Query(_counted(selector), title), steps=steps)
        for title, text, selector, steps in shown
    ]


def _objectives() -> Panel:
    target = queries.operators(queries.TARGET, queries.FLEET, UID, "objective", "name")
    return panels.rows(
        "Services by objective",
        "Over the time shown. Error budget left: 100 % is all requests that may miss the objective, 0 % none. Below 0 %"
        " the objective is missed.",
        [
            Query(target, "Target"),
            Query(queries.attained(queries.FLEET, queries.SHOWN), "Attained"),
            Query(queries.budget_left(queries.FLEET, queries.SHOWN), "Error budget left"),
        ],
        units=dict.fromkeys(("Target", "Attained", "Error budget left"), "percentunit"),
        renamed=_NAMES,
        hidden=(UID, "objective"),
        links={"Service": _LINK},
    )


def _services() -> Panel:
    capacity, load = queries.capacity(queries.FLEET), queries.named(queries.offered(queries.FLEET))
    return panels.rows(
        "Services by capacity",
        "Capacity: requests per second that the pods carry at the objectives. Desired: replicas that the load needs.",
        [
            Query(load, "Load"),
            Query(capacity, "Capacity"),
            Query(f"{load} / {capacity}", "Used"),
            Query(queries.named(queries.pods(queries.FLEET)), "Replicas"),
            Query(_desired(), "Desired"),
        ],
        units={"Load": "reqps", "Capacity": "reqps", "Used": "percentunit"},
        renamed=_NAMES,
        links={"Service": _LINK},
    )


def _burn() -> Panel:
    return panels.lines(
        "Burn of error budgets in 1 h",
        "How many times as often as it may an objective was missed in the hour before. Above 1 it is missed in the long"
        " run; the alerts begin at 3 and 14.4.",
        [Query(queries.burn_rate(queries.FLEET, "1h"), "{{namespace}}/{{service}} {{name}}")],
    )


def _load() -> Panel:
    return panels.lines(
        "Load",
        "Requests per second that arrive, refused ones among them.",
        [Query(queries.named(queries.offered(queries.FLEET)), "{{namespace}}/{{service}}")],
        unit="reqps",
        stacked=True,
    )


def _capacity() -> Panel:
    used = f"{queries.named(queries.offered(queries.FLEET))} / {queries.capacity(queries.FLEET)}"
    return panels.lines(
        "Load against capacity",
        "Share of the capacity that the load uses. Above 100 % requests are late or refused.",
        [Query(used, "{{namespace}}/{{service}}")],
        unit="percentunit",
        most=1.0,
    )


def _replicas() -> Panel:
    return panels.lines(
        "Replicas and desired replicas",
        "Pods that are scraped, and (dashed) how many the load needs at the objectives.",
        [
            Query(queries.named(queries.pods(queries.FLEET)), "{{namespace}}/{{service}}"),
            Query(_desired(), "{{namespace}}/{{service}} desired", dashed=True),
        ],
    )


def _cost() -> Panel:
    return panels.lines(
        "Cost of a met request",
        "Seconds of a pod for each request that met all its objectives. Multiply it by what a pod costs in a second.",
        [Query(queries.named(queries.pod_seconds(queries.FLEET)), "{{namespace}}/{{service}}")],
        unit="s",
    )


def _desired() -> str:
    return queries.operators("flyball_operator_desired_replicas", queries.FLEET)
