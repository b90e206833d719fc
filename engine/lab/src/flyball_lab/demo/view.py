"""What is shown while the demo runs: a live panel where there is a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flyball_engine import figures
from flyball_engine.contract import Limits, MetricName, ObjectiveSpec
from flyball_lab.demo.measure import percentage
from flyball_lab.demo.phases import DemoRun
from flyball_lab.demo.watch import Counters, DemoSnapshot, Watcher
from flyball_operator.api.v1alpha1 import DecisionStatus, Objective, SetpointStatus

PLAIN_SECONDS = 10.0
LIVE_SECONDS = 0.5


@dataclass
class Now:
    """What the demo is at: a step in words or a run, since when, and the engine's counters when it began."""

    step: str = ""
    run: DemoRun | None = None
    began: float = field(default_factory=time.monotonic)
    counters: Counters = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        """Seconds since the step or run began."""
        return time.monotonic() - self.began


def objective_key(objective: Objective) -> str:
    """Identity of an objective in the engine's metrics."""
    return ObjectiveSpec(metric=objective.metric, threshold_seconds=objective.threshold_seconds).id


def attained(now: Counters, before: Counters, objective: Objective) -> float | None:
    """Percentage that met an objective since `before`, as the engine counted."""
    key = objective_key(objective)
    met, violated = (
        now.get(counter, 0.0) - before.get(counter, 0.0)
        for counter in ((MetricName.OBJECTIVE_REQUESTS.value, key, outcome) for outcome in ("met", "violated"))
    )
    return percentage(met, met + violated)


def percent(value: float | None) -> str:
    """`98.5 %`, or a dash where nothing was counted."""
    return "–" if value is None else figures.percent(value / 100, 1)


def limits_text(limits: Limits | SetpointStatus | None) -> str:
    """`32 seqs, 256 tokens`, and of a setpoint the time of a step if that is bound."""
    if limits is None:
        return "–"
    text = f"{limits.max_num_active_seqs or '–'} seqs, {limits.max_num_scheduled_tokens or '–'} tokens"
    prefill = limits.long_prefill_token_threshold
    text = f"{text}, {prefill} per prompt" if prefill else text
    budget = limits.step_budget if isinstance(limits, SetpointStatus) else None
    return f"{text}, steps of {budget}" if budget else text


def setpoint(snapshot: DemoSnapshot) -> SetpointStatus | None:
    """What the engine shall run under, by the status."""
    return snapshot.service.status.tuning.setpoint if snapshot.service else None


def decision_text(decision: DecisionStatus | None) -> str:
    """When, what and why, on one line."""
    if decision is None:
        return "–"
    return f"{decision.time[11:19]} {limits_text(decision.before)} → {limits_text(decision.after)}: {decision.trigger}"


class View:
    """Shows `now` and what the watcher last read, until cancelled; prints finished steps above."""

    def __init__(self, console: Console, watcher: Watcher) -> None:
        self.console = console
        self.now = Now()
        self.objectives: tuple[Objective, ...] = ()
        self._watcher = watcher
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(Text(f"[{time.monotonic() - self._began:4.0f}s] ", style="dim") + Text(text))

    async def show(self) -> None:
        """Run until cancelled."""
        if not self.console.is_terminal:
            while True:
                await asyncio.sleep(PLAIN_SECONDS)
                self.say(self._line())
        with Live(console=self.console, get_renderable=self.panel, auto_refresh=False, transient=True) as live:
            while True:
                live.refresh()
                await asyncio.sleep(LIVE_SECONDS)

    def _line(self) -> str:
        snapshot = self._watcher.latest
        if self.now.run is None:
            return f"{self.now.step} ({self.now.elapsed:.0f} s){_trouble(snapshot)}"
        counts = ", ".join(
            f"{objective.name} {percent(attained(snapshot.counters, self.now.counters, objective))}"
            for objective in self.objectives
        )
        title = f"{_title(self.now.run)} {self.now.elapsed:.0f} s"
        return f"{title}: {_load(snapshot)} | {limits_text(setpoint(snapshot))} | {counts}"

    def panel(self) -> RenderableType:
        """What the terminal shows now."""
        snapshot, run = self._watcher.latest, self.now.run
        if run is None:
            return Text(f"… {self.now.step} ({self.now.elapsed:.0f} s){_trouble(snapshot)}", style="bold")
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("time", ProgressBar(total=run.seconds, completed=min(run.seconds, self.now.elapsed), width=40))
        grid.add_row("load", "; ".join(map(str, run.phase.streams)))
        grid.add_row("engine", _load(snapshot))
        grid.add_row("limits", Text(limits_text(setpoint(snapshot)), style="bold"))
        for objective in self.objectives:
            grid.add_row(objective.name, self._objective(snapshot, objective))
        grid.add_row("last decision", decision_text(newest(self._watcher.decisions.values())))
        return Group(Text(_title(run), style="bold"), grid)

    def _objective(self, snapshot: DemoSnapshot, objective: Objective) -> Text:
        share = attained(snapshot.counters, self.now.counters, objective)
        style = "" if share is None else "green" if share >= float(objective.target) else "red"
        wish = f"  ({objective.target} % within {objective.threshold})"
        return Text(percent(share), style=style) + Text(wish, style="dim")


def newest(decisions: Iterable[DecisionStatus]) -> DecisionStatus | None:
    """The decision with the latest time."""
    return max(decisions, key=lambda decision: decision.time, default=None)


def _title(run: DemoRun) -> str:
    return f"{run.phase.title}, tuning {run.mode.value}"


def _load(snapshot: DemoSnapshot) -> str:
    core = snapshot.core
    gate = ", refusing what would be late" if snapshot.gated else ""
    return f"{core.running} running, {core.waiting} waiting{gate}" if core else "engine does not answer"


def _trouble(snapshot: DemoSnapshot) -> str:
    """Why the service is not ready yet, if it says so."""
    ready = snapshot.condition("Ready")
    words = [ready.message or ready.reason] if ready and ready.status != "True" else []
    if snapshot.pod and snapshot.pod.problem:
        words.append(f"pod {snapshot.pod.name}: {snapshot.pod.problem}")
    return ": " + "; ".join(words) if words else ""
