"""One request as vLLM's load generator saw it, and what a set of them took. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel

from flyball_lab.quantiles import quantile


class RequestRecord(BaseModel):
    """One request as the load generator saw it; times in seconds."""

    start: float
    ttft: float
    gaps: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    expected_tokens: int
    error: str

    @property
    def failed(self) -> bool:
        """Refused, broken off, or without a single token."""
        return bool(self.error) or self.ttft <= 0

    @property
    def reason(self) -> str:
        """Why it failed, in a line."""
        return self.error.strip().rpartition("\n")[2] or "ended without a token"

    @property
    def truncated(self) -> bool:
        """Ended well, with fewer tokens than were asked for."""
        return not self.failed and self.output_tokens < self.expected_tokens

    @property
    def latency(self) -> float:
        """From sending to the last token."""
        return self.ttft + sum(self.gaps)

    @property
    def per_token(self) -> float | None:
        """Mean time per token after the first; None for an answer of one token."""
        return sum(self.gaps) / (self.output_tokens - 1) if self.output_tokens > 1 else None


class Percentiles(BaseModel):
    """Median and 99th percentile, in seconds; None where there was nothing."""

    p50: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """By nearest rank."""
        found = list(values)
        return cls(p50=quantile(found, 0.50), p99=quantile(found, 0.99)) if found else cls()
