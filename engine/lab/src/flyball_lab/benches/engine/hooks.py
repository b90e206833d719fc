"""What Flyball's hooks take of a step on vLLM's scheduler classes, with warm caches and with emptied ones."""

from __future__ import annotations

import json
from typing import Final

from flyball_lab.benches.engine.bare import played
from flyball_lab.benches.engine.engines import Where
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.pages.figures import Cell, Column, table

#: What plays them.
MODULE: Final = "step_hooks"
#: In titles of loads with a queue, which have a table of their own.
_QUEUE: Final = " waiting"
_SHARES: Final = ("p50", "p90", "p99")


def measure(where: Where) -> dict[str, dict[str, float]]:
    """Microseconds of processor time per step, by kind of load and state of the caches."""
    figures: dict[str, dict[str, float]] = json.loads(played(where, MODULE).splitlines()[-1])
    return figures


def tables(figures: Figures) -> Tables:
    """Percentiles of each load; those with a long queue apart."""
    found = {}
    for end, head in (("", "caches, answers"), ("queue", "running, waiting")):
        rows: list[list[Cell]] = [
            [title, *(values[f"{share} µs"] for share in _SHARES)]
            for title, values in figures.items()
            if (_QUEUE in title) is (end == "queue")
        ]
        columns = [Column(title=head), *(Column(title=share, decimals=0) for share in _SHARES)]
        found[end] = table(columns, rows)
    return found
