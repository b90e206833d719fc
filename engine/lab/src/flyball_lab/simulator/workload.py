"""What arrives when: phases of synthetic load, or a trace.

The default loads are synthetic. A trace is given by path; its columns are those of Azure's (TIMESTAMP, ContextTokens,
GeneratedTokens), and nothing of one is in this project. Reaches no clock; randomness is a parameter.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from flyball_engine.contract import DEFAULT_CLASS
from flyball_lab.simulator.lengths import Shape
from flyball_lab.simulator.requests import Prefix, Request

_TIME: Final = "TIMESTAMP"
_COLUMNS: Final = (_TIME, "ContextTokens", "GeneratedTokens")
_ACCEPTED: Final = f"CSV with columns {', '.join(_COLUMNS)}"


class TraceError(Exception):
    """A trace could not be read; the message names the file, and the line."""


@dataclass(frozen=True, kw_only=True)
class ArrivalPhase:
    """Arrivals of one kind of request for a while: `rate` per second, in groups of `burst` that come together.

    `variation` is the coefficient of variation of the times between groups: 1 is a Poisson process, more comes in
    swarms (Gamma). Clients give up after `patience` seconds without a first token. All are `of_class`. A request names
    one of these `sizes` as the most tokens that it wants: the least that is one to three times its answer, or the last.
    """

    seconds: float
    rate: float
    shape: Shape
    variation: float = 1.0
    burst: int = 1
    patience: float = math.inf
    of_class: str = DEFAULT_CLASS
    sizes: tuple[int, ...] = ()

    def arrivals(self, start: float, random: Random) -> Iterator[Request]:
        """Its requests in order, the phase beginning at `start`."""
        if self.rate <= 0.0:
            return
        scale = self.burst * self.variation**2 / self.rate
        at = start
        while (at := at + random.gammavariate(1.0 / self.variation**2, scale)) < start + self.seconds:
            for _ in range(self.burst):
                yield self._request(at, random)

    def _request(self, at: float, random: Random) -> Request:
        shape = self.shape
        prompt, prefix = shape.prompt.draw(random), None
        if shape.prefixes:
            prefix = Prefix(f"shared-{random.randrange(shape.prefixes)}", shape.shared)
            prompt = max(prompt, shape.shared + 1)
        output = shape.output.draw(random)
        # Not of the source that all else is drawn from: the same requests come, whatever they name.
        wanted = output * Random(at).uniform(1.0, 3.0)
        named = next((size for size in self.sizes if size >= wanted), self.sizes[-1]) if self.sizes else None
        return Request(at, prompt, output, prefix=prefix, patience=self.patience, of_class=self.of_class, named=named)


def workload(
    phases: Sequence[ArrivalPhase | Sequence[ArrivalPhase]], random: Random, *, start: float = 0.0
) -> list[Request]:
    """Requests of phases one after the other; those of a sequence of phases run side by side."""
    found: list[Request] = []
    for group in phases:
        together = [group] if isinstance(group, ArrivalPhase) else list(group)
        for phase in together:
            found.extend(phase.arrivals(start, random))
        start += max(phase.seconds for phase in together)
    return sorted(found, key=lambda request: request.arrival)


def read_trace(path: Path, *, patience: float = math.inf) -> list[Request]:
    """The requests of a trace, in its order, the first at 0.

    Raises TraceError.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            if lacking := [name for name in _COLUMNS if name not in (table.fieldnames or ())]:
                raise TraceError(f"{path} has no column {', '.join(lacking)} in its first line; accepted: {_ACCEPTED}")
            rows = [_row(f"{path}, line {number}", row) for number, row in enumerate(table, 2)]
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} is no table of text; accepted: {_ACCEPTED}") from error
    if not rows:
        raise TraceError(f"{path} has no requests")
    for number, (before, after) in enumerate(pairwise(at for at, _, _ in rows), 3):
        if after < before:
            raise TraceError(f"{path}, line {number}: {_TIME} is before that of the line above; accepted: in order")
    first = rows[0][0]
    return [Request(at - first, prompt, output, patience=patience) for at, prompt, output in rows]


def _row(where: str, row: dict[str, str | None]) -> tuple[float, int, int]:
    at, prompt, output = (_cell(where, name, row[name]) for name in _COLUMNS)
    return at, max(1, int(prompt)), max(1, int(output))


def _cell(where: str, column: str, text: str | None) -> float:
    """Seconds since some year, or a number of tokens."""
    try:
        if column != _TIME:
            return int(text or "")
        # Seven digits of a second, one more than Python takes.
        stamp = datetime.fromisoformat((text or "")[:26])
    except ValueError as error:
        accepted = "a time such as 2023-11-16 18:15:46.6805900" if column == _TIME else "a whole number"
        raise TraceError(f"{where}: {column}: {text or 'nothing'!r:.40}; accepted: {accepted}") from error
    return (stamp - datetime(2000, 1, 1, tzinfo=stamp.tzinfo)).total_seconds()
