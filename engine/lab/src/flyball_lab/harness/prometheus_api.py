"""What a Prometheus answers, as Grafana asks it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

#: A series: its labels, and its values by time in Unix seconds.
Series = tuple[dict[str, str], dict[float, float]]


class QueryRefusedError(AssertionError):
    """Prometheus refused a query; the message is what it said."""


class PrometheusApi:
    """The API of the Prometheus at this address."""

    def __init__(self, url: str) -> None:
        self._url = url

    def instant(self, expression: str, at: float) -> list[Series]:
        """A query for one time. Raises `QueryRefusedError`."""
        found = self._ask("query", query=expression, time=at)["result"]
        return [(one["metric"], {float(one["value"][0]): float(one["value"][1])}) for one in found]

    def over(self, expression: str, start: float, end: float, step: float) -> list[Series]:
        """A query for times `step` seconds apart. Raises `QueryRefusedError`."""
        found = self._ask("query_range", query=expression, start=start, end=end, step=step)["result"]
        return [(one["metric"], {float(at): float(value) for at, value in one["values"]}) for one in found]

    def label_values(self, series: str, label: str) -> Sequence[str]:
        """Values of a label among series. Raises `QueryRefusedError`."""
        found: list[str] = self._ask(f"label/{label}/values", **{"match[]": series})
        return found

    def rules(self) -> list[dict[str, Any]]:
        """The rules that are loaded, of all groups, each with its `name` and its `health`."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing, each with its `labels` and its `state`."""
        found: list[dict[str, Any]] = self._ask("alerts")["alerts"]
        return found

    def _ask(self, path: str, **parameters: object) -> Any:
        # Loopback, or an address that the caller gives.
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryRefusedError(f"{parameters}: {error.read().decode()}") from error
