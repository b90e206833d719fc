"""What every level shares: figures that tests measure on the way, shown at the end and never asserted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

# How fast examples come says something about the machine, nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_FIGURES = pytest.StashKey[list[str]]()

Note = Callable[[str], None]


@pytest.fixture
def note_figure(request: pytest.FixtureRequest) -> Note:
    """Note a measured figure for the summary of the run, with the test that measured it."""
    figures = request.config.stash.setdefault(_FIGURES, [])
    return lambda text: figures.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("figures measured")
        for figure in figures:
            terminalreporter.line(figure)
