"""What a padded batch of the same requests would have wasted: requests in cohorts, by admission.

A padded batch computes every prompt as long as its longest, and every row until the longest answer ends. Under a
strategy that runs batches the cohort is the batch. Under continuous batching there is none. So it is the batch that an
engine with as many rows would have made of the same requests in the same order. That is as many consecutive admissions
as requests ran when the first of them was admitted. Either way a cohort takes no more members once nothing runs, and is
counted when its last member has ended.

Pure: imports only the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Cohort:
    """Requests that would have been one padded batch. `size`: members at most. `ended`: those that have.

    Of prompts and of outputs: tokens in all, and of the longest.
    """

    size: float
    whole: bool
    members: int = 0
    ended: int = 0
    prompts: int = 0
    longest_prompt: int = 0
    outputs: int = 0
    longest_output: int = 0

    @property
    def padded_prompts(self) -> int:
        """Prompt tokens that the padded batch would have computed."""
        return self.members * self.longest_prompt

    @property
    def padded_outputs(self) -> int:
        """Output tokens that the padded batch would have computed."""
        return self.members * self.longest_output


class Cohorts:
    """Forms cohorts, and tells `complete` of each when its last member has ended."""

    def __init__(self, complete: Callable[[Cohort], None]) -> None:
        self._complete = complete
        self._running = 0
        self._filling: Cohort | None = None

    def admit(self, prompts: Sequence[int], *, batch: int, whole: bool) -> list[Cohort]:
        """Requests with so many prompt tokens each are admitted; the cohort of each.

        `batch`: requests that run in the step they join, all that join in it included. `whole`: the engine runs batches
        to their ends.
        """
        cohorts: list[Cohort] = []
        while left := prompts[len(cohorts) :]:
            cohort = self._filling
            if cohort is None or cohort.whole != whole:
                self._close()
                cohort = self._filling = Cohort(size=math.inf if whole else batch, whole=whole)
            taken = left[: max(1, int(min(len(left), cohort.size - cohort.members)))]
            cohort.members += len(taken)
            cohort.prompts += sum(taken)
            cohort.longest_prompt = max(cohort.longest_prompt, *taken)
            self._running += len(taken)
            if cohort.members >= cohort.size:
                self._filling = None
            cohorts += [cohort] * len(taken)
        return cohorts

    def end(self, cohort: Cohort, output: int) -> None:
        """A member ended after so many output tokens."""
        cohort.ended += 1
        self._running -= 1
        cohort.outputs += output
        cohort.longest_output = max(cohort.longest_output, output)
        if cohort.ended == cohort.members and cohort is not self._filling:
            self._complete(cohort)
        if not self._running:
            self._close()

    def _close(self) -> None:
        """Nobody joins the one that fills any more."""
        cohort, self._filling = self._filling, None
        if cohort is not None and cohort.ended == cohort.members:
            self._complete(cohort)
