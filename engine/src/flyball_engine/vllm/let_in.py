"""Which requests of an engine core may still be refused, and which of them are to be: `batching.late` on vLLM's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from flyball_engine.batching.late import LetIn, SequenceProgress, but_one_alone
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.vllm.refusal import class_in, mark_in, told_of
from flyball_engine.vllm.scheduler_adapter import CachedTokens, SchedulerAdapter, computed_tokens

_STARTED: Final = SequenceProgress(started=True)
_GONE: Final = SequenceProgress(gone=True)


class RefusableRequests:
    """Those of one scheduler that may be refused yet. Everything here runs on the core's own thread, between steps."""

    def __init__(
        self,
        adapter: SchedulerAdapter,
        *,
        cached: CachedTokens | None,
        wall_clock: Callable[[], float],
    ) -> None:
        """`cached`: what knows the prefix cache, None if nobody does.

        `wall_clock`: the one that API servers tell by when they sent a request.
        """
        self._adapter = adapter
        self._cached = cached
        self._wall_clock = wall_clock
        self._let_in: LetIn[Any] = LetIn()
        self._deaf_since = 0.0

    def __len__(self) -> int:
        return len(self._let_in)

    def step_begins(self, now: float) -> None:
        """Until it ends, the core hears of no request."""
        self._deaf_since = now

    def received(self, request: Any, now: float, told: Mapping[str, Any] | None) -> None:
        """Remember a request that may be refused, as was `told` of it, with its arrival by our clock.

        It waited in its API server, and at our door for the end of a step: there for no longer than that step, whatever
        the clock of another machine says.
        """
        running = len(self._adapter.running)
        if running <= 1 and running + self._adapter.waiting() <= 1:
            # The core was idle, and hears at once.
            self._deaf_since = now
        if (mark := mark_in(told)) is None:
            return
        waited = mark.waited + max(0.0, min(self._wall_clock() - mark.sent_at, now - self._deaf_since))
        key = (request.client_index, mark.number)
        tokens, of_class = request.num_prompt_tokens, class_in(told)
        self._let_in.add(request, key=key, size=mark.sequences, arrived=now - waited, tokens=tokens, of_class=of_class)

    def has(self, request: Any) -> bool:
        """Whether a request may be refused yet, by itself: of several sequences others may have begun."""
        mark = mark_in(told_of(request)) if self._let_in else None
        return mark is not None and mark.sequences == 1 and self._let_in.has((request.client_index, mark.number))

    def late(
        self, *, deadlines: Mapping[str, float], rate: PrefillRate | None, now: float
    ) -> tuple[list[list[Any]], list[Any]]:
        """The sequences of each request that is to be refused, and those that stay in any case from now on.

        `deadlines`, `rate`: see `LetIn.late`.
        """
        late = self._let_in.late(self._progress, deadlines=deadlines, rate=rate, now=now)
        return but_one_alone(late, present=len(self._adapter.running) + self._adapter.waiting())

    def _progress(self, request: Any) -> SequenceProgress:
        """How far a request is that may be refused."""
        if request.num_output_tokens:
            return _STARTED
        if not self._adapter.has(request):
            return _GONE
        computed = computed_tokens(request, self._cached)
        left = max(0, request.num_prompt_tokens - computed)
        return SequenceProgress(tokens=left, attention=left * (computed + left / 2))
