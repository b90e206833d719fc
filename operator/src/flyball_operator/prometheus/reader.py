"""Asks Prometheus once per tick for each part of all services, or once for each time of the past that is asked for.

Each part has calls of its own: one that fails or hangs blinds its own services. Step statistics are most of an answer,
and are learnt from once per window. So each part is asked for them once per window, by turns, and with them what came
of the window's requests. It is asked as often what came of the requests of the last minutes.

The client is synchronous, so the calls run side by side in a small pool of threads of their own: of a slow Prometheus
each may take all of the time there is. One that hangs holds those threads, never the event loop. While they are held no
further call is made. Who asks for the past waits for each answer in the thread that asks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from flyball_operator.api.shards import Shard
from flyball_operator.prometheus import answers, queries
from flyball_operator.prometheus.answers import BadVectorError, Figures, Ran, Scrapes
from flyball_operator.prometheus.client import PrometheusError
from flyball_operator.prometheus.unseen import rows_of, why
from flyball_operator.tuning.observe.signals import Attainment, Identity, Missing, Observation, Unobserved


class Source(Protocol):
    """What answers queries: a Prometheus, or what was kept of one."""

    def query(self, text: str, at: float | None = None) -> Any:
        """An instant vector as Prometheus' JSON has it, for the Unix time `at`, without one for now.

        Waits for it. Raises `PrometheusError`.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


#: Least seconds of a window: three scrapes at the usual 5 s.
LEAST_WINDOW: Final = 15
#: Scrapes a window must span, and the largest window waited for.
SCRAPES_PER_WINDOW: Final = 3
LARGEST_WINDOW: Final = 300
#: What attainment is reported over.
ATTAINMENT_WINDOW: Final = 300
_ALL: Final = Shard()
#: Seconds for a whole read of a tick.
TIMEOUT: Final = 4.0
#: Of so many services all parts are asked for steps at the first read. Of more they take turns from the start: answers
#: of all parts at once would take a hundred megabytes more than any later read.
FEW: Final = 50
#: Queries of a tick for one part: load, outcomes and steps.
MOST_QUERIES: Final = 3


#: A tick may come early by so much and have the window that is due, in seconds.
_EARLY: Final = 0.5

#: A query, and what makes something of its answer; that raises `BadVectorError`.
_Question: TypeAlias = tuple[str, Callable[[Any], Any]]


@dataclass(frozen=True)
class _Attained:
    """What came of the requests of the services that were asked for, until when that will do."""

    services: frozenset[Identity]
    found: Mapping[Identity, Attainment]
    until: float


@dataclass
class _Part:
    """Services that are asked for together. `steps_due`: when they are asked for steps again. Seconds of one clock.

    `pods`: the services that were asked for last, with their Ready pods. `busy`: calls that nobody has answered yet.
    `attained`: the last answer to that question, None where the last read failed.
    """

    targets: str
    turn: int
    window: int
    steps_due: float | None = None
    pods: Mapping[Identity, int] = field(default_factory=dict)
    busy: set[asyncio.Future[Any]] = field(default_factory=set)
    attained: _Attained | None = None

    def steps_are_due(self, now: float) -> bool:
        """Whether steps are to be asked for."""
        return self.steps_due is None or now >= self.steps_due - _EARLY

    def take_turn(self, now: float) -> None:
        """Wait for its turn to be asked for steps the first time."""
        if self.steps_due is None:
            self.steps_due = now + self.turn / queries.PARTS * self.window

    def questions(self, *, steps: bool) -> list[_Question]:
        """The queries of a tick, in the order that `signals` takes their answers in, and how each is understood."""
        found: list[_Question] = [(queries.load(self.window, self.targets), answers.load_figures)]
        if steps:
            found += [
                (queries.outcomes(self.window, self.targets), answers.count_figures),
                (queries.steps(self.window, self.targets), answers.step_figures),
            ]
        return found

    def signals(self, found: Sequence[Figures[Any]], least_window: int) -> Mapping[Identity, Observation]:
        """What the answers say of each service; to the load alone, or to all queries."""
        load, *more = found
        outcomes, steps = more or (Figures(), None)
        scrapes = {one: answers.scrapes_of(jobs, self.pods.get(one, 0)) for one, jobs in load.services.items()}
        window, self.window = self.window, _window(scrapes.values(), least_window)
        return {
            identity: answers.signals_of(
                identity,
                steps=steps,
                load=load,
                outcomes=outcomes,
                scrapes=scrapes.get(identity, answers.UNSCRAPED),
                window=window,
                pods=count,
            )
            for identity, count in self.pods.items()
        }

    def asked_for_steps(self, now: float) -> None:
        """Steps were asked for. The first time all parts are asked, from then on by turns."""
        share = (self.turn + 1) / queries.PARTS if self.steps_due is None else 1.0
        self.steps_due = now + share * self.window


