"""What came of it: the retunes, the figures of each run, Auto against Disabled; on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flyball_engine.figures import figure
from flyball_lab.benchmark.requests import Percentiles
from flyball_lab.demo.measure import Measured
from flyball_lab.demo.view import limits_text, percent
from flyball_lab.pages.figures import Column, FigureTable, table
from flyball_operator.api.v1alpha1 import (
    DecisionStatus,
    Mode,
    Objective,
    SetpointStatus,
    StepModelStatus,
)

#: So that reasons have half of a narrow terminal.
LIMITS_WIDTH = 26


class RunResult(BaseModel):
    """One measured run. `counted` is what the engine counted, in percent by objective; `setpoint` that at its end."""

    phase: str
    mode: Mode
    round: int
    began: float
    measured: Measured
    counted: dict[str, float | None]
    setpoint: SetpointStatus | None


class PodIdentity(BaseModel):
    """Who served: changes with every start of a pod or container."""

    name: str
    uid: str
    restarts: int


class Results(BaseModel):
    """All that the demo found; what the JSON file holds.

    `carried`: requests per second that the engine answered of those that loads are shares of (`phases.BUSY`).
    """

    objectives: tuple[Objective, ...]
    carried: float
    runs: list[RunResult] = []
    decisions: list[DecisionStatus] = []
    events: list[dict[str, str]] = []
    model: StepModelStatus | None = None
    pod_before: PodIdentity
    pod_after: PodIdentity | None = None

    def save(self, path: Path) -> None:
        """Write the file anew."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1))


def show(results: Results, console: Console) -> None:
    """Print everything."""
    console.print(retunes_table(results))
    console.print(objectives_table(results))
    console.print(requests_table(results))
    console.print(latencies_table(results))
    console.print(limits_table(results))
    console.print(ratios_table(results))
    for line in closing_lines(results):
        console.print(line)


def retunes_table(results: Results) -> Table:
    """Each decision with its reason, oldest first."""
    table = Table(title="Retunes", title_justify="left")
    table.add_column("time", no_wrap=True)
    table.add_column("limits, before and after", overflow="fold", max_width=LIMITS_WIDTH)
    table.add_column("reason", overflow="fold")
    for decision in sorted(results.decisions, key=lambda decision: decision.time):
        limits = f"{limits_text(decision.before)}\n→ {limits_text(decision.after)}"
        table.add_row(decision.time[11:19], limits, decision.trigger)
    return table


def objectives_table(results: Results) -> Table:
    """How far each run met the objectives, both modes of a phase together."""
    names = [f"{objective.name}\n{objective.threshold}, {objective.target} %" for objective in results.objectives]
    return _by_run(
        "Objectives met, by the requests let in",
        (*names, "all"),
        results,
        lambda run: (
            *(_judged(run.measured.met[objective.name], objective) for objective in results.objectives),
            percent(run.measured.good_let_in),
        ),
    )


def requests_table(results: Results) -> Table:
    """What became of the requests that each run sent."""
    return _by_run(
        "All requests sent",
        ("sent", "refused", "failed", "met\nall", "met\nall/s", "tokens\n/s"),
        results,
        lambda run: (
            str(run.measured.requests),
            str(run.measured.refused),
            str(run.measured.failed + run.measured.truncated),
            percent(run.measured.good),
            f"{run.measured.goodput:.2f}",
            f"{run.measured.tokens_per_second:.0f}",
        ),
    )


def figure_table(results: Results) -> FigureTable:
    """What the README shows: percentages of requests let in that met each objective, and what became of all sent."""
    asked = [f"{one.name} {one.threshold}, {one.target} %" for one in results.objectives]
    shares = [*asked, "all, of let in", "all, of sent"]
    columns = [
        *(Column(title=title) for title in ("phase", "tuning")),
        *(Column(title=title, decimals=1) for title in shares),
        Column(title="met all/s", decimals=2),
        Column(title="tokens/s", decimals=0),
        Column(title="refused"),
        Column(title="failed", decimals=0),
    ]
    rows = [
        [
            run.phase,
            run.mode.value,
            *(run.measured.met[one.name] for one in results.objectives),
            run.measured.good_let_in,
            run.measured.good,
            run.measured.goodput,
            run.measured.tokens_per_second,
            f"{run.measured.refused}/{run.measured.requests}",
            run.measured.failed + run.measured.truncated,
        ]
        for run in results.runs
    ]
    return table(columns, rows)


def latencies_table(results: Results) -> Table:
    """Percentiles of each run."""
    return _by_run(
        "Latencies in ms: p50 / p99",
        ("TTFT", "TPOT", "ITL"),
        results,
        lambda run: tuple(map(milliseconds, (run.measured.ttft, run.measured.tpot, run.measured.itl))),
    )


def limits_table(results: Results) -> Table:
    """The limits that each run ended under."""
    return _by_run("Limits at the end", ("limits",), results, lambda run: (limits_text(run.setpoint),))


