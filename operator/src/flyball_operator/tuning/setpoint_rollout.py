"""Makes a policy live: the intent is written to status, then it is written to engines, then read back.

The order of a change is fixed. So whatever ends in between, the next leader finds in status the newest number that any
engine can hold.
"""

from __future__ import annotations

from flyball_engine.contract import DEFAULT_CLASS, Batching, Classes, ObjectiveSpec, QueueKnob, QueueLimits, Setpoint
from flyball_operator.api.v1alpha1 import Mode
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.actuate.engine_pods import EnginePods
from flyball_operator.tuning.actuate.lacks import Lacks
from flyball_operator.tuning.actuate.setpoint_trial import undone
from flyball_operator.tuning.actuate.trial_rollout import TrialRollout
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.queueing import Queueing
from flyball_operator.tuning.report import conditions
from flyball_operator.tuning.report.decision_history import cause_of, is_change
from flyball_operator.tuning.report.status_reporter import StatusReporter
from flyball_operator.tuning.service_context import ServiceContext
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import Decision, TuningState
from flyball_operator.tuning.unchanged import Unchanged


class SetpointRollout:
    """Of one service: to its engines at once, or to one of them first."""

    def __init__(
        self, context: ServiceContext, engine_pods: EnginePods, trial_rollout: TrialRollout, reporter: StatusReporter
    ) -> None:
        self._context = context
        self._engine_pods = engine_pods
        self._trial_rollout = trial_rollout
        self._reporter = reporter
        self._surveyed = False
        self._followed = context.spec
        self._owed_to_all = False
        self._numbered, self._differs = Unchanged(_numbered), Unchanged(_differs)
        self._of_setpoint, self._able_of = Unchanged(Policy.of), Unchanged(Lacks.supported_policy)
        self._possible = Unchanged(Queueing.without)
        self._able: Policy | None = None
        self._number = (0, 0)

    @property
    def behind_spec(self) -> bool:
        """Whether the spec was edited since it was last followed."""
        spec = self._context.spec
        return self._followed is not spec and self._followed != spec

    @property
    def live(self) -> Policy | None:
        """The policy that all engines were given last, None if none was, or one alone has it."""
        context = self._context
        if context.setpoint is None or self._trial_rollout.pod is not None:
            return None
        return self._of_setpoint(context.setpoint, context.queueing)

    async def take_over(self) -> None:
        """At first, adopt what runs: the policy is status's, and so is its number, under our epoch."""
        if self._surveyed:
            return
        await self._engine_pods.survey()
        self._surveyed = True
        context = self._context
        policy = status_codec.policy_of(context.service.status.tuning.setpoint)
        if policy is not None:
            # The same setpoint under our epoch, before anything is reported. Status does not change.
            context.queueing = self._held(policy) if context.spec.paused is not None else context.spec.queueing
            context.setpoint = self._made(policy)
            context.metrics.policy(*context.labels, Policy.of(context.setpoint, context.queueing))
            if context.spec.paused is not None:
                self._trial_rollout.resume(context.service.status.tuning)
            if context.may_act and not context.generations.afresh:
                context.generations.give()
                await self._engine_pods.push(context.setpoint)

    async def check_trial(self, now: float) -> str:
        """End the trial of a policy in one pod when that has shown enough; why it failed, until that is undone."""
        context = self._context
        if context.setpoint is None or context.spec.paused is not None:
            return ""
        found = self._trial_rollout.check(context.setpoint, trusted=context.trusted)
        if found is None:
            return self._trial_rollout.failure
        trial, ended = found
        if not ended.why:
            if context.may_act:
                await self._engine_pods.push(context.setpoint)
            return ""
        context.state, message = undone(context.state, trial, ended, now)
        self._trial_rollout.failure = message
        await context.post("Warning", "SetpointTrialFailed", message)
        return message

    async def follow(self, decision: Decision, before: TuningState, *, at_once: bool) -> None:
        """Make live what should be. `before` is the state that was decided from. `at_once`: in all pods."""
        context, trial_rollout, paused = self._context, self._trial_rollout, self._context.spec.paused is not None
        edited = self.behind_spec and not paused
        if edited or paused:
            # What users ask for waits for no trial.
            trial_rollout.stop()
        self._followed = context.spec
        # What is owed to all pods stays so until it is written.
        self._owed_to_all = trial_rollout.pod is None and (self._owed_to_all or at_once or edited)
        context.metrics.paused(*context.labels, paused)
        wanted = self._wanted()
        if trial_rollout.pod is not None:
            # While a policy is tried out nothing else is made live.
            context.state = context.state.undecided(before)
        elif wanted is not None and (self._outnumbered or self._differs(wanted, context.setpoint)):
            if not context.may_act:
                context.state = context.state.undecided(before)
            else:
                await self._change(wanted, decision, before)
                if edited and context.spec.live:
                    trial_rollout.accept(trusted=context.trusted)
        elif not paused:
            trial_rollout.end()
            self._owed_to_all = False

    @property
    def _outnumbered(self) -> bool:
        """Whether the same setpoint needs a newer number: an engine has one above, or status had one that cannot be.

        Pods that were released have one above, which status must have, too.
        """
        live, numbers = self._context.setpoint, self._context.generations
        if live is None:
            return False
        return (
            numbers.afresh
            or numbers.generation > live.generation
            or self._engine_pods.answers.overtaken(live, self._context.bounds())
        )

    @property
    def _asked(self) -> Queueing:
        """What users ask for. While tuning is paused, what is live stays."""
        spec = self._context.spec
        return spec.queueing if spec.paused is None else self._context.queueing

    def _held(self, policy: Policy) -> Queueing:
        """What engines were given of it last: an edit while tuning is paused waits under a new leader, too.

        Where no engine has a setpoint any more, nothing is known of it but the spec.
        """
        held = self._engine_pods.newest()
        return self._context.spec.queueing if held is None else _given(held, policy)

    def _made(self, policy: Policy) -> Setpoint:
        """A setpoint under the present number, without what some engine cannot do."""
        context, generations = self._context, self._context.generations
        lacks = self._engine_pods.lacks
        able, classes = self._able_of(lacks, policy), lacks.unclassed is None
        # While they are equal, they shall be the same: what is made of them is not made anew then.
        self._able = self._able if self._able == able else able
        number = (generations.epoch, generations.generation)
        self._number = self._number if self._number == number else number
        queueing = self._possible(self._asked, lacks.unsupported)
        return self._numbered(self._able, context.spec, context.service.metadata.uid, self._number, classes, queueing)

    def _wanted(self) -> Setpoint | None:
        """The setpoint that should be live, numbered as the present one; None if none should be."""
        spec, setpoint, queueing = self._context.spec, self._context.setpoint, self._context.queueing
        if spec.paused is not None:
            return setpoint
        if spec.mode is Mode.AUTO:
            return self._made(self._context.state.policy)
        upper = Policy(limits=spec.envelope.upper())
        if spec.mode is Mode.DISABLED:
            return self._made(upper)
        live = self._trial_rollout.others(upper, queueing)
        if live is None:
            live = Policy.of(setpoint, queueing) if setpoint is not None else upper
        # What is live is left alone in Recommend, but for the order, a gate that nobody wants, and what one pod was to
        # try.
        return self._made(live.within(sheds=spec.sheds, orders=False))

    async def _change(self, wanted: Setpoint, decision: Decision, decided_from: TuningState) -> None:
        """Intent (N+1) to status, push, read back. If the intent cannot be written, nothing is pushed."""
        context, reporter, generations = self._context, self._reporter, self._context.generations
        before, history, numbers = context.setpoint, reporter.history, generations.advance()
        queueing, context.queueing = context.queueing, self._asked
        number = {"epoch": generations.epoch, "generation": generations.generation}
        context.setpoint = wanted.model_copy(update=number)
        # Pods start at the upper bounds: that is what a first setpoint moves them from.
        start = Policy(limits=context.spec.envelope.upper())
        left = start if before is None else Policy.of(before, queueing)
        policy = Policy.of(wanted, context.queueing)
        reporter.history = history.changed(left, policy, decision, context.spec.mode)
        try:
            await reporter.write(reporter.states())
        except BaseException:
            context.setpoint, context.queueing, reporter.history = before, queueing, history
            generations.restore(numbers)
            context.state = context.state.undecided(decided_from)
            raise
        generations.give()
        if context.spec.paused is None:
            self._trial_rollout.end()
        owed, self._owed_to_all = self._owed_to_all, False
        # What was not decided now is where pods are to begin, or go on from.
        if decision.changed and not owed and is_change(left, policy):
            await self._trial_rollout.begin(before, left, live=context.spec.live, trusted=context.trusted)
        await self._engine_pods.push(context.setpoint)
        context.metrics.policy(*context.labels, policy)
        if is_change(left, policy):
            context.metrics.limits_changed(*context.labels, cause_of(decision, context.spec.mode), decision.at)
            why = reporter.history.decisions[0].trigger
            await context.post("Normal", "Retuned", f"{conditions.shown(left)} to {conditions.shown(policy)}: {why}")
        # What engines lack is not in it.
        given = _given(context.setpoint, policy)
        if fields := given.changed(Queueing() if before is None else _given(before, left)):
            await context.post("Normal", "QueueingChanged", f"as spec.tuning asks: {fields}")


