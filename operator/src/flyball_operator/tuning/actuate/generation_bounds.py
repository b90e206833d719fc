"""Which numbers of setpoints our own history can explain, and what is done about the others.

Engines answer with the epoch and generation that they hold. Both come out of a pod, which may say anything. What bounds
them is what we know ourselves:

- An epoch is one process's: who holds the Lease with that count. No engine can have heard of one above that of the
  Lease that we hold, unless a status names it.
- Within our epoch every generation is ours, and is counted in memory before it goes to any engine, be it in status by
  then or not. So no engine can hold one above our count, whatever was cut off in between.
- Numbers of earlier epochs need no bound: ours order above them, and nothing is counted on from them.

So nothing that an engine says ever enters our own numbers. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flyball_engine.contract import Generation
from flyball_operator.api.epochs import UNRECORDED_LEADERS

#: The largest generation in a status that is counted on from: one change a second for three years.
LARGEST_GENERATION: Final = 100_000_000


class Unexplained(StrEnum):
    """Why our own history cannot explain what an engine answers with."""

    EPOCH_AHEAD = "EpochAhead"
    """An epoch that neither the Lease nor status has reached."""
    GENERATION_AHEAD = "GenerationAhead"
    """A generation of our epoch that we have not given."""


@dataclass(frozen=True)
class GenerationBounds:
    """How far the numbers of one service can have got.

    `epoch`: that of the Lease we hold, 0 before we ever did. `recorded`: the highest that the service's status names.
    `given`: the highest generation that was given to its engines since we lead.
    """

    epoch: int
    recorded: int
    given: int

    @property
    def fenced(self) -> bool:
        """Whether status names a newer leader."""
        return self.recorded > self.epoch > 0

    def doubt(self, claimed: Generation) -> Unexplained | None:
        """Why these numbers cannot be, None if they can, or nothing is known of ours."""
        if not self.epoch:
            return None
        if claimed.epoch > max(self.epoch, self.recorded):
            return Unexplained.EPOCH_AHEAD
        if claimed.epoch == self.epoch and claimed.generation > self.given:
            return Unexplained.GENERATION_AHEAD
        return None

    def remedy(self, claimed: Generation) -> int | None:
        """The epoch that ours must be above to order above these numbers; None where that is too far to go."""
        return claimed.epoch if claimed.epoch - self.epoch <= UNRECORDED_LEADERS else None

    def message(self, claimed: Generation) -> str:
        """What is wrong with these numbers and what is done, for people; empty if nothing is."""
        doubt = self.doubt(claimed)
        if doubt is None:
            return ""
        wrong, ours = f"epoch {claimed.epoch}", f"no leader had one above {max(self.epoch, self.recorded)}"
        if doubt is Unexplained.GENERATION_AHEAD:
            wrong, ours = f"generation {claimed.generation} of {wrong}", f"the last one given is {self.given}"
        mends = "A new epoch is taken, once an hour at most. " if self.remedy(claimed) is not None else ""
        helps = "If it stays, delete the pod: a new one begins without a setpoint"
        return f"answers with {wrong}, and {ours}. This is not believed. {mends}{helps}"


def counted_on(generation: int) -> int:
    """The generation to count on from, of the one that status names: 0 for one that we cannot have reached."""
    return generation if generation <= LARGEST_GENERATION else 0
