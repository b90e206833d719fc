"""The tuning of one service, stage by stage: observe, estimate, decide, filter, actuate, report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from flyball_engine.contract import Setpoint
from flyball_engine.model import StepModel
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService, Overload
from flyball_operator.kube.errors import ClusterError
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.actuate.starting_pods import StartingPods
from flyball_operator.tuning.actuate.trial_rollout import TrialRollout
from flyball_operator.tuning.decide import decide, learn_steps
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.filters.filters import PodsObserved
from flyball_operator.tuning.insight import Insight, insight
from flyball_operator.tuning.observe.signal_history import NOT_ASKED, SignalHistory
from flyball_operator.tuning.observe.signals import Attainment, Observation, PodOutcomes, Unobserved
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.released_pods import ReleasedPods
from flyball_operator.tuning.report.analysis_report import AnalysisReport
from flyball_operator.tuning.report.event_recorder import EventRecorder
from flyball_operator.tuning.report.liveness import Liveness
from flyball_operator.tuning.report.slow_pod_report import SlowPodReport
from flyball_operator.tuning.report.status_reporter import StatusReporter
from flyball_operator.tuning.service_context import ServiceContext
from flyball_operator.tuning.setpoint_rollout import SetpointRollout
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import ChangeCause, TuningState


class ServiceTuner:
    """The memory of one service's tuning under one leadership, and what is done each tick.

    `prior`: the model of a service of the same kind. `lock`: whoever has it tunes the service.
    """

    def __init__(self, service: InferenceService, dependencies: Dependencies, prior: StepModel | None = None) -> None:
        self.lock = asyncio.Lock()
        self._pods: Sequence[EnginePod] = ()
        self._context = context = ServiceContext(service, dependencies, prior)
        self.labels = context.labels
        client, clock, tuning = dependencies.client, dependencies.clock, service.status.tuning
        events = EventRecorder(service.status.conditions, context.post, trusted=context.trusted)
        self._signals = SignalHistory(
            clock, dependencies.grace_seconds, seen=events.status(ConditionType.METRICS_AVAILABLE) == "True"
        )
        callbacks = (context.push_succeeded, context.push_failed, _tripped(events))
        self._engine_pods = EnginePods(client, clock, *callbacks, context.bounds)
        self._engine_pods.known.foreign = service.spec.workload is not None
        self._engine_pods.wants_adapters(service.spec)
        self._released = ReleasedPods(context)
        self._starting = StartingPods(client, clock, self._engine_pods.known)
        tuned = status_codec.policy_of(tuning.setpoint) is not None and context.trusted
        # What one pod failed under shall not go to all at once because the leader changed.
        verified = tuned and tuning.held_until is None
        trial_rollout = TrialRollout(self._engine_pods, clock, verified=verified)
        slow_pods = SlowPodReport(self._signals, clock, tuning)
        self._analysis = AnalysisReport(service, clock, dependencies.wall)
        self._reporter = StatusReporter(
            context, self._signals, self._engine_pods, trial_rollout, slow_pods, events, self._analysis
        )
        self._rollout = SetpointRollout(context, self._engine_pods, trial_rollout, self._reporter)

    @property
    def state(self) -> TuningState:
        """What is remembered from tick to tick."""
        return self._context.state

    @property
    def insight(self) -> Insight:
        """What is known beyond status."""
        return insight(self._context.state, self._signals.observation, self._context.spec)

    @property
    def liveness(self) -> Liveness:
        """Whether ticks come to their end, and decide."""
        return self._reporter.liveness

    def update(self, service: InferenceService, pods: Sequence[EnginePod]) -> None:
        """Take note of the service and its pods as they are now. Every second: mostly they are the same objects."""
        if service is not self._context.service and self._context.update(service):
            self._reporter.spec_edited()
        self._engine_pods.wants_adapters(service.spec)
        if pods is not self._pods:
            self._released.update_pods(self._pods, pods)
            self._pods = pods
            self._engine_pods.update_pods(pods)
            self._starting.update_pods(pods)

    async def take_over(self) -> None:
        """At first, adopt what runs."""
        await self._rollout.take_over()

    def judged_window(self) -> int | None:
        """Seconds over which requests of each pod are to be counted, where a revision is judged and it is time."""
        return self._analysis.window(self._context.service, self._pods)

    async def tick(
        self,
        observation: Observation,
        attainment: Attainment | Unobserved,
        pod_outcomes: PodOutcomes | Unobserved | None = None,
    ) -> None:
        """All stages, once. `pod_outcomes`: None where they were not asked for."""
        self._signals.look(observation, attainment, ready_pods=self._engine_pods.ready)
        if pod_outcomes is not None:
            self._analysis.note(self._context.service, self._context.spec, self._pods, pod_outcomes)
        self._reporter.observed()
        await self._rollout.take_over()
        await self._stages(observation)
        self.liveness.completed()

    async def _stages(self, observation: Observation) -> None:
        context, now = self._context, self._context.dependencies.wall()
        if not context.sized:
            await self._engine_pods.survey()
        context.note_ceilings(self._engine_pods.known.ceilings)
        if not context.sized:
            self.liveness.without_engines()
            await self._reporter.report()
            return
        self._engine_pods.observe(observation, context.setpoint)
        if context.may_act:
            reach = context.bounds()
            context.generations.repair(self._engine_pods.answers.unexplained(reach), reach)
        # While Prometheus has no steps for us: limits hold, the model stays fresh.
        if (window := self._signals.steps_read_back(observation, self._engine_pods.steps, now)) is not None:
            context.state = learn_steps(context.state, window)
        failed = await self._rollout.check_trial(now)
        before, began = context.state, time.time_ns()
        context.state, decision = decide(before, observation, self._decided_by, now, self._pods_observed)
        if failed:
            decision = replace(decision, hold=None, trigger=failed, cause=ChangeCause.TRIAL_FAILED)
        with context.dependencies.tracing.decision(self.labels, decision, began):
            self._reporter.decided(decision, observation)
            await self._rollout.follow(decision, before, at_once=decision.rolled_back or bool(failed))
        await self._reporter.report()

    def to_be_kept(self) -> bool:
        """Whether `keep` has something to do."""
        setpoint = self._context.setpoint
        if setpoint is None:
            return False
        kept = self._rollout.behind_spec or self._engine_pods.to_be_kept(setpoint) or self._released.due
        return kept or bool(self._starting.due(self._of_new_pods(setpoint)))

    def _of_new_pods(self, setpoint: Setpoint) -> Setpoint | None:
        """What pods begin with: while one pod tries the setpoint alone, what the others keep."""
        alone = self._engine_pods.alone
        return setpoint if alone is None else alone[1]

    async def keep(self) -> None:
        """Between ticks: give the setpoint to pods that came back, and follow an edited spec without waiting."""
        context = self._context
        if context.setpoint is None or not context.may_act:
            return
        self._starting.write(self._of_new_pods(context.setpoint))
        await self._released.release()
        await self._engine_pods.keep(context.setpoint)
        if self._rollout.behind_spec:
            before, began = context.state, time.time_ns()
            context.state, decision = decide(before, NOT_ASKED, self._decided_by, context.dependencies.wall())
            with context.dependencies.tracing.decision(self.labels, decision, began, of_read=False):
                await self._rollout.follow(decision, before, at_once=True)
            await self._reporter.report()

    async def report_late(self) -> None:
        """Report that no tick is completed any more. Takes no lock: a tick that hangs has it."""
        await self._reporter.report_late()

    async def release(self) -> None:
        """Give engines of others back to their start values, if the service is deleted. Ours end with it."""
        context = self._context
        if self._engine_pods.known.foreign and await context.dependencies.is_deleted(context.service):
            self._released.update_pods(self._pods, ())
            while self._released.due:
                await self._released.release()

    async def close(self) -> None:
        """End what still goes to engines: nobody tunes the service any more, if it is still there."""
        await asyncio.gather(self._engine_pods.close(), self._starting.close())
        self._reporter.ended()
        # Behind a tick that has yet to write; what was deleted is not there to be written of.
        async with self.lock:
            with suppress(ClusterError):
                await self._reporter.report_ended()

    @property
    def _decided_by(self) -> TuningSpec:
        """The spec, but that where some engine cannot refuse requests all wait."""
        spec = self._context.spec
        return spec if self._engine_pods.lacks.all_refuse else replace(spec, overload=Overload.QUEUE)

    @property
    def _pods_observed(self) -> PodsObserved:
        pods = self._engine_pods
        return PodsObserved(stuck=pods.answers.stuck, moving=pods.answers.moving, live=self._rollout.live)


def _tripped(events: EventRecorder) -> Callable[[str], None]:
    return lambda message: events.pending.append(("Warning", Reason.WATCHDOG_TRIPPED, message))