def _by_run(
    title: str, headings: Sequence[str], results: Results, cells: Callable[[RunResult], Sequence[str | Text]]
) -> Table:
    """A row for each run. Cells that are too wide for the terminal are broken, never cut."""
    table = Table(title=title, title_justify="left")
    for heading in ("phase", "tuning"):
        table.add_column(heading, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "limits" else "right", overflow="fold")
    for run in results.runs:
        table.add_row(run.phase, run.mode.value, *cells(run), end_section=_ends_section(results, run))
    return table


def _judged(share: float | None, objective: Objective) -> Text:
    missed = share is not None and share < float(objective.target)
    return Text(percent(share), style="red" if missed else "green")


def _ends_section(results: Results, run: RunResult) -> bool:
    return run is [other for other in results.runs if other.phase == run.phase][-1]


def ratios_table(results: Results) -> Table:
    """Auto against Disabled, by phase."""
    table = Table(title="Auto against Disabled", title_justify="left")
    for heading in ("phase", "met all", "goodput", "tokens/s", "ITL p99", "TTFT p99"):
        table.add_column(heading, justify="left" if heading == "phase" else "right", overflow="fold")
    for phase, disabled, auto in pairs(results.runs):
        table.add_row(
            phase,
            f"{mean(run.good for run in auto) - mean(run.good for run in disabled):+.1f} points",
            *(
                ratio(mean(getattr(run, name) for run in auto), mean(getattr(run, name) for run in disabled))
                for name in ("goodput", "tokens_per_second")
            ),
            *(
                ratio(
                    mean(getattr(run, name).p99 or 0.0 for run in auto),
                    mean(getattr(run, name).p99 or 0.0 for run in disabled),
                )
                for name in ("itl", "ttft")
            ),
        )
    return table


def closing_lines(results: Results) -> Iterator[str]:
    """What else the reader should be able to see at a glance."""
    yield carried_line(results.carried) + "."
    failed = sum(run.measured.failed + run.measured.truncated for run in results.runs)
    total = sum(run.measured.requests for run in results.runs)
    yield f"Requests failed or truncated: {failed} of {total}."
    for run in results.runs:
        figures = run.measured
        if figures.refused:
            yield (
                f"Refused at once, with 503: {figures.refused} of {figures.requests} of {run.phase}, {run.mode.value}; "
                f"{percent(figures.good_let_in)} of those let in met all objectives, {percent(figures.good)} of all."
            )
    for run in results.runs:
        for reason, times in run.measured.errors.items():
            yield f"  {run.phase}, {run.mode.value}: {times} × {reason}"
    before, after = results.pod_before, results.pod_after
    if after == before:
        yield f"Same pod throughout: {after.name}, UID {after.uid}, {after.restarts} restarts; retuned live."
    else:
        yield f"The pod CHANGED: {before} before, {after} after."
    gap, where = largest_gap(results)
    yield f"Engine's counts against the client's: at most {gap:.1f} points apart{where}."


def carried_line(carried: float) -> str:
    """What the loads are made of."""
    return f"Loads are shares of the {carried:.1f} requests/s of chat that this engine answers when it never idles"


def largest_gap(results: Results) -> tuple[float, str]:
    """Largest difference between engine and client for one objective in one run, in points, and where."""
    gaps = [
        (abs(counted - measured), f" ({run.phase}, {run.mode.value}, {name})")
        for run in results.runs
        for name, counted in run.counted.items()
        if counted is not None and (measured := run.measured.met[name]) is not None
    ]
    return max(gaps, default=(0.0, ""))


def pairs(runs: Sequence[RunResult]) -> Iterator[tuple[str, list[Measured], list[Measured]]]:
    """By phase, the figures of all Disabled and all Auto runs; a phase without both is left out."""
    for phase, group in groupby(sorted(runs, key=order(runs)), key=lambda run: run.phase):
        of_phase = list(group)
        disabled, auto = ([run.measured for run in of_phase if run.mode is mode] for mode in (Mode.DISABLED, Mode.AUTO))
        if disabled and auto:
            yield phase, disabled, auto


def order(runs: Sequence[RunResult]) -> Callable[[RunResult], int]:
    """Sort key: phases in the order they first ran."""
    phases = list(dict.fromkeys(run.phase for run in runs))
    return lambda run: phases.index(run.phase)


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def ratio(part: float, whole: float) -> str:
    """`1.25×`, or a dash where there is nothing to compare with."""
    return f"{part / whole:.2f}×" if whole else "–"


def milliseconds(values: Percentiles) -> str:
    """Median and 99th percentile in milliseconds."""
    return " / ".join("–" if value is None else figure(1e3 * value) for value in (values.p50, values.p99))


def summary(phase: str, run: RunResult) -> str:
    """A finished run in one line."""
    figures = run.measured
    met = ", ".join(f"{name} {percent(share)}" for name, share in figures.met.items())
    return (
        f"{phase}, {run.mode.value}: {figures.requests} requests, {figures.refused} refused, "
        f"{figures.failed + figures.truncated} failed, of those let in {met}, all {percent(figures.good_let_in)}, "
        f"at {limits_text(run.setpoint)}"
    )
