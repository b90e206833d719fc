"""What every level shares: who has which tests, and figures measured on the way, shown at the end, never asserted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.processes import Grouped, turn

# How fast examples come says something about the machine, nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


# What tests make is mostly in no reference cycle, and what they import stays. So cycles are looked for less often, and
# not in what was imported: that spares a twentieth of the processor time of collecting.
gc.set_threshold(100_000, 50, 10)


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Grouped | None:
    """What `--dist=loadgroup` means here; of all others, xdist knows."""
    return Grouped(config, log) if config.getvalue("dist") == "loadgroup" else None


#: Key of a noted figure among the properties of a test.
_FIGURE = "figure"

Note = Callable[[str], None]


@pytest.fixture
def note_figure(request: pytest.FixtureRequest) -> Note:
    """Note a measured figure for the summary of the run, with the test that measured it."""
    name = request.node.name
    # Reports bring properties from the processes that run tests side by side.
    return lambda text: request.node.user_properties.append((_FIGURE, f"{name}: {text}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    noted = (one for report in reports for one in getattr(report, "user_properties", ()) if report.when == "call")
    figures = [text for key, text in noted if key == _FIGURE]
    if figures:
        terminalreporter.section("figures measured")
        for figure in figures:
            terminalreporter.line(figure)
