"""The pods of one service, side by side: which is slow, which is full, which refuses."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders

from flyball_engine.contract import Knob, MetricName
from flyball_lab.dashboards import panels, queries
from flyball_lab.dashboards.panels import Panel, Query
from flyball_lab.dashboards.queries import ENGINES, PODS, SERVICE
from flyball_lab.dashboards.service import variables

_POD: Final = "{{pod}}"


def engines() -> builders.Dashboard:
    """The dashboard."""
    made = panels.dashboard(
        "Flyball / Engines", "flyball-engines", "The pods of one InferenceService: steps, KV cache, gate and setpoints."
    )
    pod = panels.variable("pod", f"label_values({MetricName.RUNNING}{{{ENGINES}}}, pod)", label="Pod", several=True)
    for one in (*variables(), pod):
        made = made.with_variable(one)
    for title, of_row in (
        ("Pods", (_setpoints(), _slow())),
        ("Steps", (_step_time(), _step_rate(), _longest(), _bias())),
        ("Memory", (_kv(), _held(), _preemptions(), _cached())),
        ("Requests", (_running(), _waiting(), _gate(), _tokens())),
    ):
        made = made.with_row(builders.Row(title))
        for panel in of_row:
            made = made.with_panel(panel)
    return made


def _setpoints() -> Panel:
    seqs, tokens = (
        queries.gauge(MetricName.LIMIT, f'{PODS},knob="{knob}"', "pod", "engine", by="max")
        for knob in (Knob.MAX_NUM_ACTIVE_SEQS, Knob.MAX_NUM_SCHEDULED_TOKENS)
    )
    return panels.rows(
        "Engine cores",
        "The setpoint that each core applies, and its limits. 0 is none yet.",
        [
            Query(queries.gauge(MetricName.SETPOINT_EPOCH, PODS, "pod", "engine", by="max"), "Epoch"),
            Query(queries.gauge(MetricName.SETPOINT_GENERATION, PODS, "pod", "engine", by="max"), "Generation"),
            Query(seqs, "Requests"),
            Query(tokens, "Tokens"),
            Query(queries.gauge(MetricName.WATCHDOG_TRIPS, PODS, "pod", "engine", by="max"), "Watchdog"),
        ],
        renamed={"pod": "Pod", "engine": "Core"},
        width=12,
    )


def _slow() -> Panel:
    return panels.lines(
        "Slow pods",
        "Pods that are clearly slower than their siblings.",
        [Query(queries.operators("flyball_operator_slow_pods", SERVICE), "slow pods")],
    )


def _step_time() -> Panel:
    return panels.lines(
        "Mean time of a step",
        "By pod, and (dashed) the time that a step may take.",
        [
            Query(queries.ratio(MetricName.STEP_SECONDS, MetricName.STEPS, PODS, "pod"), _POD),
            Query(queries.gauge(MetricName.STEP_BUDGET_SECONDS, PODS, by="max"), "budget", dashed=True),
        ],
        unit="s",
    )


def _step_rate() -> Panel:
    return panels.lines(
        "Steps by kind",
        "Per second, of the pods shown.",
        [Query(queries.rate(MetricName.STEPS, PODS, "kind"), "{{kind}}")],
        stacked=True,
    )


def _longest() -> Panel:
    return panels.lines(
        "Longest step",
        "Since the setpoint that is applied.",
        [Query(queries.gauge(MetricName.LONGEST_STEP_SECONDS, PODS, "pod", by="max"), _POD)],
        unit="s",
    )


def _bias() -> Panel:
    return panels.lines(
        "Measured over predicted step time",
        "Of the model in the setpoint: a pod clearly above the others is slow.",
        [Query(queries.gauge(MetricName.LOCAL_BIAS, PODS, "pod", by="max"), _POD)],
    )


def _kv() -> Panel:
    return panels.lines(
        "KV cache in use",
        "The fullest core of each pod.",
        [Query(queries.gauge(MetricName.KV_CACHE_USAGE, PODS, "pod", by="max"), _POD)],
        unit="percentunit",
        most=1.0,
    )


def _held() -> Panel:
    return panels.lines(
        "Tokens that running requests hold",
        "By pod, and (dashed) what the KV cache of one can hold.",
        [
            Query(queries.gauge(MetricName.RUNNING_KV_TOKENS, PODS, "pod"), _POD),
            Query(queries.gauge(MetricName.KV_CACHE_TOKENS, PODS, by="min"), "cache", dashed=True),
        ],
    )


def _preemptions() -> Panel:
    return panels.lines(
        "Preemptions",
        "Requests per second that lost their KV cache, to be computed anew.",
        [Query(queries.rate(MetricName.PREEMPTIONS, PODS, "pod"), _POD)],
        unit="reqps",
    )


def _cached() -> Panel:
    return panels.lines(
        "Prompt tokens from the prefix cache",
        "Share of the prompt tokens of finished requests.",
        [Query(queries.ratio(MetricName.CACHED_PROMPT_TOKENS, MetricName.PROMPT_TOKENS, PODS, "pod"), _POD)],
        unit="percentunit",
        most=1.0,
    )


def _running() -> Panel:
    return panels.lines("Running", "Requests.", [Query(queries.gauge(MetricName.RUNNING, PODS, "pod"), _POD)])


def _waiting() -> Panel:
    return panels.lines("Waiting", "Requests.", [Query(queries.gauge(MetricName.WAITING, PODS, "pod"), _POD)])


def _gate() -> Panel:
    by = ("pod", "decision", "reason")
    return panels.lines(
        "Gate decisions by reason",
        "Per second. Reasons without a request are left out.",
        [Query(f"{queries.rate(MetricName.ADMISSIONS, PODS, *by)} > 0", f"{_POD} {{{{decision}}}} {{{{reason}}}}")],
        unit="reqps",
    )


def _tokens() -> Panel:
    return panels.lines(
        "Tokens by phase",
        "That steps processed, per second.",
        [Query(queries.rate(MetricName.TOKENS, PODS, "phase"), "{{phase}}")],
        stacked=True,
    )
