"""What every baseline sees, and what it answers. Pure.

The figures of a window are exact and a second old at most. A rule that reads them from Prometheus would have them later
and in buckets: what is measured here is the rule, not its metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, Self

from flyball_engine.contract import Limits
from flyball_operator.tuning.spec import Span

#: Seconds of a window: that of Netflix' limiter, and some thirty steps of an engine, each of which others act on.
WINDOW_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Window:
    """What a window of traffic showed; None where nothing was there to be measured.

    `token`: mean seconds between two tokens of a stream, over all that were made. `token_p99`: 99th percentile of the
    seconds per output token over the requests that ended. `batch`: mean decodes of a step, over the steps that had any.
    `running`, `waiting`: requests of an engine at its end. `good`: requests that ended and kept every objective.
    `kv_tokens`: what the KV cache holds. `request_tokens`: mean tokens, prompt and answer, of all that ended so far.
    """

    seconds: float
    token: float | None
    token_p99: float | None
    batch: float | None
    running: float
    waiting: float
    good: int
    kv_tokens: int
    request_tokens: float | None


class Baseline(Protocol):
    """A rule that moves limits by what traffic showed."""

    @property
    def limits(self) -> Limits:
        """Those in force until the next window."""

    def after(self, window: Window) -> Self:
        """The rule after a window."""


@dataclass(frozen=True)
class SearchBounds:
    """The envelope that all have, and the objective for a token in seconds."""

    seqs: Span
    tokens: Span
    token_objective: float

    def limits(self, seqs: float, tokens: float | None = None) -> Limits:
        """Inside the envelope; a rule that knows one limit alone leaves the other where vLLM starts."""
        steps = self.tokens.most if tokens is None else self.tokens.clip(tokens)
        return Limits(max_num_active_seqs=self.seqs.clip(seqs), max_num_scheduled_tokens=steps)
