"""The tuner of one service: decide, write the intent, push, confirm, report.

The order of a change is fixed: intent in status first, then the push, then the read-back. So whatever dies in between,
the next leader finds in status the newest number that any engine can hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from flyball_engine.contract import DEFAULT_CLASS, Limits, Setpoint
from flyball_engine.model import StepModel
from flyball_operator.api.v1alpha1 import Condition, ConditionType, InferenceService, Mode, Overload, TuningStatus
from flyball_operator.engines.client import Acknowledged
from flyball_operator.engines.errors import EngineError
from flyball_operator.kube.errors import ClusterError
from flyball_operator.tuning.actuate.canary_rollout import CanaryRollout
from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.actuate.generation_bounds import GenerationBounds
from flyball_operator.tuning.actuate.generations import Generations
from flyball_operator.tuning.actuate.stall_fallback import StallFallback
from flyball_operator.tuning.capacity import asked
from flyball_operator.tuning.decide import decide, learn_steps
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.estimate import doubts
from flyball_operator.tuning.filters.canary import undecided, undone
from flyball_operator.tuning.observe.signal_history import NOT_ASKED, SignalHistory
from flyball_operator.tuning.observe.signals import Attainment, Observation, Signals, Unobserved, blind_spot
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.ports import EnginePod, EventType
from flyball_operator.tuning.report import conditions, status_codec
from flyball_operator.tuning.report.capacity_report import CapacityReport
from flyball_operator.tuning.report.conditions import Progress
from flyball_operator.tuning.report.decision_history import DecisionHistory, is_change
from flyball_operator.tuning.report.event_recorder import ConditionStates, EventRecorder
from flyball_operator.tuning.report.liveness import Liveness
from flyball_operator.tuning.spec import TuningSpec, tuning_spec
from flyball_operator.tuning.state import STALE_SECONDS, Decision, TuningState

_log: Final = logging.getLogger(__name__)
_WINDOW: Final = "5m"


class ServiceTuner:
    """The memory of one service's tuning under one leadership, and what is done each tick.

    `prior`: the model of a service of the same kind.
    """

    def __init__(self, service: InferenceService, dependencies: Dependencies, prior: StepModel | None = None) -> None:
        self._dependencies = dependencies
        self._service = service
        self._spec = tuning_spec(service.spec, service.metadata.annotations)
        tuning = service.status.tuning
        self._state: TuningState = replace(
            status_codec.resumed(tuning, self._spec, prior), advised=service.status.desired_replicas
        )
        self._capacity_report = CapacityReport(service, dependencies.clock)
        self._decision_history = DecisionHistory(tuning.decisions)
        self._binding = tuning.binding_objective
        self._order = tuning.order
        self._generations = Generations(service, dependencies)
        self._setpoint: Setpoint | None = None
        self._event_recorder = EventRecorder(
            service.status.conditions, self._post, trusted=self._state.step_time.model is not None
        )
        seen = self._event_recorder.said(ConditionType.METRICS_AVAILABLE) == "True"
        self._signal_history = SignalHistory(dependencies.clock, dependencies.grace_seconds, seen=seen)
        helpless = self._event_recorder.reason(ConditionType.TUNED) == conditions.Reason.NOT_DECIDING
        self._surveyed = False
        self._followed = self._spec
        self._owed_to_all = False
        self.lock = asyncio.Lock()
        self.labels = (service.metadata.namespace, service.metadata.name)
        self.liveness = Liveness(dependencies, self.labels, helpless=helpless)
        told = (self._applied, self._failed, self._tripped)
        self._engine_pods = EnginePods(
            dependencies.client, dependencies.clock, *told, dependencies.control_port, self._reach
        )
        known = status_codec.policy_of(tuning.setpoint) is not None and self._state.step_time.model is not None
        self._canary_rollout = CanaryRollout(self._engine_pods, dependencies.clock, vetted=known)
        self._stall_fallback = StallFallback(self._engine_pods, dependencies, tuning)

    def update(self, service: InferenceService, pods: Sequence[EnginePod]) -> None:
        """Take note of the service and its pods as they are now."""
        # Every second: the same objects until something of them is written.
        metadata, known = service.metadata, self._service.metadata
        if service.spec is not self._service.spec or metadata.annotations != known.annotations:
            before, self._spec = self._spec, tuning_spec(service.spec, metadata.annotations)
            if asked(before) != asked(self._spec):
                # Or `keep` would say of the new objectives what was found of the old ones.
                self._state = replace(self._state, balance=None)
                self._capacity_report.edited()
        self._service = service
        self._engine_pods.update_pods(pods)

    async def close(self) -> None:
        """End what is still being said to engines: nobody tunes the service any more, if it is still there."""
        await self._engine_pods.close()
        self._capacity_report.ended()
        # Behind a tick that has yet to write; what was deleted is not there to be written of.
        async with self.lock:
            with suppress(ClusterError):
                await self._report(conditions.ended())

    @property
    def _live(self) -> Policy | None:
        """What all engines were told last, None if nothing was, or one alone has it."""
        return Policy.of(self._setpoint) if self._setpoint is not None and self._canary_rollout.pod is None else None

    @property
    def _may_act(self) -> bool:
        return self._dependencies.leadership.may_act() and not self._fenced

    @property
    def _fenced(self) -> bool:
        """Whether status names a newer leader. An engine's word is not enough: a pod must not silence its operator."""
        return self._reach().fenced

    def _reach(self) -> GenerationBounds:
        return self._generations.reach(self._service.status)

    @property
    def _outnumbered(self) -> bool:
        """Whether the same setpoint needs a newer number: an engine has one above, or status had one that cannot be."""
        live = self._setpoint
        return live is not None and (self._generations.afresh or self._engine_pods.overtaken(live))

    @property
    def _decided_by(self) -> TuningSpec:
        """The spec, but that where some engine cannot refuse requests all wait."""
        return self._spec if self._engine_pods.gates else replace(self._spec, overload=Overload.QUEUE)

    def to_be_kept(self) -> bool:
        """Whether `keep` has something to do."""
        return self._setpoint is not None and (
            self._followed != self._spec or self._engine_pods.to_be_kept(self._setpoint)
        )

    async def keep(self) -> None:
        """Between ticks: give the setpoint to pods that came back, and follow an edited spec without waiting."""
        if self._setpoint is None or not self._may_act:
            return
        await self._engine_pods.keep(self._setpoint)
        if self._followed != self._spec:
            before = self._state
            self._state, decision = decide(before, NOT_ASKED, self._decided_by, self._dependencies.wall())
            await self._conclude(decision, before, at_once=True)

    async def tick(self, observation: Observation, attainment: Attainment | Unobserved) -> None:
        """One decision and all that follows from it."""
        self._signal_history.look(observation, attainment)
        self._order = conditions.order_status(self._order, self._signal_history.order, window=_WINDOW)
        await self.take_over()
        if self._may_act:
            self._generations.repair(self._engine_pods.claimed(), self._reach())
        now = self._dependencies.wall()
        # While Prometheus has no steps for us: limits hold, the model stays fresh.
        if (window := self._signal_history.steps_read_back(observation, self._engine_pods.steps, now)) is not None:
            self._state = learn_steps(self._state, window)
        failed = await self._vet(now)
        before = self._state
        self._state, decided = decide(before, observation, self._decided_by, now)
        self._state, decision = self._stall_fallback.let_in(
            self._state, decided, self._decided_by, observation, self._live
        )
        if failed:
            decision = replace(decision, hold=None, trigger=failed)
        self._dependencies.metrics.slow_pods(*self.labels, self._stall_fallback.compare_pods(self._event_recorder))
        self._dependencies.metrics.decided(*self.labels, decision, self._state.step_time.fit)
        self._capacity_report.note(self._state)
        self._dependencies.metrics.capacity(*self.labels, self._capacity_report.balance(self._state))
        self.liveness.decided(decision, self._state, observation, self._engine_pods)
        if decision.output is not None:
            self._binding = decision.output.binding
        self._observe(observation)
        await self._conclude(decision, before, at_once=decision is not decided)
        self.liveness.completed()

    async def _vet(self, now: float) -> str:
        """End the trial of a policy in one pod when that has shown enough; why it failed, until that is undone."""
        if self._setpoint is None or self._spec.paused is not None:
            return ""
        trusted = self._state.step_time.model is not None
        found = self._canary_rollout.check(self._setpoint, trusted=trusted)
        if found is None:
            return self._canary_rollout.failure
        canary, ended = found
        if not ended.why:
            if self._may_act:
                await self._engine_pods.push(self._setpoint)
            return ""
        self._state, said = undone(self._state, canary, ended, now)
        self._canary_rollout.failure = said
        await self._post("Warning", "CanaryFailed", said)
        return said

    async def tell_late(self) -> None:
        """Say that no tick is completed any more. Takes no lock: a tick that hangs has it."""
        verdicts = self._judge(late=True)
        # First what lasts: what keeps the tick from its end may be the event.
        await self._report(verdicts)
        await self._event_recorder.announce(verdicts, self._state.step_time.fit)

    async def _conclude(self, decision: Decision, before: TuningState, *, at_once: bool) -> None:
        """Make live what should be, and say how things are. `before` is the state that was decided from.

        `at_once`: in all pods, whatever it rests on.
        """
        edited = self._followed != self._spec and self._spec.paused is None
        if edited or self._spec.paused is not None:
            # What users ask for waits for no trial.
            self._canary_rollout.stop()
        self._followed = self._spec
        # What is owed to all pods stays so until it is written.
        self._owed_to_all = self._canary_rollout.pod is None and (self._owed_to_all or at_once or edited)
        self._dependencies.metrics.paused(*self.labels, self._spec.paused is not None)
        wanted = self._wanted()
        if self._canary_rollout.pod is not None:
            self._state = undecided(before, self._state)
        elif wanted is not None and (self._outnumbered or _content(wanted) != _content(self._setpoint)):
            if not self._may_act:
                self._take_back(before)
            else:
                await self._change(wanted, decision, before)
                if edited and self._spec.live:
                    self._canary_rollout.accept(trusted=self._state.step_time.model is not None)
        elif self._spec.paused is None:
            self._canary_rollout.end()
            self._owed_to_all = False
        verdicts = self._judge()
        await self._event_recorder.announce(verdicts, self._state.step_time.fit)
        await self._report(verdicts)

    def _take_back(self, before: TuningState) -> None:
        """Unmake a decision that went nowhere.

        Left standing it would be made live later, maybe when nothing is observed any more.
        """
        self._state = replace(before, step_time=self._state.step_time)

    async def take_over(self) -> None:
        """At first, adopt what runs: the policy is status's, and so is its number, under our epoch."""
        if self._surveyed:
            return
        await self._engine_pods.survey()
        self._surveyed = True
        policy = status_codec.policy_of(self._service.status.tuning.setpoint)
        if policy is not None:
            # Same intent, our epoch: engines learn who leads, before anything is said of them: status says nothing new.
            self._setpoint = self._numbered(policy)
            self._dependencies.metrics.policy(*self.labels, Policy.of(self._setpoint))
            if self._spec.paused is not None:
                self._canary_rollout.resume(self._service.status.tuning)
            if self._may_act and not self._generations.afresh:
                self._generations.give()
                await self._engine_pods.push(self._setpoint)

    def _numbered(self, policy: Policy) -> Setpoint:
        """A setpoint under the present number, without what some engine cannot do."""
        able, classes = self._engine_pods.able(policy), None
        # What is live, or in status, may have deadlines of classes that the spec has no more.
        able = able.due_by({name: due for name, due in able.deadlines.items() if self._spec.names_class(name)})
        if self._engine_pods.unclassed() is None:
            classes = self._spec.classes_due(dict(able.class_deadlines))
        names = (DEFAULT_CLASS, *(() if classes is None else classes.names))
        objectives = {o.id: o.contract for o in self._spec.objectives if o.of_class in names}
        return Setpoint(
            service=self._service.metadata.uid,
            epoch=self._generations.epoch,
            generation=self._generations.generation,
            limits=able.limits,
            step=able.step,
            shed=able.shed,
            on_time=able.on_time,
            queue=able.queue,
            objectives=tuple(objectives.values()),
            classes=classes,
        )

    def _wanted(self) -> Setpoint | None:
        """The setpoint that should be live, numbered as the present one; None if none should be."""
        if self._spec.paused is not None:
            return self._setpoint
        upper = Policy(limits=self._spec.envelope.upper())
        live = self._canary_rollout.others(upper) or (
            Policy.of(self._setpoint) if self._setpoint is not None else upper
        )
        # What is live is left alone in Recommend, but for the order, a gate that nobody wants, and what one pod was to
        # try.
        left = live.within(sheds=self._spec.sheds, orders=False)
        policy = {Mode.AUTO: self._state.policy, Mode.RECOMMEND: left, Mode.DISABLED: upper}[self._spec.mode]
        return self._numbered(policy)

    async def _change(self, wanted: Setpoint, decision: Decision, decided_from: TuningState) -> None:
        """Intent (N+1) to status, push, read back. If the intent cannot be written, nothing is pushed."""
        before, history, numbers = self._setpoint, self._decision_history, self._generations.advance()
        number = {"epoch": self._generations.epoch, "generation": self._generations.generation}
        self._setpoint = wanted.model_copy(update=number)
        # Pods start at the upper bounds: that is what a first setpoint moves them from.
        left = Policy.of(before) if before is not None else Policy(limits=self._spec.envelope.upper())
        policy = Policy.of(wanted)
        self._decision_history = history.changed(left, policy, decision, self._spec.mode)
        try:
            await self._report(self._judge())
        except BaseException:
            self._setpoint, self._decision_history = before, history
            self._generations.restore(numbers)
            self._take_back(decided_from)
            raise
        self._generations.give()
        if self._spec.paused is None:
            self._canary_rollout.end()
        owed, self._owed_to_all = self._owed_to_all, False
        # What was not decided now is where pods are to begin, or go on from.
        if decision.changed and not owed and is_change(left, policy):
            trusted = self._state.step_time.model is not None
            self._canary_rollout.begin(before, left, live=self._spec.live, trusted=trusted)
        await self._engine_pods.push(self._setpoint)
        self._dependencies.metrics.policy(*self.labels, policy)
        if is_change(left, policy):
            why = self._decision_history.decisions[0].trigger
            await self._post("Normal", "Retuned", f"{conditions.shown(left)} to {conditions.shown(policy)}: {why}")

    def _observe(self, observation: Observation) -> None:
        """Note what came of the last decision one window after it."""
        if not isinstance(observation, Signals) or blind_spot(observation, STALE_SECONDS) is not None:
            return
        self._decision_history = self._decision_history.observed(observation, self._spec, self._dependencies.wall())

    def _judge(self, *, late: bool = False) -> ConditionStates:
        ready, live = self._engine_pods.ready, self._setpoint
        progress = Progress(
            mode=self._spec.mode,
            ready_pods=ready,
            applied_pods=self._engine_pods.applied(live) if live is not None else 0,
            trusted=self._state.step_time.model is not None,
            limits=conditions.shown(Policy.of(live)) if live is not None else "start values",
            problems=conditions.FENCED if self._fenced else self._engine_pods.problems(sheds=self._spec.refuses),
            paused=self._spec.paused,
            canary=self._canary_rollout.pod,
            stalled=self.liveness.stall if late else None,
            helpless=self.liveness.helpless if self._spec.live else None,
            unordered=self._engine_pods.unordered() if self._spec.orders else None,
            unclassed=self._engine_pods.unclassed() if self._spec.classes is not None else None,
            learning=f"start values until the step-time model is trusted: {doubts.said(self._state.step_time.fit)}",
        )
        _, _, met = conditions.objectives_status(self._spec.objectives, self._signal_history.outcomes, window=_WINDOW)
        lost = self._event_recorder.said(ConditionType.METRICS_AVAILABLE) == "False"
        metrics = self._signal_history.verdict(ready_pods=ready, lost=lost)
        return {
            ConditionType.METRICS_AVAILABLE: metrics,
            ConditionType.TUNED: conditions.tuned_verdict(progress),
            ConditionType.OBJECTIVES_MET: met,
            ConditionType.CAPACITY_SUFFICIENT: conditions.capacity_verdict(
                self._capacity_report.balance(self._state),
                objectives=self._spec.objectives,
                metrics=metrics,
                known=self._capacity_report.known,
                lengths=self._state.workload.lengths,
            ),
        }

    async def _report(self, verdicts: ConditionStates) -> None:
        """Hand the whole of our part to the writer, which knows what can wait."""
        if not self._dependencies.leadership.may_act():
            return
        rows, met, _ = conditions.objectives_status(
            self._spec.objectives, self._signal_history.outcomes, window=_WINDOW
        )
        generation = self._service.metadata.generation
        found: list[Condition] = [verdict.condition(kind, generation) for kind, verdict in verdicts.items()]
        await self._dependencies.writer.write(
            self._service,
            tuning=self._tuning(),
            objectives=rows,
            objectives_met=met,
            desired_replicas=self._capacity_report.replicas(self._state, verdicts[ConditionType.CAPACITY_SUFFICIENT]),
            conditions=found,
        )

    def _tuning(self) -> TuningStatus:
        live = self._setpoint
        shadow = self._spec.mode is Mode.RECOMMEND or (self._spec.mode is Mode.AUTO and not self._spec.live)
        recommended = self._state.policy if shadow else None
        return TuningStatus(
            mode=self._spec.mode,
            epoch=self._generations.written_epoch,
            generation=self._generations.generation,
            setpoint=status_codec.setpoint_status(Policy.of(live) if live is not None else Policy(limits=Limits())),
            applied_pods=f"{self._engine_pods.applied(live) if live is not None else 0}/{self._engine_pods.ready}",
            model=status_codec.model_status(self._state.step_time),
            binding_objective=self._binding[:63],
            capacity=self._capacity_report.capacity,
            order=self._order if live is not None and live.on_time is not None else None,
            recommended=status_codec.setpoint_status(recommended) if recommended is not None else None,
            slow_pods=status_codec.slow_pods_status(self._stall_fallback.slow_pods),
            decisions=self._decision_history.decisions,
        )

    async def _post(self, kind: EventType, reason: str, message: str) -> None:
        _log.info("%s/%s: %s: %s", *self.labels, reason, message)
        await self._dependencies.events.post(self._service, type=kind, reason=reason, message=message)

    def _applied(self, answer: Acknowledged) -> None:
        longest = max((core.longest_step_seconds for core in answer.read_back.cores), default=0.0)
        self._dependencies.metrics.pushed(*self.labels, seconds=answer.seconds, longest_step=longest)

    def _tripped(self, message: str) -> None:
        self._event_recorder.news.append(("Warning", conditions.Reason.WATCHDOG_TRIPPED, message))

    def _failed(self, error: EngineError) -> None:
        _log.warning("%s/%s: push failed: %s", *self.labels, error)
        self._dependencies.metrics.push_failed(*self.labels, type(error).__name__.removesuffix("Error"))


def _content(setpoint: Setpoint | None) -> tuple[object, object] | None:
    return (Policy.of(setpoint), setpoint.objectives) if setpoint is not None else None
