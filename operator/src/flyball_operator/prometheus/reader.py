"""Asks Prometheus once per tick for each part of all services, or once for each time of the past that is asked for.

Each part has calls of its own: one that fails or hangs blinds its own services. Services that are scraped more slowly
have a longer window, and then a part is asked once for each of its windows. Step statistics are most of an answer, and
are learnt from once per window. So each part is asked for them once per window, by turns, and with them what came of
the window's requests. It is asked as often what came of the requests of the last minutes.

The client is synchronous, so the calls run side by side in a small pool of threads of their own: of a slow Prometheus
each may take all of the time there is. One that hangs holds those threads, never the event loop. While they are held no
further call is made. Who asks for the past waits for each answer in the thread that asks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from flyball_operator.api.shards import Shard
from flyball_operator.prometheus import answers, queries
from flyball_operator.prometheus.answers import Figures, Ran, Scrapes
from flyball_operator.prometheus.client import PrometheusError
from flyball_operator.prometheus.unseen import rows_of, why
from flyball_operator.prometheus.vector import Vector
from flyball_operator.tuning.observe.signals import (
    Attainment,
    Identity,
    Missing,
    Observation,
    PodOutcomes,
    Unobserved,
)


class Source(Protocol):
    """What answers queries: a Prometheus, or what was kept of one."""

    def query(self, text: str, at: float | None = None) -> Vector:
        """An instant vector for the Unix time `at`, without one for now, to be read once.

        Waits for it. Raises `PrometheusError`, also while the vector is read.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


#: Least seconds of a window: three scrapes at the usual 5 s.
LEAST_WINDOW: Final = 15
#: Scrapes that a window must span: three as a job has them, of which one in six may be missed. One that is missed now
#: and then must not make the window three times as long.
SCRAPES_PER_WINDOW: Final = 2.5
#: Windows of services that are scraped more slowly, in seconds: of three scrapes each 15 s, 30 s, and 100 s or slower.
#: Each one more that is in use costs Prometheus a query more for each part.
LONGER_WINDOWS: Final = (45, 90, 300)
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
#: Services whose requests are asked for by pod at once. Such a query spans up to a day, and Prometheus runs 20 at once
#: by default. At the usual tick that is 24 services in 15 s; of more, each is judged by fewer looks.
MOST_JUDGED: Final = 8


#: A tick may come early by so much and have the window that is due, in seconds.
_EARLY: Final = 0.5

#: A query, and what makes something of its answer.
_Question: TypeAlias = tuple[str, Callable[[Vector], Any]]


@dataclass(frozen=True)
class _Attained:
    """What came of the requests of the services that were asked for, until when that will do."""

    services: frozenset[Identity]
    found: Mapping[Identity, Attainment]
    until: float


