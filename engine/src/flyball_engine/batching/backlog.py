"""What an engine core has received and still has to prefill: a running sum over the prompts that wait.

A walk over a long queue takes longer than a step's bookkeeping may. So each prompt is weighed once as it comes, and its
weight leaves the sum with it. What the prefix cache holds of a prompt changes while it waits, so a few of them are
weighed anew before each publishing, in turn. Whoever comes back to the queue (preempted, a session's next input) is not
told of: where the queue's length says that some are missing, they are looked for.

Pure: what a request weighs, and the queue, are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from flyball_engine.batching.gate import Work

#: Waiting prompts that are weighed anew at a time: the 30 that a gate leaves waiting within 15 steps, 1,000 within 500.
REWEIGHED: Final = 2

#: What is to be processed of a prompt: its tokens, and their prefill attention (token², see `model`).
Weight = tuple[int, float]


class Backlog:
    """The prompts that wait, by name, and the sum of what they need. `received`: requests so far, cumulative."""

    def __init__(self, weigh: Callable[[Any], Weight]) -> None:
        """`weigh`: what is to be processed of a request's prompt, as it is now."""
        self.received = 0
        self._weigh = weigh
        self._waiting: dict[str, tuple[Any, int, float]] = {}
        self._turn: Iterator[str] = iter(())
        self._unseen = 0
        # Whole tokens, and attention in halves: additions and subtractions are exact.
        self._tokens, self._attention = 0, 0.0

    def add(self, name: str, request: Any) -> None:
        """A request waits that did not."""
        tokens, attention = self._weigh(request)
        self._waiting[name] = (request, tokens, attention)
        self._tokens += tokens
        self._attention += attention

    def remove(self, names: Iterable[str]) -> None:
        """Requests wait no more, if they did: they were admitted, or left."""
        waiting = self._waiting
        for name in names:
            if name in waiting:
                _, tokens, attention = waiting.pop(name)
                self._tokens -= tokens
                self._attention -= attention

    def clear(self) -> None:
        """What prompts weigh is another from now on: the next count finds them all anew."""
        self._waiting.clear()
        self._tokens, self._attention = 0, 0.0

    def count(
        self,
        waiting: int,
        *,
        queue: Callable[[], Iterable[Any]],
        ended: Callable[[], Iterable[str]],
        begun: Iterable[Any] = (),
    ) -> Work:
        """What is to be processed of those that wait, and of those whose prompts have `begun`.

        `waiting`: how many wait. Where that differs from what is known, it is asked for the `queue`, and for the names
        of those that `ended` lately.
        """
        if waiting - len(self._waiting) != self._unseen:
            self._settle(waiting, queue, ended)
            # Whom the queue does not show is not looked for in every step.
            self._unseen = waiting - len(self._waiting)
        self._reweigh()
        tokens, attention = self._tokens, self._attention
        for request in begun:
            more = self._weigh(request)
            tokens, attention = tokens + more[0], attention + more[1]
        return Work(waiting, tokens, attention)

    def _settle(self, waiting: int, queue: Callable[[], Iterable[Any]], ended: Callable[[], Iterable[str]]) -> None:
        """Lose those that left, and find those that are missing: most stand first in the queue, being preempted."""
        if len(self._waiting) > waiting:
            self.remove(ended())
        if len(self._waiting) > waiting:
            self.clear()
        for request in queue() if len(self._waiting) < waiting else ():
            if request.request_id not in self._waiting:
                self.add(request.request_id, request)
                if len(self._waiting) == waiting:
                    return

    def _reweigh(self) -> None:
        """Weigh those whose turn it is; the turn goes around."""
        waiting = self._waiting
        for _ in range(min(REWEIGHED, len(waiting))):
            name = next(self._turn, None)
            if name is None:
                self._turn = iter(list(waiting))
                name = next(self._turn)
            if (entry := waiting.get(name)) is not None:
                self.remove((name,))
                self.add(name, entry[0])
