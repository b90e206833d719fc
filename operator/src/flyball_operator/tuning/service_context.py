"""What the stages of one service's tuning share: the service, its spec, the state, the setpoint and its number."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from flyball_engine.contract import Setpoint
from flyball_engine.model import StepModel
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.engines.client import Acknowledged
from flyball_operator.engines.errors import EngineError
from flyball_operator.tuning.actuate.generation_bounds import GenerationBounds
from flyball_operator.tuning.actuate.generations import Generations
from flyball_operator.tuning.capacity import asked
from flyball_operator.tuning.dependencies import Dependencies
from flyball_operator.tuning.ports import EventType
from flyball_operator.tuning.report import status_codec
from flyball_operator.tuning.spec import tuning_spec
from flyball_operator.tuning.state import TuningState

_log: Final = logging.getLogger(__name__)


class ServiceContext:
    """One service under one leadership. `setpoint`: what engines were told last, None before anything was.

    `prior`: the model of a service of the same kind.
    """

    def __init__(self, service: InferenceService, dependencies: Dependencies, prior: StepModel | None) -> None:
        self.dependencies = dependencies
        self.metrics = dependencies.metrics
        self.service = service
        self.labels = (service.metadata.namespace, service.metadata.name)
        self.spec = tuning_spec(service.spec, service.metadata.annotations)
        resumed = status_codec.resumed(service.status.tuning, self.spec, prior)
        self.state: TuningState = replace(resumed, advised=service.status.desired_replicas)
        held_until = status_codec.held_until(service.status.tuning, dependencies.wall())
        if held_until is not None:
            self.state = self.state.held(self.state.policy, until=held_until)
        self.setpoint: Setpoint | None = None
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
            return False
        before, self.spec = self.spec, tuning_spec(service.spec, metadata.annotations)
        if asked(before) == asked(self.spec):
            return False
        # Or it would be said of the new objectives what was found of the old ones.
        self.state = replace(self.state, balance=None)
        return True

    def take_back(self, before: TuningState) -> None:
        """Unmake a decision that went nowhere.

        Left standing it would be made live later, maybe when nothing is observed any more.
        """
        self.state = replace(before, step_time=self.state.step_time)

    async def post(self, kind: EventType, reason: str, message: str) -> None:
        """Post an event."""
        _log.info("%s/%s: %s: %s", *self.labels, reason, message)
        await self.dependencies.events.post(self.service, type=kind, reason=reason, message=message)

    def push_succeeded(self, answer: Acknowledged) -> None:
        """Count a push that an engine has confirmed."""
        longest = max((core.longest_step_seconds for core in answer.read_back.cores), default=0.0)
        self.metrics.pushed(*self.labels, seconds=answer.seconds, longest_step=longest)

    def push_failed(self, error: EngineError) -> None:
        """Count a push that failed."""
        _log.warning("%s/%s: push failed: %s", *self.labels, error)
        self.metrics.push_failed(*self.labels, error.outcome)
