"""What became of the drafts of vLLM's steps, as requests show it: how many tokens each step gave them.

vLLM counts drafts that were proposed, but not the decodes for which none were found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, Final

from flyball_engine.batching.draft_statistics import DraftStatistics

#: Steps in flight that are remembered; the deepest pipelines have a few.
_MOST_IN_FLIGHT: Final = 64


class DraftCounter:
    """Counts into `statistics`; `most`: tokens that are drafted for a decode at most, 0 where nothing is counted."""

    def __init__(self, statistics: DraftStatistics, *, most: int) -> None:
        self._statistics = statistics
        self._most = most
        self._next = most
        self._offered: dict[int, int] = {}
        self._made: dict[str, int] = {}

    def planned(self, output: Any, *, drafting: int) -> None:
        """A step was planned; `drafting`: tokens that it drafts at most, for the step after it."""
        if not self._most:
            return
        if len(self._offered) >= _MOST_IN_FLIGHT:
            self._offered.clear()
        self._offered[id(output)], self._next = self._next, drafting

    def gone(self, name: str) -> None:
        """A request left."""
        self._made.pop(name, None)

    def ended(self, output: Any, requests: Mapping[str, tuple[float, Sized]]) -> None:
        """The outputs of a step were processed; `requests`: when each came, and its output tokens."""
        offered = self._offered.pop(id(output), None)
        if offered is None:
            return
        decodes, made = [], self._made
        for name, tokens in output.num_scheduled_tokens.items():
            known = requests.get(name)
            if known is None:
                continue
            before, now = made.get(name, 0), len(known[1])
            made[name] = now
            # The step of a first token processes a prompt, and so does one with more tokens than drafts can be.
            if 0 < before < now and tokens <= 1 + self._most:
                decodes.append((tokens - 1, now - before - 1))
        self._statistics.stepped(offered, decodes)
