"""Several API servers of one engine: the first has the control port, the others follow it through files.

Each API server is a process that counts its own requests and holds its own gate. The first writes down each setpoint it
accepts. The others look for it every `LOOK_SECONDS`, and write down what they counted. A scrape adds up all of them.
Files outlive a process, so what a dead API server counted stays counted. They stand in the folder of the cores' state
files, which belongs to one engine.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

from flyball_engine.adapters import AdapterReport, merged
from flyball_engine.batching.gate import AdmissionReason
from flyball_engine.batching.outcomes import LedgerCounts
from flyball_engine.contract import Frozen, Setpoint
from flyball_engine.log_events import EngineLogEvent, EventLog

#: How often a follower looks for a setpoint and writes down what it counted: a `stat` and some copies of small dicts.
LOOK_SECONDS: Final = 0.05
#: An API server that has told nothing yet may be starting for so long: the first one may be ready before the others.
STARTING_SECONDS: Final = 60.0
_SETPOINT: Final = "setpoint.json"
_REPORT: Final = "api-server-{}.json"

_log = EventLog(__name__)
K = TypeVar("K", str, tuple[str, str], AdmissionReason)


class _Accepted(Frozen):
    """The setpoint that the first API server accepted last. `number` counts them, renewals too."""

    number: int
    setpoint: Setpoint


class _Report(Frozen):
    """What one API server counted, cumulative, its adapters, and the number of the setpoint it follows, 0 if none."""

    follows: int
    requests: dict[str, int]
    classes: list[tuple[str, str, int]]
    adapters: list[tuple[str, str, int]]
    adapter_tokens: dict[str, int]
    adapter_reports: tuple[AdapterReport, ...]
    objectives: list[tuple[str, str, int]]
    open_objectives: list[tuple[str, str, int]]
    all_objectives: list[tuple[str, str, int]]
    generated_tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int
    unknown_class: int
    admissions: dict[str, int]


class Admissions(Protocol):
    """What became of requests at the gate."""

    @property
    def counts(self) -> Mapping[AdmissionReason, int]:
        """Requests by what the gate said of them, cumulative."""


class Follower:
    """An API server without the control port. `follow` is called with each setpoint that the first one accepts."""

    def __init__(
        self,
        folder: Path,
        index: int,
        *,
        follow: Callable[[Setpoint], None],
        counts: Callable[[], LedgerCounts],
        gate: Admissions,
        adapters: Callable[[], tuple[AdapterReport, ...]] = tuple,
    ) -> None:
        self._adapters = adapters
        self._setpoint = folder / _SETPOINT
        self._path = folder / _REPORT.format(index)
        self._follow = follow
        self._counts = counts
        self._gate = gate
        self._follows = 0
        self._seen: tuple[int, int] | None = None
        self._reported: _Report | None = None
        self._faults: dict[str, str] = {}

    async def run(self) -> None:
        """Follow until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.look()

    def look(self) -> None:
        """Follow what was accepted since the last look, and write down what was counted.

        A fault is logged once, and keeps neither of them from being tried again.
        """
        self._try("this API server does not follow the first one", self._read)
        self._try("what this API server counted cannot be written down", self._write)

    def _try(self, fault: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 – the first API server tells that this one does not follow
            if self._faults.get(fault) != (seen := f"{type(error).__name__}: {error}"):
                self._faults[fault] = seen
                _log.warning(EngineLogEvent.API_SERVER_BEHIND, "%s: %s", fault, seen)
        else:
            self._faults.pop(fault, None)

    def _read(self) -> None:
        try:
            stat = self._setpoint.stat()
        except FileNotFoundError:
            return
        if (stat.st_ino, stat.st_mtime_ns) == self._seen:
            return
        accepted = _Accepted.model_validate_json(self._setpoint.read_bytes())
        self._follow(accepted.setpoint)
        self._seen, self._follows = (stat.st_ino, stat.st_mtime_ns), accepted.number

    def _write(self) -> None:
        counts = self._counts()
        report = _Report(
            follows=self._follows,
            requests=counts.requests,
            classes=_rows(counts.classes),
            adapters=_rows(counts.adapters),
            adapter_tokens=counts.adapter_tokens,
            adapter_reports=self._adapters(),
            objectives=_rows(counts.objectives),
            open_objectives=_rows(counts.open_objectives),
            all_objectives=_rows(counts.all_objectives),
            generated_tokens=counts.generated_tokens,
            prompt_tokens=counts.prompt_tokens,
            cached_prompt_tokens=counts.cached_prompt_tokens,
            unknown_class=counts.unknown_class,
            admissions={reason.value: count for reason, count in self._gate.counts.items()},
        )
        if report != self._reported:
            _replace(self._path, report)
            self._reported = report


class ApiServers:
    """All API servers of an engine, as the first of them sees them. `number`: how many there are.

    With one there are no files, and its counts are all there are.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        counts: Callable[[], LedgerCounts],
        gate: Admissions,
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._others = range(1, number)
        self._own = counts
        self._gate = gate
        self._accepted = 0
        self._clock = clock
        self._since = clock()

    def publish(self, setpoint: Setpoint) -> None:
        """Have the others follow a setpoint. They do within a fraction of a second. Raises OSError."""
        if self._others:
            self._accepted += 1
            _replace(self._folder / _SETPOINT, _Accepted(number=self._accepted, setpoint=setpoint))

    def missing(self) -> str | None:
        """Which API servers do not follow, in words; None if all do."""
        behind = [str(index) for index in self._others if not self._follows(self._read(index))]
        if not behind:
            return None
        which = f"API server {behind[0]} does" if len(behind) == 1 else f"API servers {', '.join(behind)} do"
        return f"{which} not follow the setpoints that this engine accepted"

    def collect(self) -> LedgerCounts:
        """What all of them counted of requests."""
        own, others = self._own(), list(self._reports())
        return LedgerCounts(
            requests=_added(own.requests, (report.requests for report in others)),
            classes=_added(own.classes, (_keyed(report.classes) for report in others)),
            adapters=_added(own.adapters, (_keyed(report.adapters) for report in others)),
            adapter_tokens=_added(own.adapter_tokens, (report.adapter_tokens for report in others)),
            objectives=_added(own.objectives, (_keyed(report.objectives) for report in others)),
            open_objectives=_added(own.open_objectives, (_keyed(report.open_objectives) for report in others)),
            all_objectives=_added(own.all_objectives, (_keyed(report.all_objectives) for report in others)),
            generated_tokens=own.generated_tokens + sum(report.generated_tokens for report in others),
            prompt_tokens=own.prompt_tokens + sum(report.prompt_tokens for report in others),
            cached_prompt_tokens=own.cached_prompt_tokens + sum(report.cached_prompt_tokens for report in others),
            unknown_class=own.unknown_class + sum(report.unknown_class for report in others),
        )

    def adapters(self, own: tuple[AdapterReport, ...]) -> tuple[AdapterReport, ...]:
        """What became of each adapter of our list in all of them."""
        reports = (self._read(index) for index in self._others)
        return merged(own, tuple(() if report is None else report.adapter_reports for report in reports))

    @property
    def counts(self) -> Mapping[AdmissionReason, int]:
        """What all their gates said."""
        others = (
            {AdmissionReason(name): count for name, count in report.admissions.items()} for report in self._reports()
        )
        return _added(dict(self._gate.counts), others)

    def _follows(self, report: _Report | None) -> bool:
        if report is None:
            return self._clock() - self._since < STARTING_SECONDS
        # A setpoint that was accepted just now is on its way.
        return report.follows >= self._accepted - 1

    def _reports(self) -> Iterable[_Report]:
        return (report for index in self._others if (report := self._read(index)) is not None)

    def _read(self, index: int) -> _Report | None:
        try:
            return _Report.model_validate_json((self._folder / _REPORT.format(index)).read_bytes())
        except FileNotFoundError:
            return None


def _added(own: Mapping[K, int], others: Iterable[Mapping[K, int]]) -> dict[K, int]:
    """By our keys: another API server may count against objectives of a moment ago."""
    each = list(others)
    return {key: count + sum(other.get(key, 0) for other in each) for key, count in own.items()}


def _rows(counts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    return [(*key, count) for key, count in counts.items()]


def _keyed(rows: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], int]:
    return {(name, outcome): count for name, outcome, count in rows}


def _replace(path: Path, content: Frozen) -> None:
    """Whole or not at all: no reader meets half a file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(content.model_dump_json(), encoding="utf-8")
    partial.replace(path)
