"""The tuner's own telemetry, prefix `flyball_operator_`; series of a service go when its last tuner ends.

The tuners of all shards of a process share them.
"""

from __future__ import annotations

import math
from collections import Counter as Count
from collections.abc import Callable
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from flyball_engine.contract import Knob
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.estimate.step_time import Fit
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.replicas import Replicas
from flyball_operator.tuning.state import Decision

_SERVICE: Final = ("namespace", "service")
#: What held the limits where nothing did.
_CHANGED: Final = "changed"
_Metric = TypeVar("_Metric", Counter, Gauge)
#: A change lands between steps, which take from a millisecond to seconds.
_SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 15.0)


class TunerMetrics:
    """Counters, gauges and histograms in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tick_seconds = Histogram(
            "flyball_operator_tick_seconds", "Duration of one tick for all services", registry=registry
        )
        self.services = Gauge("flyball_operator_services", "Services the tuner works for", registry=registry)
        self.prometheus_seconds = Histogram(
            "flyball_operator_prometheus_read_seconds", "Duration of one read of all signals", registry=registry
        )
        # Not by service: their 36 series would be three quarters of a service's, and of what they take in memory.
        self._acknowledged = Histogram(
            "flyball_operator_push_acknowledged_seconds",
            "From pushing a setpoint to a pod until all its engine cores confirmed it",
            buckets=_SECONDS,
            registry=registry,
        )
        self._longest = Histogram(
            "flyball_operator_longest_step_seconds",
            "Longest engine step up to each acknowledged push: what a push may have to wait for",
            buckets=_SECONDS,
            registry=registry,
        )
        self._per_service: list[Counter | Gauge] = []
        self._tuners: Count[tuple[str, str]] = Count()
        #: What gauges show of each service: most figures are those of the tick before, and to find a series takes long.
        self._shown: dict[tuple[str, str], dict[Gauge, float | None]] = {}
        #: Likewise what counts the decisions of each, by what held the limits.
        self._counted: dict[tuple[str, str], dict[str, Counter]] = {}
        #: By what the limits of each changed last.
        self._causes: dict[tuple[str, str], str] = {}

        def counter(name: str, text: str, *more: str) -> Counter:
            return self._of_a_service(Counter(name, text, (*_SERVICE, *more), registry=registry))

        def gauge(name: str, text: str, *more: str) -> Gauge:
            return self._of_a_service(Gauge(name, text, (*_SERVICE, *more), registry=registry))

        self._failures = counter(
            "flyball_operator_service_failures_total",
            "Ticks of a service that raised an error that is not the API server's",
        )
        self._decisions = counter(
            "flyball_operator_decisions_total", "Decisions by what held the limits, `changed` where nothing did", "hold"
        )
        self._changed = gauge(
            "flyball_operator_limits_changed_timestamp_seconds",
            "Unix time at which engines were given other limits last, by `cause`: the objective that binds, "
            "UpperBound, Learning, SpecEdited, RolledBack or TrialFailed",
            "cause",
        )
        self._pushes = counter("flyball_operator_pushes_total", "Setpoints written to pods, by outcome", "outcome")
        self._limit = gauge("flyball_operator_limit", "Limits the service shall run under", "knob")
        self._budget = gauge(
            "flyball_operator_step_budget_seconds", "Time that a step may take; no series where none is held"
        )
        self._deadline = gauge(
            "flyball_operator_first_token_deadline_seconds",
            "Time to first token that requests are refused by; no series where none is refused",
        )
        self._margin = gauge(
            "flyball_operator_first_token_margin_ratio",
            "Share of the deadline that a prediction may take; no series where no request is refused",
        )
        self._error = gauge("flyball_operator_model_error_ratio", "Median relative error of the step-time model")
        self._trusted = gauge("flyball_operator_model_trusted", "1 if decisions rest on the step-time model")
        self._capacity = gauge(
            "flyball_operator_capacity_requests_per_second",
            "Requests per second that the pods carry at the objectives; no series while that is not known",
        )
        self._replicas = gauge(
            "flyball_operator_desired_replicas",
            "Replicas that the load needs at the objectives; no series while that is not known",
        )
        self._paused = gauge("flyball_operator_tuning_paused", "1 while an annotation pauses tuning")
        self._tick_age = gauge(
            "flyball_operator_tick_age_seconds", "Seconds since a tick of the service was last completed"
        )
        self._decision_age = gauge(
            "flyball_operator_decision_age_seconds",
            "Seconds since a decision last rested on signals and a model, or there was nothing to decide on",
        )
        self._slow_pods = gauge("flyball_operator_slow_pods", "Pods that are clearly slower than their siblings")

    def _of_a_service(self, metric: _Metric) -> _Metric:
        """Its series of a service go when that goes."""
        self._per_service.append(metric)
        return metric

    def failed(self, namespace: str, service: str) -> None:
        """A service's tick raised an error that is not the API server's."""
        self._failures.labels(namespace, service).inc()

    def decided(self, namespace: str, service: str, decision: Decision, fit: Fit | None) -> None:
        """A decision was taken."""
        hold = _CHANGED if decision.hold is None else decision.hold.value
        counted = self._counted.setdefault((namespace, service), {})
        if hold not in counted:
            counted[hold] = self._decisions.labels(namespace, service, hold)
        counted[hold].inc()
        if fit is not None:
            self._show(self._error, namespace, service, fit.error)
            self._show(self._trusted, namespace, service, fit.trusted)

    def limits_changed(self, namespace: str, service: str, cause: str, at: float) -> None:
        """Engines are given other limits, `at` in Unix seconds."""
        before = self._causes.get((namespace, service), cause)
        if before != cause:
            self._changed.remove(namespace, service, before)
        self._causes[namespace, service] = cause
        self._changed.labels(namespace, service, cause).set(at)

    def policy(self, namespace: str, service: str, policy: Policy) -> None:
        """What the service shall run under."""
        limits = policy.limits.given()
        for knob in Knob:
            if knob in limits:
                self._limit.labels(namespace, service, knob.value).set(limits[knob])
            else:
                # What some engine cannot be told, such as one that joined, all run without.
                self._limit.remove(namespace, service, knob.value)
        shed = policy.shed
        self._show(self._budget, namespace, service, policy.budget)
        self._show(self._deadline, namespace, service, shed.ttft_deadline_seconds if shed is not None else None)
        self._show(self._margin, namespace, service, shed.margin if shed is not None else None)

    def ages(self, namespace: str, service: str, *, tick: Callable[[], float], decision: Callable[[], float]) -> None:
        """How long ago a service was last seen to, read when scraped."""
        self._tick_age.labels(namespace, service).set_function(tick)
        self._decision_age.labels(namespace, service).set_function(decision)

    def slow_pods(self, namespace: str, service: str, number: int) -> None:
        """How many pods are slower than the others."""
        self._show(self._slow_pods, namespace, service, number)

    def paused(self, namespace: str, service: str, paused: bool) -> None:
        """Whether tuning is paused."""
        self._show(self._paused, namespace, service, paused)

    def capacity(
        self, namespace: str, service: str, balance: Balance | None, *, idle: Replicas | None = None, nodes: int
    ) -> None:
        """What the pods carry, and how many replicas of `nodes` pods the load needs. `idle`: those for no load."""
        known = balance if balance is not None and balance.settled else None
        self._show(self._capacity, namespace, service, known.replicas * known.rate if known is not None else None)
        desired = known.desired if known is not None else idle
        needed = math.ceil(desired.replicas / nodes) if desired is not None else None
        self._show(self._replicas, namespace, service, needed)

    def pushed(self, namespace: str, service: str, *, seconds: float, longest_step: float) -> None:
        """A pod acknowledged a setpoint."""
        self._pushes.labels(namespace, service, "applied").inc()
        self._acknowledged.observe(seconds)
        self._longest.observe(longest_step)

    def push_failed(self, namespace: str, service: str, outcome: str) -> None:
        """A pod did not."""
        self._pushes.labels(namespace, service, outcome).inc()

    def began(self, namespace: str, service: str) -> None:
        """A tuner of a service begins. Two tuners may have one name: that of a service that was made again."""
        self._tuners[namespace, service] += 1
        # A series that begins with 1 has not increased: no dashboard would show the first change.
        self._decisions.labels(namespace, service, _CHANGED)

    def ended(self, namespace: str, service: str) -> None:
        """A tuner of a service ends, and with the last of its name the series go."""
        self._tuners[namespace, service] -= 1
        if self._tuners[namespace, service] <= 0:
            del self._tuners[namespace, service]
        self.forget(namespace, service)

    def forget(self, namespace: str, service: str) -> None:
        """Drop the series of a service that has no tuner."""
        if (namespace, service) in self._tuners:
            return
        self._shown.pop((namespace, service), None)
        self._counted.pop((namespace, service), None)
        self._causes.pop((namespace, service), None)
        for metric in self._per_service:
            metric.remove_by_labels({"namespace": namespace, "service": service})

    def _show(self, gauge: Gauge, namespace: str, service: str, figure: float | None) -> None:
        """Show a figure, or no series where there is none."""
        shown = self._shown.setdefault((namespace, service), {})
        if shown.get(gauge) == figure and gauge in shown:
            return
        shown[gauge] = figure
        if figure is None:
            # Not by labels, which looks through the series of all services.
            gauge.remove(namespace, service)
        else:
            gauge.labels(namespace, service).set(figure)
