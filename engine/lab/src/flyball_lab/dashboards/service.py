"""One service: its objectives, what the tuner decides, and how well its model foresees steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders

from flyball_engine.contract import Knob, MetricName
from flyball_lab.dashboards import panels, queries
from flyball_lab.dashboards.panels import Annotation, Panel, Query
from flyball_lab.dashboards.queries import CONDITION, ENGINES, SERVICE
from flyball_operator.prometheus.queries import UID

#: The dashboard's own name, which links have.
DASHBOARD: Final = "flyball-service"
_DECISIONS: Final = "flyball_operator_decisions_total"
_CHANGED: Final = "flyball_operator_limits_changed_timestamp_seconds"
#: What was there so long ago is nothing new. No variable of Grafana's: annotations have no rate interval.
_BEFORE_SECONDS: Final = 60
_BEFORE: Final = f"{_BEFORE_SECONDS}s"


def service() -> builders.Dashboard:
    """The dashboard."""
    made = panels.dashboard(
        "Flyball / Service", DASHBOARD, "One InferenceService: objectives, limits, batch, queue and step model."
    )
    for one in variables():
        made = made.with_variable(one)
    for annotation in _annotations():
        made = made.annotation(annotation)
    made = made.with_panel(_conditions()).with_panel(_decisions())
    for title, of_row in (
        ("Objectives", (_attainment(), _budget(), _requests(), _capacity())),
        ("Limits", (_limit("Requests that may run", Knob.MAX_NUM_ACTIVE_SEQS, "max_num_seqs"),
                    _limit("Tokens in a step", Knob.MAX_NUM_SCHEDULED_TOKENS, "max_num_batched_tokens"))),
        ("Batch", (_batch(), _slots())),
        ("Queue", (_queue(), _waits(), _on_time(), _gate())),
        ("Step model", (_steps(), _model())),
    ):  # fmt: skip
        made = made.with_row(builders.Row(title))
        for panel in of_row:
            made = made.with_panel(panel)
    return made


def variables() -> list[builders.QueryVariable]:
    """The choice of a service, and its UIDs, which follow from it."""
    return [
        panels.variable("namespace", f"label_values({CONDITION}, namespace)", label="Namespace"),
        panels.variable("service", f'label_values({CONDITION}{{namespace="$namespace"}}, service)', label="Service"),
        panels.variable(
            "uid", f"label_values({queries.TARGET}{{{SERVICE}}}, {UID})", label="UID", several=True, hidden=True
        ),
    ]


def _annotations() -> list[Annotation]:
    changed = f"max by (cause) ({_CHANGED}{{{SERVICE}}}) > time() - {_BEFORE_SECONDS}"
    return [
        Annotation("Limits changed", changed, title="limits changed: {{cause}}", tags="cause", colour="blue"),
        Annotation("Limits held", _begins(_held), title="held: {{hold}}", tags="", colour="yellow"),
        Annotation(
            "Conditions", _begins(_condition), title="{{condition}} is {{status}}: {{reason}}", tags="condition",
            colour="orange",
        ),
    ]  # fmt: skip


def _begins(expression: Callable[[str], str]) -> str:
    """What is there now, and was not a moment ago."""
    return f"{expression('')} unless {expression(f' offset {_BEFORE}')}"


def _held(offset: str) -> str:
    return f'(sum by (hold) (increase({_DECISIONS}{{{SERVICE},hold!="changed"}}[{_BEFORE}]{offset})) > 0)'


def _condition(offset: str) -> str:
    return f"max by (condition, status, reason) ({CONDITION}{{{SERVICE}}}{offset})"


def _conditions() -> Panel:
    return panels.rows(
        "Conditions",
        "As status has them; `flyball explain` says more.",
        [Query(queries.operators(CONDITION, SERVICE, "condition", "status", "reason"), "Now")],
        renamed={"condition": "Condition", "status": "Status", "reason": "Reason"},
        hidden=("namespace", "service", "Value"),
        width=12,
    )


def _decisions() -> Panel:
    return panels.lines(
        "Decisions by what held the limits",
        "Ticks in which the limits moved (changed), and those in which they did not, by the reason.",
        [Query(f"sum by (hold) (increase({_DECISIONS}{{{SERVICE}}}[{queries.RATE}]))", "{{hold}}")],
        stacked=True,
    )


def _attainment() -> Panel:
    return panels.lines(
        "Attainment against target",
        "Share of requests within each objective, and (dashed) the share that it asks for.",
        [
            Query(queries.attained(ENGINES, queries.RATE), "{{name}}"),
            Query(queries.operators(queries.TARGET, SERVICE, "name"), "{{name}} target", dashed=True),
        ],
        unit="percentunit",
        most=1.0,
    )


def _budget() -> Panel:
    return panels.lines(
        "Burn of the error budget",
        "How many times as often as it may an objective was missed in the hour before, and in the 5 minutes before.",
        [
            Query(queries.burn_rate(ENGINES, "1h"), "{{name}} 1h"),
            Query(queries.burn_rate(ENGINES, "5m"), "{{name}} 5m"),
        ],
    )


def _requests() -> Panel:
    return panels.lines(
        "Requests by outcome",
        "Per second. Good: within all objectives.",
        [
            Query(queries.rate(MetricName.REQUESTS, ENGINES, "outcome"), "{{outcome}}"),
            Query(queries.rate(MetricName.ALL_OBJECTIVES_REQUESTS, f'{ENGINES},outcome="met"'), "good", dashed=True),
        ],
        unit="reqps",
    )


def _capacity() -> Panel:
    return panels.lines(
        "Load against capacity",
        "Requests per second that arrive, and (dashed) how many the pods carry at the objectives.",
        [
            Query(f"sum({queries.offered(ENGINES)})", "load"),
            Query(queries.capacity(SERVICE), "capacity", dashed=True),
        ],
        unit="reqps",
    )


def _limit(title: str, knob: Knob, ceiling: str) -> Panel:
    live = f'{ENGINES},knob="{knob}"'
    wanted = queries.operators("flyball_operator_limit", f'{SERVICE},knob="{knob}"')
    return panels.lines(
        f"{title}: {knob}",
        "What the tuner wants, the least and the most that engines run under, and (dashed) the ceiling of the start.",
        [
            Query(wanted, "wanted"),
            Query(queries.gauge(MetricName.LIMIT, live, by="min"), "least"),
            Query(queries.gauge(MetricName.LIMIT, live, by="max"), "most"),
            Query(queries.gauge(MetricName.CEILING, f'{ENGINES},knob="{ceiling}"', by="max"), "ceiling", dashed=True),
        ],
    )


def _batch() -> Panel:
    mean = (
        f"sum(rate({MetricName.BATCH_SIZE}_sum{{{ENGINES}}}[{queries.RATE}]))"
        f" / sum(rate({MetricName.BATCH_SIZE}_count{{{ENGINES}}}[{queries.RATE}]))"
    )
    return panels.lines(
        "Requests in a step",
        "Of each engine core. The quantile is interpolated between powers of two.",
        [
            Query(mean, "mean"),
            Query(queries.quantile(0.95, MetricName.BATCH_SIZE, ENGINES), "95 %"),
            Query(queries.gauge(MetricName.RUNNING, ENGINES, by="avg"), "running"),
        ],
    )


def _slots() -> Panel:
    return panels.lines(
        "Slots",
        "Mean over time of all cores: slots in use, free under the live limit, and withheld above it.",
        [Query(queries.rate(MetricName.SLOT_SECONDS, ENGINES, "state"), "{{state}}")],
        stacked=True,
    )


def _queue() -> Panel:
    return panels.lines(
        "Queue and on-time set",
        "Requests that wait, and of all those that the on-time order serves behind the others because they are late.",
        [
            Query(queries.gauge(MetricName.WAITING, ENGINES), "waiting"),
            Query(queries.gauge(MetricName.BEHIND, ENGINES), "behind"),
        ],
    )


def _waits() -> Panel:
    mean = queries.ratio(MetricName.QUEUE_SECONDS, MetricName.QUEUED_REQUESTS, f'{ENGINES},outcome="admitted"')
    return panels.lines(
        "Waits",
        "Until a request is first admitted: the mean, the oldest that waits now, and the oldest behind the others.",
        [
            Query(mean, "mean"),
            Query(queries.gauge(MetricName.OLDEST_WAITING_SECONDS, ENGINES, by="max"), "oldest"),
            Query(queries.gauge(MetricName.LONGEST_WAIT_BEHIND_SECONDS, ENGINES, by="max"), "oldest behind"),
        ],
        unit="s",
    )


def _on_time() -> Panel:
    return panels.lines(
        "Given up as late",
        "Requests per second that the on-time order moved behind the others, and those in time after all.",
        [
            Query(queries.rate(MetricName.MOVED_BEHIND, ENGINES), "moved behind"),
            Query(queries.rate(MetricName.IN_TIME_AFTER_ALL, ENGINES), "in time after all"),
        ],
        unit="reqps",
    )


def _gate() -> Panel:
    admissions = queries.rate(MetricName.ADMISSIONS, ENGINES, "decision", "reason")
    return panels.lines(
        "Gate decisions by reason",
        "Per second: what is let in, what is refused, and why. Reasons without a request are left out.",
        [Query(f"{admissions} > 0", "{{decision}} {{reason}}")],
        unit="reqps",
    )


def _steps() -> Panel:
    total = queries.rate(MetricName.STEPS, ENGINES)
    by_core = queries.rate(MetricName.STEP_SECONDS, ENGINES, "pod", "engine")
    bias = queries.gauge(MetricName.LOCAL_BIAS, ENGINES, "pod", "engine", by="max")
    return panels.lines(
        "Step time: predicted against measured",
        "Mean of all steps. Predicted: measured over the engines' own mean of measured over predicted.",
        [
            Query(queries.ratio(MetricName.STEP_SECONDS, MetricName.STEPS, ENGINES), "measured"),
            Query(f"sum({by_core} / {bias}) / {total}", "predicted"),
            Query(queries.operators("flyball_operator_step_budget_seconds", SERVICE), "budget", dashed=True),
        ],
        unit="s",
    )


def _model() -> Panel:
    return panels.lines(
        "Error of the step model",
        "Median relative error of what the tuner learnt, and how far each engine is from it. Trusted: 100 % is yes.",
        [
            Query(queries.operators("flyball_operator_model_error_ratio", SERVICE), "error"),
            Query(f"{queries.gauge(MetricName.LOCAL_BIAS, ENGINES, by='max')} - 1", "most biased engine"),
            Query(queries.operators("flyball_operator_model_trusted", SERVICE), "trusted", dashed=True),
        ],
        unit="percentunit",
    )
