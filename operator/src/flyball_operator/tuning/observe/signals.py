"""What the tuner sees of one service: typed, with "could not observe" as a value of its own.

Zero and unknown are different things here. A service without traffic has sums of zero. One that Prometheus did not
scrape has an `Unobserved` with its reason, and no rule may read a number out of that. All figures are sums over the
engine cores seen; `per core` is left to who needs it. Pure.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from itertools import chain
from operator import add, attrgetter, sub
from typing import Final, NamedTuple, TypeAlias

from flyball_engine.contract import Generation, Setpoint, StepKind, StepSums

#: A service's namespace and UID.
Identity = tuple[str, str]
#: Least seconds between two read-backs whose difference is a window: they are taken this often
#: (`tuning.actuate.engine_pods`).
LEAST_READ_BACK_SECONDS: Final = 30.0
#: A window so long before the last one was read by another clock, in seconds.
CLOCK_SET_BACK: Final = 300.0


class Missing(StrEnum):
    """Why something could not be observed."""

    UNREACHABLE = "PrometheusUnreachable"
    """Prometheus refused the connection or answered with an error."""
    UNAUTHORIZED = "PrometheusUnauthorized"
    """Prometheus, or what stands before it, answered 401: credentials are missing or wrong."""
    FORBIDDEN = "PrometheusForbidden"
    """Likewise 403: whose credentials these are may not query."""
    TLS_FAILED = "PrometheusTLSFailed"
    """No TLS connection: the certificate of one side is not trusted by the other."""
    REDIRECTED = "PrometheusRedirected"
    """The answer leads elsewhere, such as to a login page; it is not followed."""
    UNUSABLE_FILE = "PrometheusFileUnusable"
    """A file of credentials, headers or certificates cannot be read, or holds something else."""
    TIMED_OUT = "PrometheusTimeout"
    """Prometheus did not answer in time."""
    BAD_ANSWER = "PrometheusBadAnswer"
    """The answer does not have the form that was asked for, or a figure is below zero."""
    NOT_SCRAPED = "NotScraped"
    """No target of this service has a sample: not discovered, or its pods are young."""
    STALE = "StaleMetrics"
    """The newest samples are too old to act on."""
    PARTIAL = "PartiallyScraped"
    """Too few of the service's pods are scraped to stand for all."""
    TOO_FEW_SAMPLES = "TooFewSamples"
    """The window holds fewer than two scrapes, so it has no increase; or a figure is NaN or infinite."""


@dataclass(frozen=True)
class Unobserved:
    """A figure that is not known. `detail` is for people."""

    reason: Missing
    detail: str


class CellKey(NamedTuple):
    """One bucket of steps: the upper edge of its scheduled tokens, and what the steps processed.

    A tuple, whose hash takes a fourth of a dataclass's: a tick of many services looks a hundred thousand up.
    """

    bucket: int
    kind: StepKind


class Sums(NamedTuple):
    """Sums over the steps of a cell in a window; meanings and units as in `contract.StepSums`."""

    steps: float = 0.0
    seconds: float = 0.0
    seconds_squared: float = 0.0
    tokens: float = 0.0
    prefill_tokens: float = 0.0
    decodes: float = 0.0
    kv_tokens: float = 0.0
    prefill_attention: float = 0.0

    def plus(self, other: Sums) -> Sums:
        """The sums over the steps of both."""
        return Sums(*map(add, self, other))

    def minus(self, other: Sums) -> Sums:
        """The sums over the steps of this one that `other` does not have."""
        return Sums(*map(sub, self, other))

    def times(self, part: float) -> Sums:
        """So many times the sums."""
        return Sums(*(part * figure for figure in self))

    @property
    def of_steps(self) -> bool:
        """Whether there is all that any step has."""
        return min(self.steps, self.seconds, self.seconds_squared, self.tokens) > 0.0

    @property
    def is_sane(self) -> bool:
        """False if a sum is negative, as where a counter was reset between the readings, infinite, or no number."""
        return min(self) >= 0.0 and sum(self) < math.inf


