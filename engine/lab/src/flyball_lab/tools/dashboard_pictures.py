"""Pictures of the dashboards: their queries, asked of a Prometheus that watched a service, drawn as charts and tables.

They show what a panel has, not how Grafana looks. The run has a calm, an overload whose late requests are refused, and
one in which they wait.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flyball_engine.arguments import whole
from flyball_lab.dashboards import files
from flyball_lab.dashboards.filled import PanelQuery, chosen, panel_queries, variables
from flyball_lab.harness.prometheus_api import PrometheusApi
from flyball_lab.pages import charts
from flyball_lab.pages.board import Chart, Table, board
from flyball_lab.pages.charts import Line, Point, Span
from flyball_lab.repository import ROOT
from flyball_lab.tools.observed_service import Traffic, observed_service

FOLDER: Final = ROOT / "docs/figures/dashboards"
_CALM: Final = (Traffic(4, 120, 40), Traffic(0.5, 900, 16))
_OVERLOAD: Final = (Traffic(6, 120, 40), Traffic(7, 1500, 8), Traffic(0.1, 4000, 4))
#: Each phase, its traffic, and what becomes of late requests.
_PHASES: Final = (
    ("calm", _CALM, "Shed"),
    ("overload, Shed", _OVERLOAD, "Shed"),
    ("overload, Queue", _OVERLOAD, "Queue"),
)
#: Units by Grafana's names: what a figure is multiplied by, and what it then is.
_UNITS: Final = {"percentunit": (100.0, "%"), "s": (1.0, "s"), "reqps": (1.0, "per second"), "short": (1.0, "")}
#: Seconds between points.
_STEP: Final = 2.0


def main() -> None:
    """Run the service, and write a picture of each dashboard."""
    parser = argparse.ArgumentParser(prog="hack/dashboards", description="Draws the dashboards of a run.")
    parser.add_argument(
        "--seconds", type=whole(1, 3600), default=50, metavar="S", help="of each of three phases; %(default)s"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER", help="%(default)s")
    options = parser.parse_args()
    pictures = asyncio.run(_pictures(options.seconds))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, drawing in pictures.items():
        (options.out / f"{name}.svg").write_text(drawing, encoding="utf-8")


async def _pictures(seconds: int) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="flyball-dashboards-") as folder:
        async with observed_service(Path(folder)) as service:
            began = time.time()
            spans = []
            for name, traffic, overload in _PHASES:
                start = time.time() - began
                service.world.edit(tuning={"overload": overload})
                async with service.load(*traffic):
                    await asyncio.sleep(seconds)
                    spans.append(Span(name, start, time.time() - began))
                    if len(spans) == len(_PHASES):
                        return await asyncio.to_thread(_drawn, service.prometheus, began, spans)
    raise AssertionError("the last phase returns")


def _drawn(api: PrometheusApi, began: float, spans: Sequence[Span]) -> dict[str, str]:
    end = began + spans[-1].end
    filled = {"__rate_interval": "10s", "__range": f"{math.ceil(end - began)}s"}
    drawn = {}
    for name in files.DASHBOARDS:
        document = files.document(name)
        values = filled | chosen(document, variables(document, api.label_values))
        panels: dict[str, list[PanelQuery]] = {}
        for query in panel_queries(document, values):
            panels.setdefault(query.panel, []).append(query)
        numbers = [queries[0] for queries in panels.values() if queries[0].kind == "stat"]
        cells: list[Chart | Table] = [_numbers(api, numbers, end)] if numbers else []
        for panel, queries in panels.items():
            if queries[0].kind == "table":
                (shown,) = (one for one in document["panels"] if one["title"] == panel)
                cells.append(_table(api, shown, queries, end))
            elif queries[0].kind == "timeseries":
                cells.append(_chart(api, panel, queries, began, spans))
        drawn[name] = board(document["title"], cells)
    return drawn


def _chart(api: PrometheusApi, panel: str, queries: Sequence[PanelQuery], began: float, spans: Sequence[Span]) -> Chart:
    factor, unit = _UNITS[queries[0].unit]
    lines: list[Line] = []
    for query in queries:
        for labels, values in api.over(query.expression, began, began + spans[-1].end, _STEP):
            points = [Point(at - began, value * factor) for at, value in values.items() if math.isfinite(value)]
            lines.append(Line(query.name_of(labels), len(lines), points))
    return Chart(charts.timeline(panel, unit, lines, spans), [line.name for line in lines])


def _numbers(api: PrometheusApi, queries: Sequence[PanelQuery], at: float) -> Table:
    """Panels of one figure each, one below the other."""
    found = [(query.panel, api.instant(query.expression, at)) for query in queries]
    rows = [(name, f"{next(iter(values.values())):g}") for name, series in found for _, values in series]
    return Table("Numbers", ("", "now"), rows)


def _table(api: PrometheusApi, panel: Mapping[str, Any], queries: Sequence[PanelQuery], at: float) -> Table:
    """A row for each set of labels that the panel shows, with the figure of each query."""
    organised = panel["transformations"][1]["options"]
    hidden, renamed = organised["excludeByName"], organised["renameByName"]
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for query in queries:
        for labels, values in api.instant(query.expression, at):
            known = tuple(sorted((name, value) for name, value in labels.items() if name not in hidden))
            rows.setdefault(known, {})[query.legend] = f"{next(iter(values.values())):.3g}"
    names = list(dict.fromkeys(name for known in rows for name, _ in known))
    figures = [] if "Value" in hidden else [query.legend for query in queries]
    cells = [[*(dict(known).get(name, "") for name in names), *(row.get(head, "") for head in figures)]
             for known, row in sorted(rows.items())]  # fmt: skip
    return Table(panel["title"], [*(renamed.get(name, name) for name in names), *figures], cells)


if __name__ == "__main__":
    main()
