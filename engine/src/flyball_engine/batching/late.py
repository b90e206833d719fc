"""Which requests are refused after they were let in: those whose first token cannot come by its deadline any more.

The gate refuses what is hopeless when it comes, and nobody for the queue. So some of those let in become late while
they wait. After each step the engine looks at some of the requests without a first token. One that would be late even
if it were served alone from now on is refused, and what it would have taken serves the others.

Of a request of several sequences, all are refused or none: it has its first token with the first of any of them. So it
is left alone until all its sequences are here, from the first token on, and where one of them can still be in time.

Pure: the clock is a parameter. Seconds and tokens throughout.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.contract import DEFAULT_CLASS

#: Requests that have their turn before a step: 64 cost some 30 µs, and of 1,000 each has one within 16 steps.
TURNS_IN_A_STEP: Final = 64
#: Sequences that are looked at before a step, at 2 µs each. Only what would be late if nothing of it were processed yet
#: needs that, and some that may be over.
LOOKED_AT_IN_A_STEP: Final = 32
#: Requests that are looked at before a step though they cannot be late yet, so that those that are over are forgotten:
#: no engine ends as many in a step, for long.
SWEPT_IN_A_STEP: Final = 8

R = TypeVar("R")


class SequenceProgress(NamedTuple):
    """How far a sequence is.

    `started`: it has its first token. `gone`: it is no longer in the engine. `tokens` and `attention` are still to be
    processed of its prompt, without what the prefix cache holds.
    """

    started: bool = False
    gone: bool = False
    tokens: float = 0.0
    attention: float = 0.0


class Group(Generic[R]):
    """The sequences of one request. `size`: how many there will be. `arrived`: when the first of them came.

    `prompt`: of the shortest prompt among them, nothing being processed. `of_class`: whose deadline it has.
    """

    __slots__ = ("arrived", "key", "of_class", "prompt", "sequences", "size")

    def __init__(self, key: Hashable, size: int, arrived: float, prompt: SequenceProgress, of_class: str) -> None:
        self.key = key
        self.of_class = of_class
        self.size = size
        self.arrived = arrived
        self.prompt = prompt
        self.sequences: list[R] = []


class LetIn(Generic[R]):
    """The requests without a first token that may still be refused, in turn.

    Bounded by the requests in the engine: those that started or left are forgotten when their turn comes.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, Group[R]] = {}
        self._turns: deque[Group[R]] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def has(self, key: Hashable) -> bool:
        """Whether a request may still be refused, as far as anybody looked."""
        return key in self._groups

    def add(
        self, sequence: R, *, key: Hashable, size: int, arrived: float, tokens: int, of_class: str = DEFAULT_CLASS
    ) -> None:
        """A sequence came that belongs to the request `key`, of so many sequences: with too many it is left alone.

        `tokens`: of its prompt.
        """
        if size > LOOKED_AT_IN_A_STEP:
            return
        prompt = SequenceProgress(tokens=tokens, attention=tokens * tokens / 2)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, size, arrived, prompt, of_class)
            self._turns.append(group)
        if len(group.sequences) < group.size:
            group.sequences.append(sequence)
            group.arrived = min(group.arrived, arrived)
            group.prompt = min(group.prompt, prompt)

    def late(
        self,
        look: Callable[[R], SequenceProgress],
        *,
        deadlines: Mapping[str, float],
        rate: PrefillRate | None,
        now: float,
    ) -> list[list[R]]:
        """Look at some more; the sequences of each request that cannot be in time any more, which is forgotten.

        `deadlines`: seconds from arrival to the first token by class, infinite where it has none; a class that is not
        there has the default one's. Without a `rate` nothing is late.
        """
        found: list[list[R]] = []
        turns, looks, sweeps = self._turns, LOOKED_AT_IN_A_STEP, SWEPT_IN_A_STEP
        default = deadlines.get(DEFAULT_CLASS, math.inf)
        for _ in range(min(len(turns), TURNS_IN_A_STEP)):
            group = turns[0]
            deadline = group.arrived + deadlines.get(group.of_class, default)
            if rate is None or not _misses(group.prompt, deadline, rate, now):
                if not sweeps:
                    turns.rotate(-1)
                    continue
                sweeps -= 1
            looks -= len(group.sequences)
            if looks < 0:
                break
            turns.popleft()
            seen = [look(sequence) for sequence in group.sequences]
            left = [one for one in seen if not one.gone]
            if not left or any(one.started for one in seen):
                del self._groups[group.key]
            elif rate is not None and len(seen) == group.size and _all_late(left, deadline, rate, now):
                del self._groups[group.key]
                found.append([one for one, how in zip(group.sequences, seen, strict=True) if not how.gone])
            else:
                turns.append(group)
        return found


def but_one_alone(late: list[list[R]], *, present: int) -> tuple[list[list[R]], list[R]]:
    """Whom to refuse of the requests that are `late`, and who stays: one, where they are all that is `present`.

    Nobody is hurt by a request that is late and alone: late is better than never. It is asked about no more.
    `present`: sequences in the engine.
    """
    return (late[:-1], late[-1]) if late and sum(map(len, late)) == present else (late, [])


def _misses(left: SequenceProgress, deadline: float, rate: PrefillRate, now: float) -> bool:
    return rate.misses(deadline, tokens=left.tokens, attention=left.attention, now=now)


def _all_late(left: list[SequenceProgress], deadline: float, rate: PrefillRate, now: float) -> bool:
    return all(_misses(one, deadline, rate, now) for one in left)
