"""Asks Prometheus once per tick for all services, or once for each time of the past that is asked for.

The client is synchronous, so the calls of a tick run in a small pool of threads. A Prometheus that hangs holds those
threads, never the event loop. While they are held no further call is made. Who asks for the past waits for each answer
in the thread that asks.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from flyball_operator.prometheus import answers, queries
from flyball_operator.prometheus.answers import BadVectorError, Figures, Ran
from flyball_operator.prometheus.client import PrometheusError
from flyball_operator.prometheus.unseen import Found, rows_of, why
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
#: Seconds for a whole read of a tick.
TIMEOUT: Final = 4.0


_Parsed = TypeVar("_Parsed")


class PrometheusReader:
    """Reads signals. `timeout` is for a whole read, `least_window` the shortest window, in seconds.

    `only`: ask for this service alone, where it is known that no other matters.
    """

    def __init__(
        self,
        source: Source,
        *,
        timeout: float = TIMEOUT,
        least_window: int = LEAST_WINDOW,
        only: Identity | None = None,
    ) -> None:
        self._source = source
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="prometheus")
        self._busy: set[asyncio.Future[Any]] = set()
        self._explaining: set[asyncio.Future[Any]] = set()
        self._least_window = least_window
        self._targets = queries.targets(only)
        self.window = least_window

    def close(self) -> None:
        """Let go of the threads; calls in flight end by their own timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._source.close()

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals of each service given; `pods` says how many ready pods each has."""
        texts = self._texts()
        try:
            found = await self._ask(self._query, *texts)
        except PrometheusError as error:
            return {identity: Unobserved(error.missing, str(error)) for identity in pods}
        return await self._explained(self._signals(found, pods), pods)

    async def _explained(
        self, seen: Mapping[Identity, Observation], pods: Mapping[Identity, int]
    ) -> Mapping[Identity, Observation]:
        """With words to what is not scraped though it has Ready pods: one query more, as long as there is such one."""
        unseen = [identity for identity, found in seen.items() if pods[identity] and _is_unseen(found)]
        if not unseen:
            return seen
        try:
            # Apart from the others: one unseen service must not keep all of them from being read.
            (rows,) = await self._ask(self._query_rows, queries.found(), busy=self._explaining)
        except PrometheusError:
            # It answered a moment ago; what could not be asked now is at the next tick.
            return seen
        words = {identity: Unobserved(Missing.NOT_SCRAPED, why(identity, rows)) for identity in unseen}
        return {**seen, **words}

    def read_at(self, at: float, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals as they were at a Unix time. Raises `PrometheusError`."""
        return self._signals([self._query(text, at) for text in self._texts()], pods)

    def ran_at(self, at: float) -> Mapping[Identity, Ran]:
        """What engines ran under at a Unix time, by their own gauges. Raises `PrometheusError`."""
        found = self._query(queries.ran(self._targets), at)
        return {identity: answers.ran_of(group) for identity, group in found.items()}

    def _texts(self) -> tuple[str, ...]:
        """The queries of a tick, in the order `_signals` takes their answers."""
        ask = (queries.steps, queries.load, queries.outcomes)
        return tuple(query(self.window, self._targets) for query in ask)

    def _signals(self, found: list[Figures], pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        steps, load, outcomes = found
        window, self.window = self.window, _window(load, pods, self._least_window)
        return {
            identity: answers.signals_of(
                steps=steps.get(identity, []),
                load=load.get(identity, []),
                outcomes=outcomes.get(identity, []),
                window=window,
                pods=count,
            )
            for identity, count in pods.items()
        }

    async def attainment(self) -> Mapping[Identity, Attainment] | Unobserved:
        """What came of requests over `ATTAINMENT_WINDOW`, for every service of which anything is counted."""
        try:
            (found,) = await self._ask(self._query, queries.attainment(ATTAINMENT_WINDOW, self._targets))
        except PrometheusError as error:
            return Unobserved(error.missing, str(error))
        return {identity: answers.attained_of(group) for identity, group in found.items()}

    async def _ask(
        self, query: Callable[[str], _Parsed], *texts: str, busy: set[asyncio.Future[Any]] | None = None
    ) -> list[_Parsed]:
        """The answers; `busy`: the calls of this kind that nobody has answered yet."""
        busy = self._busy if busy is None else busy
        if busy:
            raise PrometheusError(Missing.TIMED_OUT, "Prometheus has not answered an earlier read yet")
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._pool, query, text) for text in texts]
        for call in calls:
            busy.add(call)
            call.add_done_callback(functools.partial(_done, busy))
        _, late = await asyncio.wait(calls, timeout=self._timeout)
        if late:
            raise PrometheusError(Missing.TIMED_OUT, f"Prometheus did not answer in {self._timeout:g} s")
        return [call.result() for call in calls]

    def _query(self, text: str, at: float | None = None) -> Figures:
        """One query, in the thread that asks. Raises `PrometheusError`."""
        return _understood(answers.figures, self._source.query(text, at))

    def _query_rows(self, text: str) -> list[Found]:
        """The query for all that is scraped, likewise."""
        return _understood(rows_of, self._source.query(text))


def _understood(parse: Callable[[Any], _Parsed], answer: Any) -> _Parsed:
    try:
        return parse(answer)
    except BadVectorError as error:
        raise PrometheusError(Missing.BAD_ANSWER, str(error)[:300]) from error


def _done(busy: set[asyncio.Future[Any]], call: asyncio.Future[Any]) -> None:
    busy.discard(call)
    if not call.cancelled():
        call.exception()  # retrieved, so that a call nobody waited for any more leaves no warning


def _is_unseen(found: Observation) -> bool:
    return isinstance(found, Unobserved) and found.reason is Missing.NOT_SCRAPED


def _window(load: Figures, pods: Mapping[Identity, int], least: int) -> int:
    """Seconds that span enough scrapes of the slowest-scraped service."""
    intervals = [answers.scrapes_of(found, pods.get(identity, 0)).interval for identity, found in load.items()]
    needed = max(intervals, default=0.0) * SCRAPES_PER_WINDOW
    # Scrapes jitter by milliseconds; 15.01 s must not become 20 s.
    return int(min(LARGEST_WINDOW, max(least, math.ceil((needed - 0.5) / 5) * 5)))
