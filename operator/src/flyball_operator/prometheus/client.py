"""Asks one Prometheus one query; what goes wrong is told apart by what is missing then."""

from __future__ import annotations

from typing import Any, Final, Protocol

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from flyball_operator.tuning.observe.signals import Missing

#: Series of one answer: 1000 services with 42 cells of 7 figures.
MAX_SERIES: Final = 400_000


class PrometheusError(Exception):
    """Prometheus could not be asked. `missing` says in which way."""

    def __init__(self, missing: Missing, detail: str) -> None:
        super().__init__(detail)
        self.missing = missing


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


class PrometheusClient:
    """A Prometheus. `timeout` in seconds, for connecting and for each wait for bytes."""

    def __init__(self, url: str, *, timeout: float) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout
        # No retries: the next tick is one, and a late answer is an old one. `read=False`: then a late answer is told as
        # such, and not as a connection that failed.
        retry = Retry(total=0, read=False)
        self._client = PrometheusConnect(url=self._url, retry=retry, timeout=timeout)

    def query(self, text: str, at: float | None = None) -> Any:
        """As `Source` has it."""
        params: dict[str, Any] = {"limit": MAX_SERIES} | ({} if at is None else {"time": at})
        try:
            return self._client.custom_query(text, params=params)
        except requests.Timeout as error:
            raise PrometheusError(Missing.TIMED_OUT, f"Prometheus did not answer in {self._timeout:g} s") from error
        except requests.ConnectionError as error:
            raise PrometheusError(Missing.UNREACHABLE, f"{self._url} cannot be reached") from error
        except (requests.RequestException, PrometheusApiClientException) as error:
            raise PrometheusError(Missing.UNREACHABLE, f"{self._url}: {str(error)[:200]}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise PrometheusError(Missing.BAD_ANSWER, str(error)[:300]) from error

    def close(self) -> None:
        """Close its connections; calls in flight end by their own timeout."""
        self._client.close()
