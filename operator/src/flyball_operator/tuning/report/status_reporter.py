"""Writes one service's tuning into status, events and metrics, after each decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from flyball_engine.contract import Limits, Setpoint
from flyball_operator.api.v1alpha1 import (
    TUNER_CONDITIONS,
    Condition,
    ConditionType,
    Mode,
    SetpointStatus,
    TuningStatus,
)
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.actuate.trial_rollout import TrialRollout
from flyball_operator.tuning.adapters import adapters_verdict
from flyball_operator.tuning.capacity import Balance
from flyball_operator.tuning.estimate.step_time import doubt_message
from flyball_operator.tuning.insight import weighed_load
from flyball_operator.tuning.observe.signal_history import SignalHistory
from flyball_operator.tuning.observe.signals import Observation, OrderOutcome, Signals
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.report import conditions
from flyball_operator.tuning.report.analysis_report import AnalysisReport
from flyball_operator.tuning.report.capacity_report import CapacityReport
from flyball_operator.tuning.report.conditions import SetpointProgress
from flyball_operator.tuning.report.decision_age import decided_before
from flyball_operator.tuning.report.decision_history import DecisionHistory
from flyball_operator.tuning.report.event_recorder import ConditionStates, EventRecorder
from flyball_operator.tuning.report.liveness import Liveness
from flyball_operator.tuning.report.scaling_report import RESCALED, ScalingReport, scaling_verdict
from flyball_operator.tuning.report.slow_pod_report import SlowPodReport
from flyball_operator.tuning.service_context import ServiceContext
from flyball_operator.tuning.state import Decision
from flyball_operator.tuning.unchanged import Equal, Unchanged

_WINDOW: Final = "5m"
_SCALING: Final = ConditionType.SCALING_ACTIVE
_ADAPTERS: Final = ConditionType.ADAPTERS_LOADED


class StatusReporter:
    """The memory of what was reported of one service. `history`: the last decisions, as status keeps them."""

    def __init__(
        self,
        context: ServiceContext,
        signals: SignalHistory,
        engine_pods: EnginePods,
        trial_rollout: TrialRollout,
        slow_pods: SlowPodReport,
        events: EventRecorder,
        analysis: AnalysisReport,
    ) -> None:
        self._context = context
        self._signals = signals
        self._engine_pods = engine_pods
        self._trial_rollout = trial_rollout
        self._slow_pods = slow_pods
        self._events = events
        self._analysis = analysis
        service = context.service
        self._capacity = CapacityReport(service, context.dependencies.clock)
        self._scaling = ScalingReport(service.status)
        self._met = Unchanged(conditions.objectives_status)
        self._model, self._recommended = Unchanged(status_codec.model_status), Unchanged(status_codec.setpoint_status)
        self._live, self._shown = Unchanged(_live_status), Unchanged(_live_shown)
        self._made = Equal(TuningStatus)
        # Most ticks see nothing that is told, and what is the same as before is compared soonest.
        self._tuned, self._carried = Equal(_tuned), Unchanged(conditions.capacity_verdict)
        self._said = Equal(_said)
        each = {kind: Equal(ConditionState.condition) for kind in TUNER_CONDITIONS}
        self._conditions = Equal(partial(_conditions, each))
        self._counted: OrderOutcome | None = None
        self._binding, self._order = service.status.tuning.binding_objective, service.status.tuning.order
        self._workload = service.status.tuning.workload
        #: The load that the workload of status was held against; it is weighed once per window.
        self._weighed: Balance | None = None
        self._shown_load = Unchanged(status_codec.workload_of)
        self.history = DecisionHistory(service.status.tuning.decisions)
        not_deciding = events.reason(ConditionType.TUNED) == Reason.NOT_DECIDING
        chosen = decided_before(service.status)
        self.liveness = Liveness(context.dependencies, context.labels, not_deciding=not_deciding, chosen=chosen)

    def spec_edited(self) -> None:
        """Objectives or bounds were edited: the capacity of the old ones is removed."""
        self._capacity.edited()

    def observed(self) -> None:
        """Take in what a tick has seen."""
        counted = self._signals.order
        if counted is None or (counted is not self._counted and counted != self._counted):
            self._order = conditions.order_status(self._order, counted, window=_WINDOW)
            self._counted = counted

    def decided(self, decision: Decision, observation: Observation) -> None:
        """Take in what a tick has decided, and what came of the last decision one window after it."""
        context, metrics, labels = self._context, self._context.metrics, self._context.labels
        metrics.slow_pods(*labels, self._slow_pods.compare_pods(self._events))
        metrics.decided(*labels, decision, context.state.step_time.fit)
        self._capacity.note(context.state)
        if context.state.balance is not self._weighed:
            self._weighed = context.state.balance
            if (load := weighed_load(context.state, observation)) is not None:
                self._workload = status_codec.workload_status(self._workload, load, self._shown_load)
        balance, idle = self._capacity.balance(context.state), self._capacity.idle(context.state)
        metrics.capacity(*labels, balance, idle=idle, nodes=context.spec.nodes)
        if (rescaled := self._scaling.note(context.state, context.spec, begun=not context.takes_over)) is not None:
            self._events.pending.append(("Normal", RESCALED, rescaled))
        self.liveness.decided(decision, context.state, observation, self._engine_pods)
        if decision.output is not None:
            self._binding = decision.output.binding
        if isinstance(observation, Signals) and self._signals.blind is None:
            self.history = self.history.observed(observation, context.spec, context.dependencies.wall())

    async def report(self) -> None:
        """Post events, and write status."""
        states = self.states()
        await self._events.announce(states, self._context.state.step_time.fit)
        await self.write(states)

    async def report_late(self) -> None:
        """Report that no tick is completed any more."""
        states = self.states(late=True)
        # First what lasts: what keeps the tick from its end may be the event.
        await self.write(states)
        await self._events.announce(states, self._context.state.step_time.fit)

    def ended(self) -> None:
        """Nobody weighs the load any more."""
        self._capacity.ended()

    async def report_ended(self) -> None:
        """Report that nobody tunes the service any more."""
        spec = self._context.spec
        absent = {_SCALING} if spec.scaling is None else set()
        absent |= {_ADAPTERS} if self._engine_pods.adapters is None else set()
        await self.write({kind: one for kind, one in conditions.ended().items() if kind not in absent})

    def states(self, *, late: bool = False) -> ConditionStates:
        """Our conditions. `late`: no tick is completed any more."""
        context, pods, live = self._context, self._engine_pods, self._context.setpoint
        spec, state, reach = context.spec, context.state, context.bounds()
        asked = spec.queueing if spec.paused is None else context.queueing
        tuned = self._tuned(
            mode=spec.mode,
            ready_pods=pods.ready,
            applied_pods=pods.answers.applied(live),
            limits=self._shown(live, context.queueing),
            problems=conditions.FENCED
            if reach.fenced
            else pods.problems(reach, asked, sheds=spec.refuses, drafts=spec.envelope.drafts > 0),
            paused=spec.paused,
            trial_pod=self._trial_rollout.pod,
            stalled=self.liveness.stall if late else None,
            not_deciding=self.liveness.not_deciding if spec.live else None,
            unordered=pods.lacks.unordered if spec.orders else None,
            unclassed=pods.lacks.unclassed if spec.classes is not None else None,
            learning=self._learning,
        )
        _, _, met = self._met(spec.objectives, self._signals.outcomes, window=_WINDOW)
        lost = self._events.status(ConditionType.METRICS_AVAILABLE) == "False"
        metrics = self._signals.verdict(ready_pods=pods.ready, lost=lost)
        capacity = self._carried(
            self._capacity.balance(state),
            objectives=spec.objectives,
            metrics=metrics,
            known=self._capacity.known,
            lengths=state.workload.lengths,
        )
        scaling = scaling_verdict(state, spec, capacity, begun=not context.takes_over)
        listed = pods.adapters
        adapters = None
        if listed is not None:
            rolled_out = _is_rolled_out(context.service.status.conditions)
            adapters = adapters_verdict(listed, pods.answers.adapters, ready_pods=pods.ready, rolled_out=rolled_out)
        return self._said(metrics, tuned, met, capacity, scaling, adapters)

    @property
    def _learning(self) -> str | None:
        """Why the limits are no choice of the law, None if they are."""
        if not self._context.trusted:
            doubt = doubt_message(self._context.state.step_time.fit)
            return f"start values until the step-time model is trusted: {doubt}"
        if not self.liveness.chosen:
            return "start values until the first decision: the model is there, too little load was observed so far"
        return None

    async def write(self, states: ConditionStates) -> None:
        """Hand the whole of our part to the writer, which knows what can wait."""
        context, dependencies = self._context, self._context.dependencies
        if not dependencies.leadership.may_act():
            return
        rows, met, _ = self._met(context.spec.objectives, self._signals.outcomes, window=_WINDOW)
        await dependencies.writer.write(
            context.service,
            tuning=self._tuning(states[ConditionType.CAPACITY_SUFFICIENT]),
            objectives=rows,
            objectives_met=met,
            desired_replicas=self._capacity.replicas(
                context.state, states[ConditionType.CAPACITY_SUFFICIENT], nodes=context.spec.nodes
            ),
            conditions=self._conditions(states, context.service.metadata.generation),
            scaling=self._scaling.status(context.state, context.spec),
            analysis=self._analysis.status(context.service),
        )

    def _tuning(self, capacity: ConditionState) -> TuningStatus:
        context, pods, live = self._context, self._engine_pods, self._context.setpoint
        mode, state, now = context.spec.mode, context.state, context.dependencies.wall()
        shadow = mode is Mode.RECOMMEND or (mode is Mode.AUTO and not context.spec.live)
        return self._made(
            mode=mode,
            epoch=context.generations.written_epoch,
            generation=context.generations.generation,
            setpoint=self._live(live, context.queueing),
            applied_pods=f"{pods.answers.applied(live)}/{pods.ready}",
            model=self._model(state.step_time),
            binding_objective=self._binding[:63],
            arrivals=self._capacity.arrivals(capacity),
            capacity=self._capacity.capacity,
            workload=self._workload,
            order=self._order if live is not None and live.on_time is not None else None,
            recommended=self._recommended(state.policy) if shadow else None,
            held_until=status_codec.time_status(state.held_until) if state.held_until > now else None,
            slow_pods=status_codec.slow_pods_status(self._slow_pods.slow_pods),
            decisions=self.history.decisions,
        )


def _tuned(**progress: Any) -> ConditionState:
    return conditions.tuned_verdict(SetpointProgress(**progress))


def _is_rolled_out(known: Sequence[Condition]) -> bool:
    complete = ReconcileReason.ROLLOUT_COMPLETE
    return any(one.type == ConditionType.PROGRESSING and one.reason == complete for one in known)


def _said(
    metrics: ConditionState,
    tuned: ConditionState,
    met: ConditionState,
    capacity: ConditionState,
    scaling: ConditionState | None,
    adapters: ConditionState | None,
) -> ConditionStates:
    return {
        ConditionType.METRICS_AVAILABLE: metrics,
        ConditionType.TUNED: tuned,
        ConditionType.OBJECTIVES_MET: met,
        ConditionType.CAPACITY_SUFFICIENT: capacity,
        **({} if scaling is None else {_SCALING: scaling}),
        **({} if adapters is None else {_ADAPTERS: adapters}),
    }


def _conditions(
    each: Mapping[ConditionType, Equal[[ConditionState, ConditionType, int], Condition]],
    states: ConditionStates,
    generation: int,
) -> tuple[Condition, ...]:
    return tuple(each[kind](state, kind, generation) for kind, state in states.items())


def _live_status(live: Setpoint | None, asked: Queueing) -> SetpointStatus:
    return status_codec.setpoint_status(Policy.of(live, asked) if live is not None else Policy(limits=Limits()))


def _live_shown(live: Setpoint | None, asked: Queueing) -> str:
    return conditions.shown(Policy.of(live, asked)) if live is not None else "start values"