def _given(setpoint: Setpoint, policy: Policy) -> Queueing:
    """What of a setpoint is as users ask for; `policy` is the law's part of it."""
    found = Queueing(setpoint.batching, setpoint.queue)
    return found if policy.queued_tokens is None else found.without((QueueKnob.MAX_NUM_QUEUED_TOKENS,))


def _numbered(
    able: Policy, spec: TuningSpec, uid: str, number: tuple[int, int], classed: bool, queueing: Queueing
) -> Setpoint:
    classes = None
    if queueing.batching.chooses() is not None:
        # What is live, or in status, may have an order that the spec has no more.
        able = able.within(sheds=True, orders=False)
    # What is live, or in status, may have deadlines of classes that the spec has no more.
    able = able.due_by({name: due for name, due in able.deadlines.items() if spec.names_class(name)})
    if classed:
        classes = spec.classes_due(dict(able.class_deadlines))
    names = (DEFAULT_CLASS, *(() if classes is None else classes.names))
    objectives = {o.id: o.contract for o in spec.objectives if o.of_class in names}
    return Setpoint(
        service=uid,
        epoch=number[0],
        generation=number[1],
        limits=able.limits,
        step=able.step,
        shed=able.shed,
        on_time=able.on_time,
        batching=queueing.batching,
        queue=queueing.limits(able.queued_tokens),
        objectives=tuple(objectives.values()),
        classes=classes,
    )


def _differs(wanted: Setpoint, live: Setpoint | None) -> bool:
    return live is None or _body(wanted) != _body(live)


def _body(setpoint: Setpoint) -> tuple[Policy, Batching, QueueLimits, tuple[ObjectiveSpec, ...], Classes | None]:
    """All that it says but its number."""
    policy = Policy.of(setpoint, Queueing())
    return policy, setpoint.batching, setpoint.queue, setpoint.objectives, setpoint.classes
