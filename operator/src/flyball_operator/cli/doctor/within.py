"""What answers from within the cluster alone: the operator's own metrics, and its Prometheus."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from typing import Final

from pydantic import ValidationError

from flyball_operator.app.settings import PrometheusSettings, problems
from flyball_operator.cli.doctor.findings import Finding, fail, ok
from flyball_operator.prometheus.client import PrometheusClient, PrometheusError

#: Seconds that one answer may take: `helm test` waits for it.
_TIMEOUT: Final = 10.0
#: Bytes of metrics that are read: those of a thousand services are a tenth of it.
_MOST: Final = 64 * 1024 * 1024
#: A series that every operator has.
_OWN: Final = b"flyball_operator_info{"


async def ask_within(*, metrics: str | None, prometheus: bool) -> list[Finding]:
    """Ask both, or one. `metrics`: the URL of the operator's; `prometheus`: that of the operator's variables."""
    asked = ([_metrics(metrics)] if metrics else []) + ([_prometheus()] if prometheus else [])
    return [finding for found in await asyncio.gather(*asked) for finding in found]


async def _metrics(url: str) -> Iterable[Finding]:
    check, mend = "metrics-port", "see whether the operator's pods are Ready, and NetworkPolicies for port 8080"

    def get() -> bytes:
        # The scheme was checked where it was typed.
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310
            return bytes(answer.read(_MOST))

    try:
        answered = await asyncio.to_thread(get)
    except urllib.error.HTTPError as error:
        return [fail(check, f"{url} answers {error.code}", mend)]
    except (OSError, HTTPException) as error:
        return [fail(check, f"{url} does not answer: {getattr(error, 'reason', None) or error}", mend)]
    if _OWN not in answered:
        return [fail(check, f"{url} has no metrics of an operator", "name the operator's Service and /metrics")]
    return [ok(check, f"{url} has the operator's metrics")]


async def _prometheus() -> Iterable[Finding]:
    check, mend = "prometheus-answers", "mend the chart's values prometheus.*, or what stands between"

    def ask(settings: PrometheusSettings) -> int:
        client = PrometheusClient(str(settings.prometheus_url), timeout=_TIMEOUT, access=settings.prometheus_access)
        try:
            return len([*client.query("count(up)")])
        finally:
            client.close()

    try:
        found = await asyncio.to_thread(ask, PrometheusSettings())
    except ValidationError as error:
        return [fail(check, "; ".join(problems(error)), mend)]
    except PrometheusError as error:
        return [fail(check, str(error), mend)]
    return [ok(check, "answers queries" if found else "answers queries, but scrapes nothing yet")]
