"""What the stages of one service's tuning share: the service, its spec, the state, the setpoint and its number."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from flyball_engine.contract import Generation, Setpoint
from flyball_engine.model import StepModel
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.v1alpha1 import InferenceService, InferenceServiceStatus
from flyball_operator.engines.client import Acknowledged
from flyball_operator.engines.errors import EngineError
from flyball_operator.tuning import scaling_codec, status_codec
from flyball_operator.tuning.actuate.generation_bounds import GenerationBounds, counted_on
from flyball_operator.tuning.capacity import asked
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.policy import first_policy
from flyball_operator.tuning.ports import EventType
from flyball_operator.tuning.spec import tuning_spec
from flyball_operator.tuning.state import TuningState
from flyball_operator.tuning.tunables import TUNABLES
from flyball_operator.tuning.unchanged import Equal

_log: Final = logging.getLogger(__name__)


class ServiceContext:
    """One service under one leadership. `setpoint`: what engines were given last, None before anything was.

    `prior`: the model of a service of the same kind. `takes_over`: scaling begins with the pods there are once no
    rollout is under way.
    """

    def __init__(self, service: InferenceService, dependencies: Dependencies, prior: StepModel | None) -> None:
        self.dependencies = dependencies
        self.metrics = dependencies.metrics
        self.service = service
        self.labels = (service.metadata.namespace, service.metadata.name)
        #: What engines were started with; None before one has said so.
        self._ceilings: tuple[int, int] | None = None
        self.spec = tuning_spec(service.spec, service.metadata.annotations)
        resumed = status_codec.resumed(service.status.tuning, self.spec, prior)
        desired = scaling_codec.resumed(service.status, self.spec, dependencies.wall())
        # Services that are taken up at once are not fitted at once from then on.
        share = zlib.crc32(service.metadata.uid.encode()) / 2**32
        step_time = replace(resumed.step_time, fit_due=dependencies.wall() + share * TUNABLES.fits_apart)
        self.state: TuningState = replace(resumed, desired=desired, step_time=step_time)
        self.takes_over = self.spec.scaling is not None and service.status.present_scaling is None
        held_until = status_codec.held_until(service.status.tuning, dependencies.wall())
        if held_until is not None:
            self.state = self.state.held(self.state.policy, until=held_until)
        self.setpoint: Setpoint | None = None
        #: What the setpoint has of what users ask for.
        self.queueing = self.spec.queueing
        self.generations = Generations(service, dependencies)

    @property
    def trusted(self) -> bool:
        """Whether decisions rest on a model."""
        return self.state.step_time.model is not None

    @property
    def fenced(self) -> bool:
        """Whether status names a newer leader. An engine's word is not enough: a pod must not silence its operator."""
        return self.bounds().fenced

    @property
    def may_act(self) -> bool:
        """Whether engines may be written to."""
        return self.dependencies.leadership.may_act() and not self.fenced

    def bounds(self) -> GenerationBounds:
        """How far epochs and generations can have got."""
        return self.generations.reach(self.service.status)

    def update(self, service: InferenceService) -> bool:
        """Take note of the service as it is now. Returns whether engines are asked for something else than before."""
        # Every second: the same objects until something of them is written.
        metadata, known, present = service.metadata, self.service.metadata, self.service.spec
        self.service = service
        if service.spec is present and metadata.annotations == known.annotations:
            self._take_over()
            return False
        before, self.spec = self.spec, tuning_spec(service.spec, metadata.annotations, self._ceilings)
        self.takes_over = self.spec.scaling is not None and (self.takes_over or before.scaling is None)
        self._take_over()
        if asked(before) == asked(self.spec):
            return False
        # Or it would be said of the new objectives what was found of the old ones.
        desired = self.state.desired
        self.state = replace(self.state, balance=None, desired=desired.forgotten() if desired is not None else None)
        return True

    @property
    def sized(self) -> bool:
        """Whether it is known what the engines were started with: without it no limit may be chosen."""
        return self.service.spec.workload is None or self._ceilings is not None

    def note_ceilings(self, ceilings: tuple[int, int] | None) -> None:
        """Take note of what engines were started with."""
        if ceilings is None or ceilings == self._ceilings:
            return
        self._ceilings, before = ceilings, self.spec
        self.spec = tuning_spec(self.service.spec, self.service.metadata.annotations, ceilings)
        if self.state.policy == first_policy(before):
            # Nothing was chosen yet: it begins with all that they have, not with what others had.
            self.state = replace(self.state, policy=first_policy(self.spec))

    def _take_over(self) -> None:
        """Whatever was advised before, the operator begins to scale with what runs."""
        if self.takes_over and not scaling_codec.rolling(self.service.status):
            self.takes_over = False
            self.state = replace(self.state, desired=scaling_codec.taken_over(self.service.status))

    async def post(self, kind: EventType, reason: str, message: str) -> None:
        """Post an event."""
        _log.info("%s/%s: %s: %s", *self.labels, reason, message, extra=logged(LogEvent.SERVICE_EVENT, *self.labels))
        await self.dependencies.events.post(self.service, type=kind, reason=reason, message=message)

    def push_succeeded(self, answer: Acknowledged) -> None:
        """Count a push that an engine has confirmed."""
        longest = max((core.longest_step_seconds for core in answer.read_back.cores), default=0.0)
        self.metrics.pushed(*self.labels, seconds=answer.seconds, longest_step=longest)

    def push_failed(self, error: EngineError) -> None:
        """Count a push that failed."""
        _log.warning("%s/%s: push failed: %s", *self.labels, error, extra=logged(LogEvent.PUSH_FAILED, *self.labels))
        self.metrics.push_failed(*self.labels, error.outcome)


