"""A sequence on its way through the padded engine: a row of a batch. Times in seconds of the engine's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from flyball_engine.batching.outcomes import OpenSequence

#: Below this temperature the likeliest token is taken; as in vLLM.
_GREEDY_BELOW: Final = 1e-5
#: A character has at most four bytes, and a token at least one: what is unfinished after so many is no character.
_MOST_UNFINISHED: Final = 8
_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. `seed` None draws anew each time; `ignore_eos` goes on to the number asked for."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _GREEDY_BELOW


class Text:
    """Turns tokens into text as they come; `pieces` has what each of them added, which may be nothing.

    A token may be a part of a character, and what it reads as may depend on those before it: so each is decoded behind
    its predecessors, and kept back while the last character is unfinished.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self.pieces: list[str] = []
        self.tokens: list[int] = []
        self._decode = decode
        self._from = self._told = 0

    def add(self, token: int, *, last: bool) -> None:
        """One more token; with the `last` everything is told, be it unfinished."""
        self.tokens.append(token)
        before = self._decode(self.tokens[self._from : self._told])
        text = self._decode(self.tokens[self._from :])
        kept = len(self.tokens) - self._told
        if text.endswith(_UNFINISHED) and kept < _MOST_UNFINISHED and not last:
            self.pieces.append("")
            return
        self.pieces.append(text[len(before) :])
        self._from, self._told = self._told, len(self.tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One sequence: at most `most` tokens after `prompt`. It is an `GeneratedSequence`.

    `counted`: what the ledger knows it by. `left`: its client is gone; the only field that two threads use: it is set
    in one, and read in the other before each of its tokens.
    """

    number: int
    arrival: float
    prompt: Sequence[int]
    most: int
    sampling: Sampling
    text: Text
    counted: OpenSequence
    priority: int = 0
    tells_tokens: bool = False
    left: bool = False
    finish_reason: str | None = None
    failure: str | None = None
    cached_tokens: int = field(default=0, init=False)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def made(self) -> int:
        """Output tokens so far."""
        return len(self.text.tokens)

    @property
    def token_ids(self) -> Sequence[int] | None:
        """These tokens, where the client asked for them."""
        return self.text.tokens if self.tells_tokens else None

    @property
    def is_open(self) -> bool:
        """Whether it goes on, and somebody waits for it."""
        return not self.left and self.finish_reason is None and self.failure is None

    def pieces(self, start: int) -> Sequence[str]:
        """The text that each token from number `start` on added."""
        return self.text.pieces[start:]
