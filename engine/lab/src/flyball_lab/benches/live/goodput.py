"""From what clients saw of a run to its figures: goodput, and the share that kept each objective. Pure.

The clients' clock counts. Whoever was refused, left waiting or cut off has kept nothing. `LiveRun` is what is kept of a
run, as JSON holds it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Objectives:
    """Seconds to the first token, and per token after it in the mean of a request."""

    ttft: float
    tpot: float


@dataclass(frozen=True)
class ClientRecord:
    """A request as its client saw it. `status`: HTTP's, 0 without an answer; `first`, `ended`: seconds, None: never."""

    at: float
    phase: str
    output: int
    status: int
    first: float | None
    ended: float | None

    def first_kept(self, objectives: Objectives) -> bool:
        """Whether its first token came in time."""
        return self.first is not None and self.first <= objectives.ttft

    def tokens_kept(self, objectives: Objectives) -> bool:
        """Whether it came to its end, with its tokens in time in the mean."""
        if self.first is None or self.ended is None:
            return False
        return self.output < 2 or (self.ended - self.first) / (self.output - 1) <= objectives.tpot

    def good(self, objectives: Objectives) -> bool:
        """Whether it kept all."""
        return self.first_kept(objectives) and self.tokens_kept(objectives)

    @property
    def refused(self) -> bool:
        """Whether it was turned away at once."""
        return self.status == 503

    @property
    def failed(self) -> bool:
        """Whether it got another answer than tokens or a refusal."""
        return self.status not in (0, 200, 503)


@dataclass(frozen=True)
class Held:
    """What the tuner held live from so many seconds on; `budget` and `deadline` in seconds, None: none."""

    at: float
    seqs: int
    tokens: int
    budget: float | None = None
    deadline: float | None = None


@dataclass(frozen=True)
class LiveRun:
    """A run. `counted`: requests that kept all, and all, by the engine's own count; None where it does not count.

    `others`: processors' worth of work on the machine that was not ours. `held` and `decisions` are the tuner's: every
    setpoint, and every change with its reason.
    """

    seconds: float
    seen: tuple[ClientRecord, ...]
    counted: tuple[int, int] | None = None
    others: float = 0.0
    held: tuple[Held, ...] = ()
    decisions: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From JSON; raises KeyError or TypeError on what is none."""
        seen, held = tuple(ClientRecord(**one) for one in row["seen"]), tuple(Held(**one) for one in row["held"])
        counted = row["counted"]
        return cls(
            seconds=row["seconds"],
            seen=seen,
            counted=None if counted is None else (counted[0], counted[1]),
            others=row["others"],
            held=held,
            decisions=tuple(row["decisions"]),
        )


def goodput(played: LiveRun, objectives: Objectives) -> float:
    """Requests per second of the load that kept all objectives."""
    return sum(one.good(objectives) for one in played.seen) / played.seconds


def figures(runs: Sequence[LiveRun], objectives: Objectives) -> dict[str, float]:
    """Means over repetitions. Shares are of all requests, but for those that are said to be of the ones let in."""
    every = [one for run in runs for one in run.seen]
    entered = [one for one in every if not one.refused]
    refused = len(every) - len(entered)
    found = {
        "goodput": statistics.fmean(goodput(run, objectives) for run in runs),
        "kept all %": percent(every, lambda one: one.good(objectives)),
        "first token %": percent(every, lambda one: one.first_kept(objectives)),
        "per token %": percent(every, lambda one: one.tokens_kept(objectives)),
    }
    for phase in dict.fromkeys(one.phase for one in sorted(every, key=lambda one: one.at)):
        mine = [one for one in every if one.phase == phase]
        found[f"{phase} %"] = percent(mine, lambda one: one.good(objectives))
    if refused:
        found["refused %"] = 100.0 * refused / len(every)
        found["kept all of those let in %"] = percent(entered, lambda one: one.good(objectives))
    if failed := sum(one.failed for one in every):
        found["failed"] = float(failed)
    counted = [run.counted for run in runs]
    if counted and None not in counted:
        found["the engine's own count, kept all /s"] = statistics.fmean(
            run.counted[0] / run.seconds for run in runs if run.counted is not None
        )
    found["other work, % of a processor"] = 100.0 * statistics.fmean(run.others for run in runs)
    if any(run.held for run in runs):
        found["changes a minute"] = statistics.fmean(60.0 * len(run.decisions) / run.seconds for run in runs)
    return found


def percent(of: Sequence[ClientRecord], holds: Callable[[ClientRecord], bool]) -> float:
    """Percentage of which something holds; 0 of nothing."""
    return 100.0 * sum(map(holds, of)) / len(of) if of else 0.0
