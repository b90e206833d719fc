"""What the queries of a dashboard find in a Prometheus."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from flyball_lab.dashboards.filled import chosen, fill, panel_queries, variables
from flyball_lab.harness.prometheus_api import PrometheusApi, Series


def figures(found: list[Series]) -> list[float]:
    """All values that are numbers."""
    return [value for _, values in found for value in values.values() if math.isfinite(value)]


def annotation_queries(board: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    """The queries of all annotations, by name."""
    return {one["name"]: fill(one["expr"], values) for one in board["annotations"].get("list", ())}


def empty(
    board: Mapping[str, Any], api: PrometheusApi, grafana: Mapping[str, str], *, annotated: float = 60
) -> list[str]:
    """Variables, queries of panels and annotations that find nothing in the last half minute.

    `grafana`: what Grafana makes of its own variables. `annotated`: seconds in which annotations are looked for. A
    wrong query raises `QueryRefusedError`.
    """
    now = time.time()
    offered = variables(board, api.label_values)
    found = [f"variable {name}" for name, values in offered.items() if not values]
    values = {**grafana, **chosen(board, offered)}
    incomplete = bool(found)
    for query in panel_queries(board, values):
        asked = api.instant(query.expression, now) if query.instant else api.over(query.expression, now - 30, now, 1)
        if incomplete or not figures(asked):
            found.append(f"panel {query.panel}, {query.legend}")
    for title, expression in annotation_queries(board, values).items():
        if incomplete or not figures(api.over(expression, now - annotated, now, 1)):
            found.append(f"annotation {title}")
    return [f"{board['title']}: {one}" for one in found]