Cells = Mapping[CellKey, Sums]
#: The same of what a read-back says of a cell.
_sums_of: Final = attrgetter(*Sums._fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSums:
    """Of prompts the `tokens` that were computed, and the sum of the `squares` of each prompt's."""

    tokens: float
    squares: float

    @property
    def is_sane(self) -> bool:
        """As that of `Sums`."""
        return min(self.tokens, self.squares) >= 0.0 and self.tokens + self.squares < math.inf


class DraftSums(NamedTuple):
    """Decodes in whose steps so many tokens, counted from the first, might be drafted, were, and were accepted."""

    offered: float
    drafted: float
    accepted: float


@dataclass(frozen=True, kw_only=True)
class StepWindow:
    """Steps between two times, in Unix seconds. `prompts`: those they computed, None where no engine tells.

    `drafts`: by position, none where no engine tells, or drafts.
    """

    start: float
    end: float
    cells: Cells
    prompts: PromptSums | None = None
    drafts: tuple[DraftSums, ...] = ()

    def total(self, kind: StepKind | None = None) -> Sums:
        """Sums over all cells, or over those of one kind."""
        if (found := self._totals.get(kind)) is None:
            summed = [sums for key, sums in self.cells.items() if kind is None or key.kind is kind]
            found = self._totals[kind] = Sums(*map(sum, zip(*summed, strict=True)))
        return found

    @cached_property
    def _totals(self) -> dict[StepKind | None, Sums]:
        """Those that were asked for."""
        return {}


@dataclass(frozen=True, kw_only=True)
class RequestLoad:
    """Requests of a window, and the queue at its end, summed over all cores seen.

    `arrivals`: requests per second that were let in, `refused` those that the gate refused. `finished`: requests that
    finished in the window; `prompt_tokens`, `cached_tokens` and `generated_tokens` are theirs. `running`,
    `waiting`: requests now. `kv_tokens`: what one core's KV cache can hold. `held_tokens`: KV tokens that running
    requests hold, in a pipeline only those of one step. `used_tokens`: those that take memory, where a prefix that they
    share counts once, None where that is not known. `uneven`: requests in the fullest core over the mean core's, both
    in the mean of `compared_seconds`; 1 where all have as many.
    """

    arrivals: float
    finished: float
    prompt_tokens: float
    cached_tokens: float
    generated_tokens: float
    running: float
    waiting: float
    kv_tokens: float
    held_tokens: float
    used_tokens: float | None = None
    refused: float = 0.0
    uneven: float = 1.0

    @property
    def known(self) -> Mapping[str, float]:
        """All figures that are known, by name."""
        return {name: figure for name, figure in vars(self).items() if figure is not None}

    @property
    def none(self) -> bool:
        """Whether no request came, and none is there."""
        return self.running + self.waiting + self.arrivals + self.refused <= 0


@dataclass(frozen=True)
class ObjectiveCounts:
    """Requests, or gaps, that met an objective and that violated it, in a window."""

    met: float
    violated: float

    @property
    def total(self) -> float:
        """All that were counted."""
        return self.met + self.violated


@dataclass(frozen=True)
class PodCounts:
    """What came of the requests of one pod in a window.

    `objectives`: by objective id; a request counts once its outcome is certain. `answered`: requests that came
    to their end without an error, `failed` those that ended with one in the engine. Refused ones, and those whose
    client left, are neither.
    """

    objectives: Mapping[str, ObjectiveCounts] = field(default_factory=dict)
    answered: float = 0.0
    failed: float = 0.0


#: By pod. One without requests is there, too.
PodOutcomes: TypeAlias = Mapping[str, PodCounts]


@dataclass(frozen=True, kw_only=True)
class OrderOutcome:
    """What came of the on-time order in a window, over all cores.

    `moved_behind`: requests that were given up as late once. `in_time_after_all`: of those, the ones whose first token
    came in time. `longest_wait`: the longest that one of those behind was seen to wait, in seconds.
    """

    moved_behind: float
    in_time_after_all: float
    longest_wait: float


@dataclass(frozen=True, kw_only=True)
class Attainment:
    """What came of the requests in the window that status reports, and how slow pods are.

    `outcomes`: by objective id. `order`: None where no engine counts it. `biases`: what steps take over what the model
    says, by the name of each pod that tells.
    """

    outcomes: Mapping[str, ObjectiveCounts] = field(default_factory=dict)
    order: OrderOutcome | None = None
    biases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Applied:
    """What engine cores apply, each summed over all cores: the number of the setpoint, and trips of the watchdog."""

    epoch: float
    generation: float
    trips: float


@dataclass(frozen=True, kw_only=True)
class Signals:
    """All that one tick knows of one service.

    `at`: Unix time the figures are for. `age_seconds`: age of the oldest core's newest sample. `window_seconds`: what
    the figures are taken over. `cores`: engine cores seen, in so many `pods`, None where each has one, and so many that
    are Ready were not seen at all (`unseen`). `steps`: None at a tick that did not ask for them: there is one with them
    in each window. `outcomes`: by objective id, at the same ticks. `twice`: what scrapes the same pods besides, for
    people; empty if nothing does. `applied`: None where that is not known.
    """

    at: float
    age_seconds: float
    window_seconds: float
    cores: int
    steps: StepWindow | Unobserved | None
    load: RequestLoad | Unobserved
    outcomes: Mapping[str, ObjectiveCounts]
    pods: int | None = None
    unseen: int = 0
    twice: str = ""
    applied: Applied | None = None

    def confirms(self, number: Generation | Setpoint, *, pods: int, cores: int, trips: int) -> bool:
        """Whether so many cores of so many pods apply the setpoint of this number, and no more calls for a read-back.

        That is a watchdog that tripped more than so many times in all, and requests that wait: maybe none is let in.
        """
        if (self.pods, self.cores) != (pods, cores) or isinstance(self.load, Unobserved) or self.load.waiting > 0:
            return False
        return self.applied == Applied(self.cores * number.epoch, self.cores * number.generation, trips)

    @cached_property
    def impossible(self) -> str | None:
        """The first figure with which nothing can be reckoned, None if there is none; looked for once."""
        if self._is_possible:
            return None
        # A clock may be behind: an age below zero is one of nothing.
        own = {"at": self.at, "age_seconds": abs(self.age_seconds), "window_seconds": self.window_seconds}
        named: list[tuple[str, Mapping[str, float]]] = [("", own)]
        if isinstance(self.load, RequestLoad):
            named.append(("", self.load.known))
        named += [(f"{name}.", vars(outcome)) for name, outcome in self.outcomes.items()]
        if isinstance(self.steps, StepWindow):
            odd = (sums for sums in self.steps.cells.values() if not sums.is_sane)
            named += [("steps.", sums._asdict()) for sums in odd]
            for number, draft in enumerate(self.steps.drafts, start=1):
                named.append((f"drafts.{number}.", draft._asdict()))
            if (prompts := self.steps.prompts) is not None:
                named.append(("prompts.", {"tokens": prompts.tokens, "squares": prompts.squares}))
        return next(
            (f"{prefix}{name}" for prefix, part in named for name in part if not 0 <= part[name] < math.inf), None
        )

    @property
    def _is_possible(self) -> bool:
        """The same, without a name: nearly always so, and a thousand are looked at in a tick."""
        load = self.load.known.values() if isinstance(self.load, RequestLoad) else ()
        counts = [figure for found in self.outcomes.values() for figure in (found.met, found.violated)]
        figures = (self.at, abs(self.age_seconds), self.window_seconds, *load, *counts)
        # What is no number makes the sum none.
        sane: bool = min(figures) >= 0.0 and sum(figures) < math.inf
        if not sane or not isinstance(self.steps, StepWindow):
            return sane
        prompts = self.steps.prompts
        drafts = [figure for draft in self.steps.drafts for figure in draft]
        if drafts and not (min(drafts) >= 0.0 and sum(drafts) < math.inf):
            return False
        return (prompts is None or prompts.is_sane) and all(sums.is_sane for sums in self.steps.cells.values())


Observation = Signals | Unobserved


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """Sums of steps of one engine since its start, side by side: 3 kB, of which objects would take twenty times.

    `made`: steps that were made.
    """

    keys: tuple[CellKey, ...] = ()
    figures: array[float] = field(default_factory=lambda: array("d"))
    made: int = 0

    @classmethod
    def of(cls, readings: Iterable[StepSums]) -> PackedSteps:
        """The readings of several cores."""
        found = list(readings)
        keys = tuple([_key(reading.bucket, reading.kind) for reading in found])
        made = sum([reading.steps for reading in found])
        return cls(keys, array("d", chain.from_iterable(map(_sums_of, found))), made)

    def cells(self) -> dict[CellKey, Sums]:
        """Sums by cell over all cores."""
        cells: dict[CellKey, Sums] = {}
        for number, key in enumerate(self.keys):
            sums = Sums(*self.figures[number * len(Sums._fields) : (number + 1) * len(Sums._fields)])
            cells[key] = cells[key].plus(sums) if key in cells else sums
        return cells


@cache
def _key(bucket: int, kind: StepKind) -> CellKey:
    return CellKey(bucket, kind)


def difference(before: Cells, after: Cells) -> dict[CellKey, Sums] | None:
    """Steps between two readings of the same cores; None if a counter was reset in between."""
    grown = {key: sums.minus(before.get(key, Sums())) for key, sums in after.items()}
    if not all(sums.is_sane for sums in grown.values()) or any(key not in after for key in before):
        return None
    return {key: sums for key, sums in grown.items() if sums.steps > 0}


@dataclass(frozen=True)
class Reading:
    """Cumulative steps by start of an engine, read back at a Unix time."""

    at: float
    cells: Mapping[str, Cells]


def steps_between(before: Reading | None, cells: Mapping[str, Cells], now: float) -> tuple[StepWindow | None, Reading]:
    """The steps since an earlier reading, once enough time has passed, and the reading to compare with next.

    Engines that started, ended or were reset in between are left out; an engine not read anew adds nothing. Of a clock
    that was set back it is not known how long they took.
    """
    if before is None or now < before.at:
        return None, Reading(now, cells)
    if now - before.at < LEAST_READ_BACK_SECONDS:
        return None, before
    total: dict[CellKey, Sums] = {}
    for start, after in cells.items():
        grown = difference(before.cells[start], after) if start in before.cells else None
        for key, sums in (grown or {}).items():
            total[key] = total.get(key, Sums()).plus(sums)
    return (StepWindow(start=before.at, end=now, cells=total) if total else None), Reading(now, cells)


def blind_spot(observation: Observation, stale_seconds: float) -> Unobserved | None:
    """What keeps an observation from being acted on, None if nothing does."""
    if isinstance(observation, Unobserved):
        return observation
    if (impossible := observation.impossible) is not None:
        return Unobserved(Missing.BAD_ANSWER, f"{impossible} is below zero, infinite or no number")
    # A Prometheus that scrapes seldom is not away: a window spans three of its scrapes, and one may be missed.
    stale_seconds = max(stale_seconds, observation.window_seconds * 2 / 3)
    if observation.age_seconds > stale_seconds:
        # Not how old: the words go into a condition and its event, and would be new ones at every tick.
        return Unobserved(Missing.STALE, f"the newest samples are more than {stale_seconds:g} s old")
    return observation.load if isinstance(observation.load, Unobserved) else None
