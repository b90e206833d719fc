"""Which model classes of Transformers the vLLM at hand serves, and how: the others would need padded batches."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from flyball_lab.benches.engine.bare import printed
from flyball_lab.benches.engine.engines import Where
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.pages.figures import Cell, Column, table

#: What looks at them.
MODULE: Final = "architectures"


def measure(where: Where) -> dict[str, dict[str, float]]:
    """By kind of model, how many classes there are, and how many are served in which way."""
    with TemporaryDirectory(prefix=f"flyball-{MODULE}-") as name:
        said = printed(where, Path(name), MODULE)
    figures: dict[str, dict[str, float]] = json.loads(said.splitlines()[-1])
    return figures


def tables(figures: Figures) -> Tables:
    """A row for each kind."""
    ways = list(next(iter(figures.values())))
    rows: list[list[Cell]] = [[kind, *(values[way] for way in ways)] for kind, values in figures.items()]
    return {"": table(("model classes", *(Column(title=way, decimals=0) for way in ways)), rows)}
