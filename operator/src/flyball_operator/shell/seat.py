"""One service in the brain: decide, write the intent, push, confirm, report.

The order of a change is fixed: intent in status first, then the push, then the read-back. So whatever dies in between,
the next leader finds in status the newest number that any engine can hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import CONTROL_PORT, Limits, Setpoint
from flyball_operator.api.v1alpha1 import Condition, ConditionType, InferenceService, Mode, Overload, TuningStatus
from flyball_operator.engines.client import Acknowledged, EngineClient
from flyball_operator.engines.errors import EngineError
from flyball_operator.governor import record, report
from flyball_operator.governor.capacity import asked
from flyball_operator.governor.governor import STALE_SECONDS, Decision, State, decide, learn_steps
from flyball_operator.governor.journal import Journal, is_change
from flyball_operator.governor.policy import Policy
from flyball_operator.governor.report import Progress, Verdict
from flyball_operator.governor.signals import (
    Missing,
    Observation,
    Outcome,
    Reading,
    Signals,
    StepWindow,
    Unobserved,
    blind_spot,
    steps_between,
)
from flyball_operator.governor.spec import TuningSpec, tuning_spec
from flyball_operator.shell.brain_metrics import BrainMetrics
from flyball_operator.shell.crew import Crew
from flyball_operator.shell.ports import BrainStatusWriter, EnginePod, Events, EventType, Leadership

_log: Final = logging.getLogger(__name__)
_WINDOW: Final = "5m"


@dataclass(frozen=True)
class Tools:
    """What every seat uses. `wall` gives Unix seconds, `clock` measures durations.

    `grace_seconds`: how long signals may be missing before a condition says so; one late answer is no outage.
    """

    client: EngineClient
    leadership: Leadership
    writer: BrainStatusWriter
    events: Events
    metrics: BrainMetrics
    wall: Callable[[], float]
    clock: Callable[[], float]
    control_port: int = CONTROL_PORT
    grace_seconds: float = STALE_SECONDS


class Seat:
    """The brain's memory of one service under one leadership, and what it does each tick."""

    def __init__(self, service: InferenceService, tools: Tools) -> None:
        self._tools = tools
        self._service = service
        self._spec = tuning_spec(service.spec)
        tuning = service.status.tuning
        self._state: State = replace(record.resumed(tuning, self._spec), advised=service.status.desired_replicas)
        self._capacity = _capacity_known(service)
        self._journal = Journal(tuning.decisions)
        self._binding = tuning.binding_objective
        self._intent_epoch, self._generation = tuning.epoch, tuning.generation
        self._setpoint: Setpoint | None = None
        self._verdicts = {c.type: (c.status, c.reason) for c in service.status.conditions}
        observed = self._verdicts.get(ConditionType.METRICS_AVAILABLE, ("Unknown", ""))[0] == "True"
        self._observed_at: float | None = tools.clock() if observed else None
        self._began_at = tools.clock()
        self._trusted = self._state.learner.model is not None
        self._surveyed = False
        self._followed = self._spec
        self._observation: Observation = _NOT_ASKED
        self._attainment: Mapping[str, Outcome] | Unobserved = _NOT_ASKED
        self._counted_at: float | None = None
        self._read_steps: Reading | None = None
        self.lock = asyncio.Lock()
        meta = service.metadata
        self.labels = (meta.namespace, meta.name)
        self._stalls: list[str] = []
        self._crew = Crew(
            tools.client, tools.clock, self._applied, self._failed, self._stalls.append, tools.control_port
        )

    def update(self, service: InferenceService, pods: Sequence[EnginePod]) -> None:
        """Take note of the service and its pods as they are now."""
        before, self._service, self._spec = self._spec, service, tuning_spec(service.spec)
        if asked(before) != asked(self._spec):
            self._capacity = ("", None)
        self._crew.muster(pods)

    async def close(self) -> None:
        """End what is still being said to engines."""
        await self._crew.close()

    @property
    def _may_act(self) -> bool:
        return self._tools.leadership.may_act() and not self._fenced

    @property
    def _fenced(self) -> bool:
        """Whether an engine has heard of a newer leader. Only this service stops: a pod must not silence the others."""
        newest = self._crew.newest()
        return newest is not None and newest.epoch > self._tools.leadership.epoch

    @property
    def _overtaken(self) -> bool:
        """Whether an engine holds a number of our own epoch that we have not given, or another body under ours."""
        newest, live = self._crew.newest(), self._setpoint
        return live is not None and ((newest is not None and newest.order() > live.order()) or self._crew.conflicted)

    @property
    def _decided_by(self) -> TuningSpec:
        """The spec, but that where some engine cannot refuse requests a queue is drained, and not left to grow."""
        return self._spec if self._crew.gates else replace(self._spec, overload=Overload.QUEUE)

    def _learn_from_read_backs(self, observation: Observation, now: float) -> None:
        """While Prometheus has no steps for us, take them from the read-backs: limits hold, the model stays fresh."""
        if isinstance(observation, Signals) and isinstance(observation.steps, StepWindow):
            self._read_steps = None
            return
        window, self._read_steps = steps_between(self._read_steps, self._crew.steps(), now)
        if window is not None:
            self._state = learn_steps(self._state, window)

    async def keep(self) -> None:
        """Between ticks: give the setpoint to pods that came back, and follow an edited spec without waiting."""
        if self._setpoint is None or not self._may_act:
            return
        await self._crew.keep(self._setpoint)
        if self._followed != self._spec:
            before = self._state
            self._state, decision = decide(before, _NOT_ASKED, self._decided_by, self._tools.wall())
            await self._conclude(decision, before)

    async def tick(self, observation: Observation, attainment: Mapping[str, Outcome] | Unobserved) -> None:
        """One decision and all that follows from it."""
        self._observation = observation
        self._note_counts(attainment)
        await self._take_over()
        now = self._tools.wall()
        self._learn_from_read_backs(observation, now)
        before = self._state
        self._state, decision = decide(before, observation, self._decided_by, now)
        self._tools.metrics.decided(*self.labels, decision, self._state.learner.fit)
        self._note_capacity()
        if decision.choice is not None:
            self._binding = decision.choice.binding
        self._observe(observation)
        await self._conclude(decision, before)

    def _note_capacity(self) -> None:
        """From a settled balance on that is what is known; what status said before was of an earlier one."""
        balance = self._state.balance
        if balance is not None and balance.settled:
            self._capacity = (report.figure(balance.capacity), None)
        self._tools.metrics.capacity(*self.labels, balance)

    def _note_counts(self, attainment: Mapping[str, Outcome] | Unobserved) -> None:
        """Keep the last counts for as long as it takes to call it an outage: they are over minutes."""
        now = self._tools.clock()
        if not isinstance(attainment, Unobserved):
            self._counted_at = now
        elif self._counted_at is not None and now - self._counted_at < self._tools.grace_seconds:
            return
        self._attainment = attainment

    async def _conclude(self, decision: Decision, before: State) -> None:
        """Make live what should be, and say how things are. `before` is the state that was decided from."""
        self._followed = self._spec
        wanted = self._wanted()
        if self._overtaken or self._setpoint is None or _content(wanted) != _content(self._setpoint):
            if not self._may_act:
                self._take_back(before)
            else:
                await self._change(wanted, decision, before)
        verdicts = self._judge()
        await self._announce(verdicts)
        await self._report(verdicts)

    def _take_back(self, before: State) -> None:
        """Unmake a decision that went nowhere.

        Left standing it would be made live later, maybe when nothing is observed any more.
        """
        self._state = replace(before, learner=self._state.learner)

    async def _take_over(self) -> None:
        """At first, adopt what runs: numbers go on from the newest of status and echoes, the policy is status's."""
        if self._surveyed:
            return
        await self._crew.survey()
        self._surveyed = True
        newest = self._crew.newest()
        if newest is not None:
            self._generation = max(self._generation, newest.generation)
        policy = record.policy_of(self._service.status.tuning.setpoint)
        if policy is not None:
            # Same intent, our epoch: engines learn who leads, before anything is said of them: status says nothing new.
            self._setpoint = self._numbered(policy)
            self._tools.metrics.policy(*self.labels, Policy.of(self._setpoint))
            if self._may_act:
                await self._crew.push(self._setpoint)

    def _numbered(self, policy: Policy) -> Setpoint:
        """A setpoint under the present number, without what some engine cannot do."""
        objectives = {objective.id: objective.contract for objective in self._spec.objectives}
        able = self._crew.able(policy)
        return Setpoint(
            service=self._service.metadata.uid,
            epoch=self._tools.leadership.epoch,
            generation=self._generation,
            limits=able.limits,
            step=able.step,
            shed=able.shed,
            objectives=tuple(objectives.values()),
        )

    def _wanted(self) -> Setpoint:
        """The setpoint that should be live, numbered as the present one."""
        upper = Policy(limits=self._spec.envelope.upper())
        live = Policy.of(self._setpoint) if self._setpoint is not None else upper
        # What is live is left alone in Recommend, but a gate that nobody wants any more.
        left = live if self._spec.sheds else live.ungated
        policy = {Mode.AUTO: self._state.policy, Mode.RECOMMEND: left, Mode.DISABLED: upper}[self._spec.mode]
        return self._numbered(policy)

    async def _change(self, wanted: Setpoint, decision: Decision, decided_from: State) -> None:
        """Intent (N+1) to status, push, read back. If the intent cannot be written, nothing is pushed."""
        before, generation, epoch, journal = self._setpoint, self._generation, self._intent_epoch, self._journal
        newest = self._crew.newest()
        self._generation = max(generation, newest.generation if newest is not None else 0) + 1
        self._intent_epoch = self._tools.leadership.epoch
        self._setpoint = wanted.model_copy(update={"generation": self._generation})
        # Pods start at the upper bounds: that is what a first setpoint moves them from.
        left = Policy.of(before) if before is not None else Policy(limits=self._spec.envelope.upper())
        policy = Policy.of(wanted)
        self._journal = journal.changed(left, policy, decision, self._spec.mode)
        try:
            await self._report(self._judge())
        except BaseException:
            self._setpoint, self._generation, self._intent_epoch, self._journal = before, generation, epoch, journal
            self._take_back(decided_from)
            raise
        await self._crew.push(self._setpoint)
        self._tools.metrics.policy(*self.labels, policy)
        if is_change(left, policy):
            await self._post(
                "Normal",
                "Retuned",
                f"{report.shown(left)} to {report.shown(policy)}: {self._journal.decisions[0].trigger}",
            )

    def _observe(self, observation: Observation) -> None:
        """Note when signals were last good, and what came of the last decision one window after it."""
        if not isinstance(observation, Signals) or blind_spot(observation, STALE_SECONDS) is not None:
            return
        self._observed_at = self._tools.clock()
        self._journal = self._journal.observed(observation, self._spec, self._tools.wall())

    def _judge(self) -> Verdicts:
        ready = self._crew.ready
        live = self._setpoint
        fit = self._state.learner.fit
        progress = Progress(
            mode=self._spec.mode,
            ready_pods=ready,
            applied_pods=self._crew.applied(live) if live is not None else 0,
            trusted=self._state.learner.model is not None,
            limits=report.shown(Policy.of(live)) if live is not None else "no limits",
            problems=_FENCED if self._fenced else self._crew.problems(sheds=self._spec.refuses),
            learning="start values until the step-time model is trusted"
            + (f": {fit.doubt.value}" if fit is not None and fit.doubt is not None else ""),
        )
        _, _, met = report.objectives_status(self._spec.objectives, self._attainment, window=_WINDOW)
        metrics = self._judge_metrics(ready)
        return {
            ConditionType.METRICS_AVAILABLE: metrics,
            ConditionType.TUNED: report.tuned_verdict(progress),
            ConditionType.OBJECTIVES_MET: met,
            ConditionType.CAPACITY_SUFFICIENT: report.capacity_verdict(
                self._state.balance,
                objectives=self._spec.objectives,
                metrics=metrics,
                known=self._capacity[1],
                lengths=self._state.lengths is not None,
            ),
        }

    def _judge_metrics(self, ready: int) -> Verdict:
        missing, now, grace = (
            blind_spot(self._observation, STALE_SECONDS),
            self._tools.clock(),
            self._tools.grace_seconds,
        )
        if missing is None or (self._observed_at is not None and now - self._observed_at < grace):
            return report.metrics_verdict(None, ready_pods=ready)
        # What the status says already, by an earlier leader, is not taken back for our being new.
        known = self._verdicts.get(ConditionType.METRICS_AVAILABLE, ("Unknown", ""))[0] == "False"
        young = self._observed_at is None and not known and now - self._began_at < grace
        return report.metrics_verdict(missing, ready_pods=ready, young=young)

    async def _announce(self, verdicts: Verdicts) -> None:
        """Events on transitions only, and of each trip of a watchdog."""
        while self._stalls:
            await self._post("Warning", report.Reason.WATCHDOG_TRIPPED, self._stalls.pop(0))
        for kind, verdict in verdicts.items():
            before = self._verdicts.get(kind)
            self._verdicts[kind] = (verdict.status, verdict.reason)
            found = report.event(kind, before, verdict)
            if found is not None:
                await self._post(found[0], found[1], verdict.message)
        trusted = self._state.learner.model is not None
        if trusted and not self._trusted and self._state.learner.fit is not None:
            error = self._state.learner.fit.error
            await self._post("Normal", "ModelLearned", f"the step-time model explains steps within {error:.0%}")
        self._trusted = trusted

    async def _report(self, verdicts: Verdicts) -> None:
        """Hand the whole of our part to the writer, which knows what can wait."""
        if not self._tools.leadership.may_act():
            return
        rows, met, _ = report.objectives_status(self._spec.objectives, self._attainment, window=_WINDOW)
        generation = self._service.metadata.generation
        conditions: list[Condition] = [verdict.condition(kind, generation) for kind, verdict in verdicts.items()]
        await self._tools.writer.write(
            self._service,
            tuning=self._tuning(),
            objectives=rows,
            objectives_met=met,
            desired_replicas=self._state.advised if self._spec.objectives else None,
            conditions=conditions,
        )

    def _tuning(self) -> TuningStatus:
        live = self._setpoint
        recommended = self._state.policy if self._spec.mode is Mode.RECOMMEND else None
        return TuningStatus(
            mode=self._spec.mode,
            epoch=self._intent_epoch,
            generation=self._generation,
            setpoint=record.setpoint_status(Policy.of(live) if live is not None else Policy(limits=Limits())),
            applied_pods=f"{self._crew.applied(live) if live is not None else 0}/{self._crew.ready}",
            model=record.model_status(self._state.learner),
            margins=record.margins_status(self._state.margins),
            binding_objective=self._binding[:63],
            capacity=self._capacity[0],
            recommended=record.setpoint_status(recommended) if recommended is not None else None,
            decisions=self._journal.decisions,
        )

    async def _post(self, kind: EventType, reason: str, message: str) -> None:
        _log.info("%s/%s: %s: %s", *self.labels, reason, message)
        await self._tools.events.post(self._service, type=kind, reason=reason, message=message)

    def _applied(self, answer: Acknowledged) -> None:
        longest = max((core.longest_step_seconds for core in answer.read_back.cores), default=0.0)
        self._tools.metrics.pushed(*self.labels, seconds=answer.seconds, longest_step=longest)

    def _failed(self, error: EngineError) -> None:
        _log.warning("%s/%s: push failed: %s", *self.labels, error)
        self._tools.metrics.push_failed(*self.labels, type(error).__name__.removesuffix("Error"))


Verdicts = dict[ConditionType, Verdict]
_NOT_ASKED: Final = Unobserved(Missing.NOT_SCRAPED, "Prometheus has not been asked yet")
_FENCED: Final = ((report.Reason.FENCED, "an engine has heard of a newer leader; this one stopped acting"),)


def _capacity_known(service: InferenceService) -> tuple[str, Verdict | None]:
    """The capacity that status shows, and what it says of it; nothing where that was said of another spec."""
    for found in service.status.conditions:
        if found.type is ConditionType.CAPACITY_SUFFICIENT and found.observed_generation == service.metadata.generation:
            return service.status.tuning.capacity, Verdict(found.status, found.reason, found.message)
    return "", None


def _content(setpoint: Setpoint) -> tuple[object, object]:
    return (Policy.of(setpoint), setpoint.objectives)