@dataclass
class _Group:
    """Services of one part that have one window, in seconds.

    `steps_due`: when they are asked for steps again, in seconds of one clock. `puts_off`: by how many turns the time
    after that is put off. `pods`: the services that were asked for last, with their Ready pods. `busy`: calls that
    nobody has answered yet. `attained`: the last answer to that question, None where the last read failed.
    """

    targets: str
    turn: int
    window: int
    steps_due: float | None = None
    puts_off: int = 0
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

    def signals(self, found: Sequence[Figures[Any]]) -> Iterator[tuple[Identity, Scrapes, Observation]]:
        """What the answers say of each service; to the load alone, or to all queries."""
        load, *more = found
        outcomes, steps = more or (Figures(), None)
        for identity, count in self.pods.items():
            jobs = load.services.get(identity)
            scrapes = answers.UNSCRAPED if jobs is None else answers.scrapes_of(jobs, count)
            signals = answers.signals_of(
                identity,
                steps=steps,
                load=load,
                outcomes=outcomes,
                scrapes=scrapes,
                window=self.window,
                pods=count,
            )
            yield identity, scrapes, signals

    def asked_for_steps(self, now: float) -> None:
        """Steps were asked for. The first time all parts are asked, from then on by turns."""
        turns = self.turn + 1 if self.steps_due is None else queries.PARTS + self.puts_off
        self.steps_due = now + turns / queries.PARTS * self.window


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
        # One for each query of each part and window, for each judged service, and one that asks what is scraped at all.
        # Few are ever started.
        most = MOST_QUERIES * queries.PARTS * (1 + len(LONGER_WINDOWS)) + MOST_JUDGED + 1
        self._pool = ThreadPoolExecutor(max_workers=most, thread_name_prefix="prometheus")
        self._explaining: set[asyncio.Future[Any]] = set()
        #: Calls for judged services that nobody has answered yet, and when each service was asked for last.
        self._judging: dict[Identity, set[asyncio.Future[Any]]] = {}
        self._judged_at: dict[Identity, float] = {}
        self._least_window = least_window
        self._only = only
        self._shard = shard
        self._groups: dict[tuple[int, int], _Group] = {}
        #: When the read before began.
        self._read_at = -math.inf
        #: Those that are read, with the window of each by its own scrapes.
        self._windows: dict[Identity, int] = {}

    def close(self) -> None:
        """Let go of the threads; calls in flight end by their own timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._source.close()

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals of each service given; `pods` says how many ready pods each has."""
        seen: dict[Identity, Observation] = {}
        groups = self._asked_for(pods)
        if len(pods) > FEW:
            for group in groups:
                group.take_turn(self._clock())
        self._part(groups)
        for found in await asyncio.gather(*map(self._read, groups)):
            seen |= found
        return await self._explained({identity: seen[identity] for identity in pods}, pods)

    def _part(self, groups: Sequence[_Group]) -> None:
        """Give groups turns of their own again where a read that came late has brought them together.

        They would stay together, and each window would have a read that takes as much of processor and memory as all of
        its others. Reads that are too seldom for turns are left alone.
        """
        now, due = self._clock(), Counter[int]()
        pause, self._read_at = now - self._read_at, now
        for group in groups:
            often = pause <= group.window / queries.PARTS + _EARLY
            group.puts_off = due[group.window] if often else 0
            due[group.window] += group.steps_are_due(now)

    def _asked_for(self, pods: Mapping[Identity, int]) -> list[_Group]:
        """The groups that have some of these services; each takes note of its own."""
        self._windows = {identity: self._windows.get(identity, self._least_window) for identity in pods}
        members: dict[tuple[int, int], dict[Identity, int]] = defaultdict(dict)
        for identity, count in pods.items():
            number = queries.part_of(identity[1]) if self._only is None else queries.PARTS - 1
            members[number, self._windows[identity]][identity] = count
        for number, window in members.keys() - self._groups.keys():
            targets = queries.part(number, self._shard) if self._only is None else queries.targets(self._only)
            self._groups[number, window] = _Group(targets, number, window)
        for key, group in self._groups.items():
            group.pods = members.get(key, {})
        # One that still waits for answers is kept: its services may come back to it.
        self._groups = {key: group for key, group in self._groups.items() if group.pods or group.busy}
        return [self._groups[key] for key in sorted(members)]

    async def _read(self, group: _Group) -> Mapping[Identity, Observation]:
        now = self._clock()
        steps = group.steps_are_due(now)
        try:
            found = await self._ask(group.busy, group.questions(steps=steps))
        except PrometheusError as error:
            group.attained = None
            if steps and error.missing is Missing.TIMED_OUT:
                # What steps may have made late is read without them at the next ticks.
                group.asked_for_steps(now)
            return dict.fromkeys(group.pods, Unobserved(error.missing, str(error)))
        seen = self._seen(group, found)
        if steps:
            group.asked_for_steps(now)
        return seen

    def _seen(self, group: _Group, found: Sequence[Figures[Any]]) -> dict[Identity, Observation]:
        """What was answered; the next window of each service is that of its scrapes."""
        seen: dict[Identity, Observation] = {}
        for identity, scrapes, signals in group.signals(found):
            seen[identity] = signals
            if scrapes.interval:
                self._windows[identity] = window_of(scrapes.interval, self._least_window)
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
        for group in self._asked_for(pods):
            seen |= self._seen(group, [self._query(question, at) for question in group.questions(steps=True)])
        return seen

    def ran_at(self, at: float) -> Mapping[Identity, Ran]:
        """What engines ran under at a Unix time, by their own gauges. Raises `PrometheusError`."""
        found = self._query((queries.ran(queries.targets(self._only)), answers.limit_figures), at)
        return {identity: answers.ran_of(jobs) for identity, jobs in found.services.items()}

    async def attainment(self) -> Mapping[Identity, Attainment | Unobserved] | Unobserved:
        """What came of requests over `ATTAINMENT_WINDOW`, for every service read last of which anything is counted."""
        groups = [group for group in self._groups.values() if group.pods]
        attained: dict[Identity, Attainment | Unobserved] = {}
        for found in await asyncio.gather(*map(self._attained, groups)):
            attained |= found
        missing = [one for one in attained.values() if isinstance(one, Unobserved)]
        return missing[0] if missing and len(missing) == sum(len(group.pods) for group in groups) else attained

    async def _attained(self, group: _Group) -> Mapping[Identity, Attainment | Unobserved]:
        now, known = self._clock(), group.attained
        if known is not None and now < known.until - _EARLY and group.pods.keys() <= known.services:
            return known.found
        try:
            question = queries.attainment(ATTAINMENT_WINDOW, group.targets), answers.count_figures
            (found,) = await self._ask(group.busy, [question])
        except PrometheusError as error:
            return dict.fromkeys(group.pods, Unobserved(error.missing, str(error)))
        attained = {identity: answers.attained_of(jobs) for identity, jobs in found.services.items()}
        # The first time all parts are asked, from then on by turns.
        share = (group.turn + 1) / queries.PARTS if known is None else 1.0
        group.attained = _Attained(frozenset(group.pods), attained, now + share * group.window)
        return attained

    async def pod_outcomes(self, windows: Mapping[Identity, int]) -> Mapping[Identity, PodOutcomes | Unobserved]:
        """What came of the requests of each pod of these services, over so many seconds each.

        Of more than `MOST_JUDGED` those that were asked for longest ago; the others are absent, and come next.
        """
        self._judging = {one: busy for one, busy in self._judging.items() if busy}
        self._judged_at = {one: at for one, at in self._judged_at.items() if one in self._windows}
        room = max(0, MOST_JUDGED - len(self._judging))
        chosen = sorted(windows, key=lambda one: self._judged_at.get(one, -math.inf))[:room]
        found = await asyncio.gather(*(self._pod_outcomes(one, windows[one]) for one in chosen))
        return dict(zip(chosen, found, strict=True))

    async def _pod_outcomes(self, identity: Identity, window: int) -> PodOutcomes | Unobserved:
        """The same of one service: a query that fails, or takes too long, is its own.

        Over no less than the service's own window: a shorter one has no two scrapes, and so no increase.
        """
        self._judged_at[identity] = self._clock()
        seconds = max(window, self._windows.get(identity, self._least_window))
        question = queries.pod_outcomes(seconds, queries.targets(identity)), answers.pod_count_figures
        try:
            (found,) = await self._ask(self._judging.setdefault(identity, set()), [question])
        except PrometheusError as error:
            return Unobserved(error.missing, str(error))
        return answers.pod_outcomes_of(found.of(identity))

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
        return understand(self._source.query(text, at))


def _done(busy: set[asyncio.Future[Any]], call: asyncio.Future[Any]) -> None:
    busy.discard(call)
    if not call.cancelled():
        call.exception()  # retrieved, so that a call nobody waited for any more leaves no warning


def _is_unseen(found: Observation) -> bool:
    return isinstance(found, Unobserved) and found.reason is Missing.NOT_SCRAPED


def window_of(interval: float, least: int) -> int:
    """Seconds that span enough scrapes, so many seconds apart."""
    needed = interval * SCRAPES_PER_WINDOW
    return next((window for window in (least, LEAST_WINDOW, *LONGER_WINDOWS) if window >= needed), LONGER_WINDOWS[-1])
