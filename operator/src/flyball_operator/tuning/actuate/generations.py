"""The numbers of one service's setpoints while we lead, and how far those of its engines can be."""

from __future__ import annotations

from collections.abc import Iterable

from flyball_engine.contract import Generation
from flyball_operator.api.v1alpha1 import InferenceService, InferenceServiceStatus
from flyball_operator.tuning.actuate.generation_bounds import GenerationBounds, counted_on
from flyball_operator.tuning.dependencies import Dependencies


class Generations:
    """What the next setpoint is numbered by. A service that is taken up again goes on with what it was given before."""

    def __init__(self, service: InferenceService, dependencies: Dependencies) -> None:
        self._leadership = dependencies.leadership
        self._given = dependencies.given
        self._uid = service.metadata.uid
        self._epoch = 0
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
        return GenerationBounds(
            epoch=self.epoch, recorded=max(status.epoch, status.tuning.epoch), given=self.generation
        )

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

    def repair(self, claimed: Iterable[Generation], reach: GenerationBounds) -> None:
        """Have an epoch taken that orders above numbers of engines that nothing explains, where one can be."""
        remedies = [reach.remedy(found) for found in claimed if reach.doubt(found) is not None]
        above = max((epoch for epoch in remedies if epoch is not None), default=None)
        if above is not None:
            self._leadership.raise_epoch(above)