class PrometheusReader:
    """Reads signals. `timeout` is for a whole read, `least_window` the shortest window, in seconds.

    `only`: ask for this service alone, where it is known that no other matters. `shard`: ask for its services alone.
    `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        source: Source,
        *,
        timeout: float = TIMEOUT,
        least_window: int = LEAST_WINDOW,
        only: Identity | None = None,
        shard: Shard = _ALL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._timeout = timeout
        self._clock = clock
        # One for each query of each part, and one that asks what is scraped at all.
        self._pool = ThreadPoolExecutor(max_workers=MOST_QUERIES * queries.PARTS + 1, thread_name_prefix="prometheus")
        self._explaining: set[asyncio.Future[Any]] = set()
        self._least_window = least_window
        self._only = only
        numbers = range(queries.PARTS) if only is None else (queries.PARTS - 1,)
        self._parts = {
            number: _Part(queries.part(number, shard) if only is None else queries.targets(only), number, least_window)
            for number in numbers
        }

    def close(self) -> None:
        """Let go of the threads; calls in flight end by their own timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._source.close()

    @property
    def window(self) -> int:
        """The longest window of any part, in seconds."""
        return max(part.window for part in self._parts.values())

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals of each service given; `pods` says how many ready pods each has."""
        seen: dict[Identity, Observation] = {}
        parts = self._asked_for(pods)
        if len(pods) > FEW:
            for part in parts:
                part.take_turn(self._clock())
        for found in await asyncio.gather(*map(self._read, parts)):
            seen |= found
        return await self._explained({identity: seen[identity] for identity in pods}, pods)

    def _asked_for(self, pods: Mapping[Identity, int]) -> list[_Part]:
        """The parts that have some of these services; each takes note of its own."""
        by_part: dict[int, dict[Identity, int]] = {number: {} for number in self._parts}
        for identity, count in pods.items():
            number = queries.part_of(identity[1]) if self._only is None else queries.PARTS - 1
            by_part[number][identity] = count
        for number, members in by_part.items():
            self._parts[number].pods = members
        return [part for part in self._parts.values() if part.pods]

    async def _read(self, part: _Part) -> Mapping[Identity, Observation]:
        now = self._clock()
        steps = part.steps_are_due(now)
        try:
            found = await self._ask(part.busy, part.questions(steps=steps))
        except PrometheusError as error:
            part.attained = None
            if steps and error.missing is Missing.TIMED_OUT:
                # What steps may have made late is read without them at the next ticks.
                part.asked_for_steps(now)
            return dict.fromkeys(part.pods, Unobserved(error.missing, str(error)))
        seen = part.signals(found, self._least_window)
        if steps:
            part.asked_for_steps(now)
        return seen

    async def _explained(
        self, seen: Mapping[Identity, Observation], pods: Mapping[Identity, int]
    ) -> Mapping[Identity, Observation]:
        """With words to what is not scraped though it has Ready pods: one query more, as long as there is such one."""
        unseen = [identity for identity, found in seen.items() if pods[identity] and _is_unseen(found)]
        if not unseen:
            return seen
        try:
            # Apart from the others: one unseen service must not keep all of them from being read.
            (rows,) = await self._ask(self._explaining, [(queries.found(), rows_of)])
        except PrometheusError:
            # It answered a moment ago; what could not be asked now is at the next tick.
            return seen
        words = {identity: Unobserved(Missing.NOT_SCRAPED, why(identity, rows)) for identity in unseen}
        return {**seen, **words}

    def read_at(self, at: float, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals as they were at a Unix time, with steps. Raises `PrometheusError`."""
        seen: dict[Identity, Observation] = {}
        for part in self._asked_for(pods):
            found = [self._query(question, at) for question in part.questions(steps=True)]
            seen |= part.signals(found, self._least_window)
        return seen

    def ran_at(self, at: float) -> Mapping[Identity, Ran]:
        """What engines ran under at a Unix time, by their own gauges. Raises `PrometheusError`."""
        found = self._query((queries.ran(queries.targets(self._only)), answers.limit_figures), at)
        return {identity: answers.ran_of(jobs) for identity, jobs in found.services.items()}

    async def attainment(self) -> Mapping[Identity, Attainment | Unobserved] | Unobserved:
        """What came of requests over `ATTAINMENT_WINDOW`, for every service read last of which anything is counted."""
        parts = [part for part in self._parts.values() if part.pods]
        attained: dict[Identity, Attainment | Unobserved] = {}
        for found in await asyncio.gather(*map(self._attained, parts)):
            attained |= found
        missing = [one for one in attained.values() if isinstance(one, Unobserved)]
        return missing[0] if missing and len(missing) == sum(len(part.pods) for part in parts) else attained

    async def _attained(self, part: _Part) -> Mapping[Identity, Attainment | Unobserved]:
        now, known = self._clock(), part.attained
        if known is not None and now < known.until - _EARLY and part.pods.keys() <= known.services:
            return known.found
        try:
            question = queries.attainment(ATTAINMENT_WINDOW, part.targets), answers.count_figures
            (found,) = await self._ask(part.busy, [question])
        except PrometheusError as error:
            return dict.fromkeys(part.pods, Unobserved(error.missing, str(error)))
        attained = {identity: answers.attained_of(jobs) for identity, jobs in found.services.items()}
        # The first time all parts are asked, from then on by turns.
        share = (part.turn + 1) / queries.PARTS if known is None else 1.0
        part.attained = _Attained(frozenset(part.pods), attained, now + share * part.window)
        return attained

    async def _ask(self, busy: set[asyncio.Future[Any]], questions: Sequence[_Question]) -> list[Any]:
        """The answers, asked for side by side."""
        if busy:
            raise PrometheusError(Missing.TIMED_OUT, "Prometheus has not answered an earlier read yet")
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._pool, self._query, question) for question in questions]
        busy.update(calls)
        for call in calls:
            call.add_done_callback(partial(_done, busy))
        _, late = await asyncio.wait(calls, timeout=self._timeout)
        if late:
            raise PrometheusError(Missing.TIMED_OUT, f"Prometheus did not answer in {self._timeout:g} s")
        return [call.result() for call in calls]

    def _query(self, question: _Question, at: float | None = None) -> Any:
        """One query, in the thread that asks. Raises `PrometheusError`."""
        text, understand = question
        answer = self._source.query(text, at)
        try:
            return understand(answer)
        except BadVectorError as error:
            raise PrometheusError(Missing.BAD_ANSWER, str(error)[:300]) from error


def _done(busy: set[asyncio.Future[Any]], call: asyncio.Future[Any]) -> None:
    busy.discard(call)
    if not call.cancelled():
        call.exception()  # retrieved, so that a call nobody waited for any more leaves no warning


def _is_unseen(found: Observation) -> bool:
    return isinstance(found, Unobserved) and found.reason is Missing.NOT_SCRAPED


def _window(scrapes: Iterable[Scrapes], least: int) -> int:
    """Seconds that span enough scrapes of the slowest-scraped service."""
    needed = max((found.interval for found in scrapes), default=0.0) * SCRAPES_PER_WINDOW
    # Scrapes jitter by milliseconds; 15.01 s must not become 20 s.
    return int(min(LARGEST_WINDOW, max(least, math.ceil((needed - 0.5) / 5) * 5)))