class Generations:
    """What the next setpoint is numbered by. A service that is taken up again goes on with what it was given before."""

    def __init__(self, service: InferenceService, dependencies: Dependencies) -> None:
        self._leadership = dependencies.leadership
        self._given = dependencies.given
        self._uid = service.metadata.uid
        self._epoch = 0
        self._bounds = Equal(GenerationBounds)
        tuning = service.status.tuning
        self.generation = max(counted_on(tuning.generation), self._given.get(self._uid, 0))
        #: The epoch that status has: it was written under that, and under another one only with the next change.
        self.written_epoch = tuning.epoch
        #: Whether status had numbers that we cannot have reached. Then numbering began anew, and says so in status.
        self.afresh = self.generation < tuning.generation

    @property
    def epoch(self) -> int:
        """Epoch of this leadership, the last one known while the lease is not sure."""
        self._epoch = self._leadership.epoch or self._epoch
        return self._epoch

    def reach(self, status: InferenceServiceStatus) -> GenerationBounds:
        """How far numbers can have got by now."""
        return self._bounds(self.epoch, max(status.epoch, status.tuning.epoch), self.generation)

    def advance(self) -> tuple[int, int, bool]:
        """Take the next number. Returns what to give to `restore` if it cannot be written."""
        before = (self.generation, self.written_epoch, self.afresh)
        self.generation, self.written_epoch, self.afresh = self.generation + 1, self.epoch, False
        return before

    def restore(self, before: tuple[int, int, bool]) -> None:
        """Take a number back that was given to nobody."""
        self.generation, self.written_epoch, self.afresh = before

    def give(self) -> None:
        """Note that the present number goes to engines."""
        self._given[self._uid] = self.generation

    def repair(self, unexplained: Iterable[Generation], reach: GenerationBounds) -> None:
        """Have an epoch taken that orders above numbers of engines that nothing explains, where one can be."""
        remedies = [reach.remedy(found) for found in unexplained]
        above = max((epoch for epoch in remedies if epoch is not None), default=None)
        if above is not None:
            self._leadership.raise_epoch(above)
