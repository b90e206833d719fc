"""Every query of the dashboards on real parts: Prometheus scrapes the operator's exporter and those of engines."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.dashboards import files
from flyball_lab.dashboards.filled import panel_queries
from flyball_lab.harness.prometheus_api import PrometheusApi, QueryRefusedError
from flyball_lab.tools import metrics
from flyball_lab.tools.observed_service import Traffic, observed_service
from support import helm
from support.dashboards import annotation_queries, empty, figures

#: What Grafana makes of its own variables, here for scrapes every half second.
GRAFANA = {"__rate_interval": "5s", "__range": "60s"}
#: Seconds until all that dashboards show has happened, at the most.
PATIENCE = 180
#: Chats, prompts that make others late, and prompts that cannot be in time even if served alone.
OVERLOAD = (Traffic(6, 120, 40), Traffic(5, 1500, 8), Traffic(0.3, 4000, 4))
#: What is zero but for rare events. These shall have happened, so that a line at zero does not count.
REFUSED = 'flyball_admissions_total{decision="refused"}'
EVENTS = (
    REFUSED,
    'flyball_admissions_total{decision="admitted"}',
    "flyball_moved_behind_total",
    "flyball_cached_prompt_tokens_total",
    'flyball_objective_requests_total{outcome="violated"}',
    'flyball_slot_seconds_total{state="withheld"}',
    "flyball_local_bias",
    "flyball_operator_model_trusted",
)


def missing(api: PrometheusApi) -> set[str]:
    """What has not happened yet, and what dashboards lack."""
    unseen = {event for event in EVENTS if not any(value > 0 for value in figures(api.instant(event, time.time())))}
    return unseen.union(*(empty(files.document(name), api, GRAFANA) for name in files.DASHBOARDS))


async def test_every_query_finds_figures_in_what_operator_and_engines_export(
    tmp_path: Path, note_figure: Callable[[str], None]
) -> None:
    began = time.monotonic()
    async with observed_service(tmp_path) as service, service.load(*OVERLOAD):
        lacking = await asyncio.to_thread(missing, service.prometheus)
        while lacking and time.monotonic() < began + PATIENCE:
            await asyncio.sleep(0.5)
            # What was found once counts: annotations show a minute, and on a busy machine other things come later.
            lacking &= await asyncio.to_thread(missing, service.prometheus)
            if REFUSED not in lacking:
                # Those that are late are refused, and then wait behind the others.
                service.world.edit(tuning={"overload": "Queue"})
        assert not lacking, "\n".join(sorted(lacking))
        note_figure(f"all {len(queries())} queries found figures after {time.monotonic() - began:.0f} s")

        # The test itself: it finds a panel of a metric that is not there, and a query that is none.
        board = files.document("engines")
        panel = next(panel for panel in board["panels"] if panel.get("targets"))
        target = panel["targets"][0]
        target["expr"] = "flyball_not_there"
        found = await asyncio.to_thread(empty, board, service.prometheus, GRAFANA)
        assert any(panel["title"] in one for one in found)
        target["expr"] = "sum(("
        with pytest.raises(QueryRefusedError, match="parse error"):
            await asyncio.to_thread(empty, board, service.prometheus, GRAFANA)


def queries() -> list[str]:
    """Every query of every dashboard."""
    boards = [files.document(name) for name in files.DASHBOARDS]
    return [
        expression
        for board in boards
        for expression in (
            *(query.expression for query in panel_queries(board, {})),
            *annotation_queries(board, {}).values(),
            *(one["query"] for one in board["templating"]["list"] if one["type"] == "query"),
        )
    ]


def test_dashboards_ask_for_metrics_that_there_are() -> None:
    defined = {one.name for one in metrics.operator_metrics()} | set(MetricName)
    histograms = {f"{MetricName.BATCH_SIZE}_{suffix}" for suffix in ("bucket", "sum", "count")}
    asked = {name for query in queries() for name in re.findall(r"\bflyball_\w+", query)}
    assert asked <= defined | histograms, asked - defined - histograms


@pytest.mark.parametrize("name", files.DASHBOARDS)
def test_panels_lie_side_by_side_and_have_numbers_and_texts(name: str) -> None:
    board = files.document(name)
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in taken) < 24, panel["title"]
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
        cells |= taken
    assert [panel["id"] for panel in board["panels"]] == list(range(1, len(board["panels"]) + 1))
    assert len({(panel["type"], panel["title"]) for panel in board["panels"]}) == len(board["panels"])


def test_the_chart_ships_them_where_they_are_asked_for() -> None:
    assert not [one for one in helm.of_kind(helm.render({}), "ConfigMap") if "dashboard" in one["metadata"]["name"]]
    options = {"enabled": True, "namespace": "monitoring", "annotations": {"grafana_folder": "Flyball"}}
    made = helm.of_kind(helm.render({"metrics": {"dashboards": options}}), "ConfigMap")
    assert {one["metadata"]["namespace"] for one in made} == {"monitoring"}
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in made)
    assert all(one["metadata"]["annotations"] == {"grafana_folder": "Flyball"} for one in made)
    shipped = {name: json.loads(text) for one in made for name, text in one["data"].items()}
    assert shipped == {f"flyball-{name}.json": files.document(name) for name in files.DASHBOARDS}
