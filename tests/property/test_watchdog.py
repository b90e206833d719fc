"""The watchdog beside a ledger that notes each token of each request, over any course of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from flyball_engine.batching.watchdog import Watchdog

PATIENCE: Final = 4.0
STEPS: Final = 6
#: Checks are half a second apart and at most a step more, which takes 0.1 to 1 s.
CHECK: Final = 1.5
CHECK_STEPS: Final = 6
NAMES: Final = tuple("abcdef")

Since = tuple[float, int]


@dataclass
class Play:
    """Steps of an engine.

    `still`: since when each request that is due got nothing. `known`: the same, of all that were due lately: that one
    was not due between two checks is not seen.
    """

    watchdog: Watchdog = field(default_factory=lambda: Watchdog(seconds=PATIENCE, steps=STEPS))
    now: float = 100.0
    step: int = 0
    still: dict[str, Since] = field(default_factory=dict)
    known: dict[str, Since] = field(default_factory=dict)
    due_at: dict[str, float] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    told_at: float = 0.0

    def take(self, running: set[str], due: set[str], served: set[str], seconds: float) -> None:
        """One step of so many seconds, whose requests get their tokens at its end."""
        self.step += 1
        self._begin(due)
        stall = self.watchdog.stepped(
            running=len(running), waiting=0, scheduled=len(served), names=lambda: sorted(due), now=self.now
        )
        if stall is not None:
            assert stall.request in due
            self._expect_stalled(stall.request)
            self.reported.add(stall.request)
            self.told_at = self.now
        self._expect_none_missed()
        self.now += seconds
        self.watchdog.served(served, now=self.now, all_running=served >= running)
        self.still |= dict.fromkeys(served & due, (self.now, self.step))
        self.known |= dict.fromkeys(served, (self.now, self.step))
        self.reported = (self.reported & due) - served

    def _begin(self, due: set[str]) -> None:
        mark = (self.now, self.step)
        self.still = {name: self.still.get(name, mark) for name in due}
        for name in due:
            if self.now - self.due_at.get(name, 0.0) > 2 * CHECK:
                self.known.pop(name, None)
            self.known.setdefault(name, mark)
            self.due_at[name] = self.now

    def _expect_stalled(self, name: str) -> None:
        """It got nothing for longer than patience lasts."""
        at, step = self.known[name]
        assert self.now - at > PATIENCE - CHECK
        assert self.step - step > STEPS - CHECK_STEPS

    def _expect_none_missed(self) -> None:
        """Whoever got nothing for longer than patience and two checks last is told of, or one that waits longer.

        Where that one was served since, the next check tells of another.
        """
        for at, step in self.still.values():
            if self.now - at > PATIENCE + 2 * CHECK and self.step - step > STEPS + 2 * CHECK_STEPS:
                assert self.reported or self.now - self.told_at <= CHECK


_STEP = st.tuples(
    st.sets(st.sampled_from(NAMES)),
    st.sets(st.sampled_from(NAMES)),
    st.floats(0.1, 1.0),
    st.integers(1, 15),
)


@given(st.lists(_STEP, max_size=30))
def test_who_stands_still_is_told_and_nobody_else(course: list[tuple[set[str], set[str], float, int]]) -> None:
    play = Play()
    for running, unserved, seconds, times in course:
        for _ in range(times):
            play.take(running, running, running - unserved, seconds)


@given(st.lists(st.tuples(_STEP, st.sets(st.sampled_from(NAMES))), max_size=30))
def test_those_whose_turn_it_is_not_are_not_told_of(
    course: list[tuple[tuple[set[str], set[str], float, int], set[str]]],
) -> None:
    play = Play()
    for (running, unserved, seconds, times), later in course:
        for _ in range(times):
            play.take(running, running - later, running - unserved, seconds)
