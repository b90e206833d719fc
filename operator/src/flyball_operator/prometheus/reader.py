"""Asks Prometheus once per tick for all services.

`prometheus-api-client` is synchronous, so its calls run in a small pool of threads of their own: a Prometheus that
hangs holds those threads, never the event loop, and while they are held no further call is made.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from flyball_operator.governor.signals import Missing, Observation, Outcome, Unobserved
from flyball_operator.prometheus import answers, queries
from flyball_operator.prometheus.answers import BadAnswerError, Figures, Identity

#: Least seconds of a window: three scrapes at the usual 5 s.
LEAST_WINDOW: Final = 15
#: Scrapes a window must span, and the largest window waited for.
SCRAPES_PER_WINDOW: Final = 3
LARGEST_WINDOW: Final = 300
#: What attainment is reported over.
ATTAINMENT_WINDOW: Final = 300
#: Series of one answer: 1000 services with 42 cells of 8 figures.
MAX_SERIES: Final = 400_000


class PrometheusError(Exception):
    """Prometheus could not be asked. `missing` says in which way."""

    def __init__(self, missing: Missing, detail: str) -> None:
        super().__init__(detail)
        self.missing = missing


class PrometheusReader:
    """Reads signals. `timeout` is for a whole read, `least_window` the shortest window, in seconds."""

    def __init__(self, url: str, *, timeout: float = 4.0, least_window: int = LEAST_WINDOW) -> None:
        self._timeout = timeout
        self._url = url.rstrip("/")
        # No retries: the next tick is one, and a late answer is an old one. `read=False`: then a late answer is told as
        # such, and not as a connection that failed.
        retry = Retry(total=0, read=False)
        self._client = PrometheusConnect(url=self._url, retry=retry, timeout=timeout)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="prometheus")
        self._busy: set[asyncio.Future[Any]] = set()
        self._least_window = least_window
        self.window = least_window

    def close(self) -> None:
        """Let go of the threads; calls in flight end by their own timeout."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def read(self, pods: Mapping[Identity, int]) -> Mapping[Identity, Observation]:
        """Signals of each service given; `pods` says how many ready pods each has."""
        window = self.window
        try:
            steps, load, outcomes = await self._ask(
                queries.steps(window), queries.load(window), queries.outcomes(window)
            )
        except PrometheusError as error:
            return {identity: Unobserved(error.missing, str(error)) for identity in pods}
        self.window = _window(load, self._least_window)
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

    async def attainment(self) -> Mapping[Identity, Mapping[str, Outcome]] | Unobserved:
        """Outcomes by objective id over `ATTAINMENT_WINDOW`, for every service that has any."""
        try:
            (found,) = await self._ask(queries.outcomes(ATTAINMENT_WINDOW))
        except PrometheusError as error:
            return Unobserved(error.missing, str(error))
        return {identity: answers.outcomes_of(group)[0] for identity, group in found.items()}

    async def _ask(self, *texts: str) -> list[Figures]:
        if self._busy:
            raise PrometheusError(Missing.TIMED_OUT, "Prometheus has not answered an earlier read yet")
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(self._pool, self._query, text) for text in texts]
        for call in calls:
            self._busy.add(call)
            call.add_done_callback(self._done)
        _, late = await asyncio.wait(calls, timeout=self._timeout)
        if late:
            raise PrometheusError(Missing.TIMED_OUT, f"Prometheus did not answer in {self._timeout:g} s")
        return [call.result() for call in calls]

    def _done(self, call: asyncio.Future[Any]) -> None:
        self._busy.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved, so that a call nobody waited for any more leaves no warning

    def _query(self, text: str) -> Figures:
        """One query, in a thread of the pool. Raises `PrometheusError`."""
        try:
            return answers.figures(self._client.custom_query(text, params={"limit": MAX_SERIES}))
        except requests.Timeout as error:
            raise PrometheusError(Missing.TIMED_OUT, f"Prometheus did not answer in {self._timeout:g} s") from error
        except requests.ConnectionError as error:
            raise PrometheusError(Missing.UNREACHABLE, f"{self._url} cannot be reached") from error
        except (requests.RequestException, PrometheusApiClientException) as error:
            raise PrometheusError(Missing.UNREACHABLE, f"{self._url}: {str(error)[:200]}") from error
        except (BadAnswerError, KeyError, TypeError, ValueError) as error:
            raise PrometheusError(Missing.BAD_ANSWER, str(error)[:300]) from error


def _window(load: Figures, least: int) -> int:
    """Seconds that span enough scrapes of the slowest-scraped service."""
    intervals = [answers.named(found).get("interval", 0.0) for found in load.values()]
    needed = max(intervals, default=0.0) * SCRAPES_PER_WINDOW
    # Scrapes jitter by milliseconds; 15.01 s must not become 20 s.
    return int(min(LARGEST_WINDOW, max(least, math.ceil((needed - 0.5) / 5) * 5)))
