"""A batch that runs: which of its rows go on after each step, and what of the work was padding.

All rows are computed in every step until the last has ended, and each prompt as long as the longest: that is what
padding costs. A row that has ended, or whose client left, is padding from then on.

No import of torch: `generator` calls `stepped` from its own thread, and everything else belongs to the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flyball_engine.batching.step_statistics import Step
from flyball_lab.padded.requests import Row

STOPPED = "stop"
FULL_LENGTH = "length"


@dataclass(frozen=True)
class News:
    """A token of a row, and why it is the last, if it is."""

    row: Row
    token: int
    finish_reason: str | None


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A step that ended `at`, `seconds` after the one before; number 0 processed the prompts. `news`: of open rows."""

    number: int
    at: float
    seconds: float
    news: Sequence[News]


class Batch:
    """Rows that are computed together. `tell` hears of each step, in the thread that makes them."""

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        ends: frozenset[int],
        clock: Callable[[], float],
        tell: Callable[[Stepped], None],
    ) -> None:
        self.rows = rows
        self.width = max(row.prompt_tokens for row in rows)
        self.most = max(row.most for row in rows)
        self._ends = ends
        self._clock = clock
        self._tell = tell
        self._made = 0
        self._going = [True] * len(rows)
        self._updated = clock()

    def stepped(self, tokens: Sequence[int]) -> list[bool]:
        """Each row has one more token, that of an ended row means nothing; answers which rows have ended."""
        number, self._made = self._made, self._made + 1
        news: list[News] = []
        for index, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            if self._going[index]:
                self._going[index] = not row.left and self._take(row, token, news)
        now = self._clock()
        self._tell(Stepped(number=number, at=now, seconds=now - self._updated, news=news))
        self._updated = now
        return [not goes for goes in self._going]

    def _take(self, row: Row, token: int, news: list[News]) -> bool:
        """Note a token; whether the row goes on."""
        reason = None
        if token in self._ends and not row.sampling.ignore_eos:
            reason = STOPPED
        elif self._made >= row.most:
            reason = FULL_LENGTH
        news.append(News(row, token, reason))
        return reason is None

    def step(self, number: int) -> Step:
        """What a step computed, padding included: its time depends on that."""
        rows = len(self.rows)
        if number == 0:
            tokens = rows * self.width
            squares = rows * self.width**2
            return Step(tokens, tokens, decodes=0, kv_tokens=0, prefill_attention=squares / 2, prefill_squares=squares)
        return Step(tokens=rows, prefill_tokens=0, decodes=rows, kv_tokens=self.held(number), prefill_attention=0.0)

    def held(self, number: int) -> int:
        """Tokens in the KV cache after so many steps that made tokens of earlier ones."""
        return len(self.rows) * (self.width + number)


class ComputePhase(StrEnum):
    """What tokens were computed for."""

    PROMPT = "prompt"
    OUTPUT = "output"


class Use(StrEnum):
    """What became of a token that was computed."""

    USEFUL = "useful"
    """Of a prompt, or a token that somebody waited for."""
    PADDING = "padding"
    """Before a prompt shorter than the longest; for a row that had ended, or whose client had left."""


class Padding:
    """Counts computed tokens by phase and use, since the start."""

    def __init__(self) -> None:
        self.tokens: Counter[tuple[ComputePhase, Use]] = Counter(
            {(phase, use): 0 for phase in ComputePhase for use in Use}
        )

    def count(self, batch: Batch, stepped: Stepped) -> None:
        """One step. The first also makes the first token of each row, which costs nothing beside the prompt."""
        rows = len(batch.rows)
        if stepped.number == 0:
            prompts = sum(row.prompt_tokens for row in batch.rows)
            self._add(ComputePhase.PROMPT, useful=prompts, computed=rows * batch.width)
        else:
            self._add(ComputePhase.OUTPUT, useful=len(stepped.news), computed=rows)

    def _add(self, phase: ComputePhase, *, useful: int, computed: int) -> None:
        self.tokens[phase, Use.USEFUL] += useful
        self.tokens[phase, Use.PADDING] += computed - useful
