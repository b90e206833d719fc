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
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Cohort:
    """Requests that would have been one padded batch. `size`: members at most. `open`: those that have not ended.

    Of prompts and of outputs: tokens in all, and of the longest.
    """

    size: float
    whole: bool
    members: int = 0
    open: int = 0
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

    def admit(self, prompt: int, *, batch: int, whole: bool) -> Cohort:
        """A request with so many prompt tokens is admitted; its cohort.

        `batch`: requests that run in the step it joins, all that join with it included. `whole`: the engine runs
        batches to their ends.
        """
        cohort = self._filling
        if cohort is None or cohort.whole != whole:
            self._close()
            cohort = self._filling = Cohort(size=math.inf if whole else batch, whole=whole)
        cohort.members += 1
        cohort.open += 1
        self._running += 1
        cohort.prompts += prompt
        cohort.longest_prompt = max(cohort.longest_prompt, prompt)
        if cohort.members >= cohort.size:
            self._filling = None
        return cohort

    def end(self, cohort: Cohort, output: int) -> None:
        """A member ended after so many output tokens."""
        cohort.open -= 1
        self._running -= 1
        cohort.outputs += output
        cohort.longest_output = max(cohort.longest_output, output)
        if not cohort.open and cohort is not self._filling:
            self._complete(cohort)
        if not self._running:
            self._close()

    def _close(self) -> None:
        """Nobody joins the one that fills any more."""
        cohort, self._filling = self._filling, None
        if cohort is not None and not cohort.open:
            self._complete(cohort)
