"""Results of runs on the simulated engine: a function of their sources, of their names and of nothing else.

Those that the law does not drive do not depend on the law.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import flyball_engine
import flyball_lab
import flyball_operator
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.rows import Rows

_HERE: Final = Path(__file__).parent
_LAB: Final = Path(flyball_lab.__path__[0])
_ENGINE: Final = Path(flyball_engine.__path__[0])
_TUNING: Final = Path(flyball_operator.__path__[0]) / "tuning"
#: What makes any run what it is: folders and files of sources.
_SOURCES: Final = (
    *(_HERE / name for name in ("measures.py", "orders.py", "plays.py", "contenders.py", "scenarios.py")),
    *(_HERE / name for name in ("setpoints.py", "traffic.py", "troubles.py", "two_classes.py")),
    _HERE.parent / "options.py",
    *(_LAB / name for name in ("baselines", "simulator")),
    *(_ENGINE / name for name in ("batching", "classes.py", "contract.py", "knobs.py", "model.py")),
    *(_TUNING / name for name in ("control_input.py", "spec.py", "tunables.py")),
)
#: And what one of the law's, besides.
_OF_THE_LAW: Final = (
    *(
        _HERE / name
        for name in ("ablation.py", "closed_loop.py", "disturbances.py", "recorded_service.py", "tuned_service.py")
    ),
    _LAB / "harness",
    *(_ENGINE / name for name in ("control", "figures.py")),
    Path(flyball_operator.__path__[0]),
)


class Kept:
    """The results in a folder; without one nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        """Raises KeptError."""
        self._rows = {law: Rows(folder, (*_SOURCES, *(_OF_THE_LAW if law else ()))) for law in (False, True)}

    def get(self, run: str) -> RunFigures | None:
        """What came of a run, if it is known."""
        row = next((row for rows in self._rows.values() if (row := rows.get(run)) is not None), None)
        try:
            return None if row is None else RunFigures(**{**row, "good_each": tuple(row["good_each"])})
        except (KeyError, TypeError):
            return None

    def add(self, run: str, outcome: RunFigures, *, law: bool) -> None:
        """A run ended. `law`: whether the law drove it."""
        self._rows[law].add(run, asdict(outcome))
