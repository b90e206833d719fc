"""The dashboards as the files that the chart ships."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from flyball_lab.dashboards.engines import engines
from flyball_lab.dashboards.fleet import fleet
from flyball_lab.dashboards.service import service

#: By what their file is called.
DASHBOARDS: Final[Mapping[str, Callable[[], Dashboard]]] = {"fleet": fleet, "service": service, "engines": engines}


def text(name: str) -> str:
    """The JSON of a dashboard, as Grafana imports it."""
    return json.dumps(document(name), indent=1, ensure_ascii=False) + "\n"


def document(name: str) -> dict[str, Any]:
    """The same as plain values. Panels are numbered in their order, so that a link to one holds."""
    made: dict[str, Any] = json.loads(JSONEncoder().encode(DASHBOARDS[name]().build()))
    for number, panel in enumerate(made["panels"], start=1):
        panel["id"] = number
    return made
