"""The tuner against vLLM's defaults and other limits that never move, on one real engine, in turn.

Repetitions are pairs: all variants of one meet the same arrivals of the same lengths, so what is compared is the
quotient of each repetition. The order of the variants is another in each, so that none always follows the same.
Before the first counted run the tuner has one uncounted, in which it learns the engine; each run of its own
resumes from what status held then, as after a restart of the operator.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import flyball_engine
import flyball_operator
from flyball_engine.figures import figure
from flyball_lab.benches.engine.engines import WarmEngines, say
from flyball_lab.benches.figures import Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.intervals import WIDTH, half_width, quotients
from flyball_lab.benches.live.calibration import Calibration, calibrate
from flyball_lab.benches.live.goodput import LiveRun, Objectives, figures, goodput
from flyball_lab.benches.live.load import arrivals, length, phases
from flyball_lab.benches.live.runner import Runner, runner
from flyball_lab.benches.live.variants import GOVERNED, Variant, variants
from flyball_lab.benches.options import Options
from flyball_lab.benches.rows import Rows
from flyball_lab.harness.recordings import LIVE
from flyball_lab.pages.figures import Cell, Column, table
from flyball_operator.api.v1alpha1 import TuningStatus

Figures = dict[str, dict[str, float]]

REPETITIONS: Final = 3
OVER: Final = "governed over it"
#: What the key of the best variant begins with.
BEST: Final = "the best that never moves: "
#: The seed of the run in which the tuner learns, and whose load no counted run has.
LEARNING_SEED: Final = 0
_HERE: Final = Path(__file__).parent
#: What makes a run what it is.
SOURCES: Final = (
    *(_HERE / name for name in ("runner.py", "calibration.py", "governed.py", "load.py", "variants.py")),
    _HERE.parent / "engine/load.py",
    *(_HERE.parents[1] / "benchmark" / name for name in ("generator.py", "load.py")),
    *(Path(flyball_engine.__path__[0]) / name for name in ("batching", "control", "vllm", "contract.py", "model.py")),
    *(Path(flyball_operator.__path__[0]) / name for name in ("engines", "prometheus", "tuning")),
)


@dataclass(frozen=True)
class Ground:
    """What a folder's runs have in common: the calibration, and what the tuner had learnt before them."""

    calibration: Calibration
    tuning: TuningStatus
    learnt: Mapping[str, float]

    def row(self) -> dict[str, Any]:
        """As JSON holds it."""
        calibration = {"objectives": asdict(self.calibration.objectives), "busy": dict(self.calibration.busy)}
        tuning = self.tuning.model_dump(mode="json", by_alias=True)
        return {"calibration": calibration, "tuning": tuning, "learnt": dict(self.learnt)}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Ground:
        """From JSON."""
        objectives, busy = row["calibration"]["objectives"], row["calibration"]["busy"]
        calibration = Calibration(Objectives(**objectives), busy)
        return cls(calibration, TuningStatus.model_validate(row["tuning"]), row["learnt"])


@dataclass(frozen=True)
class PlannedRun:
    """One run."""

    variant: Variant
    repetition: int
    gate: bool
    quick: bool

    @property
    def key(self) -> str:
        """All that it depends on but for the ground and the sources."""
        gate, pace = ("gated" if self.gate else "open"), (" | quick" if self.quick else "")
        return f"{gate} | {self.variant.name} | repetition {self.repetition}{pace}"


def jobs(*, gate: bool, quick: bool) -> list[PlannedRun]:
    """All runs of a part, in their order."""
    tried, found = variants(gate=gate, quick=quick), []
    for repetition in range(1, 1 + (1 if quick else REPETITIONS)):
        turn = (repetition - 1) // 2
        order = (*tried[turn:], *tried[:turn])
        found += [
            PlannedRun(variant, repetition, gate, quick) for variant in (order if repetition % 2 else order[::-1])
        ]
    return found


def ground_key(*, quick: bool) -> str:
    """Under which the ground is kept."""
    return f"ground{' | quick' if quick else ''}"


def objectives_of(row: Mapping[str, Any]) -> Objectives:
    """The objectives of a ground that was kept."""
    return Ground.of(row).calibration.objectives


def measure(engines: WarmEngines, options: Options, *, gate: bool) -> Figures:
    """Goodput of each variant, and the tuner's over it. Raises InterruptedPart with what was finished."""
    rows, quick = Rows(options.out, SOURCES), options.quick
    found: dict[PlannedRun, LiveRun] = {}
    ground: Ground | None = None
    try:
        ground = _ground(engines, rows, quick=quick)
        with runner(engines) as on:
            _finish(on, ground, rows, jobs(gate=gate, quick=quick), found, options.out)
    except KeyboardInterrupt:
        raise InterruptedPart(_figures(ground, found) if ground is not None else {}) from None
    return _figures(ground, found)


def _ground(engines: WarmEngines, rows: Rows, *, quick: bool) -> Ground:
    """That of the folder, or that of an earlier part, or measured."""
    key = ground_key(quick=quick)
    if (row := rows.get(key)) is not None:
        say("objectives, load and model as they were kept")
        return Ground.of(row)
    ground = _measured(engines, quick)
    rows.add(key, ground.row())
    return ground


@functools.cache
def _measured(engines: WarmEngines, quick: bool) -> Ground:
    """Once for all parts."""
    with engines.apart():
        calibration = calibrate(engines)
    of = phases(quick=quick)
    load = arrivals(of, calibration.busy, seed=LEARNING_SEED)
    say("the tuner learns the engine, knowing nothing of it")
    with runner(engines) as on:
        _, world = on.play(GOVERNED, load, calibration, seconds=length(of), gate=False, tuning=TuningStatus())
    assert world is not None
    tuning = next(iter(world.services.values())).status.tuning
    learnt = {"trusted after s": world.trusted_at or float("nan"), "median error": float(tuning.model.error or "nan")}
    say(f"learnt: {', '.join(f'{name} {figure(value)}' for name, value in learnt.items())}")
    return Ground(calibration, tuning, learnt)


def _finish(
    on: Runner,
    ground: Ground,
    rows: Rows,
    wanted: Sequence[PlannedRun],
    found: dict[PlannedRun, LiveRun],
    folder: Path | None,
) -> None:
    for job in wanted:
        if (row := rows.get(job.key)) is not None:
            found[job] = LiveRun.of(row)
    known, began, objectives = len(found), time.monotonic(), ground.calibration.objectives
    if known:
        say(f"{known} of {len(wanted)} runs taken up from before")
    for job in wanted:
        if job in found:
            continue
        of = phases(quick=job.quick)
        load = arrivals(of, ground.calibration.busy, seed=job.repetition)
        played, world = on.play(
            job.variant, load, ground.calibration, seconds=length(of), gate=job.gate, tuning=ground.tuning
        )
        found[job] = played
        rows.add(job.key, played.row())
        if world is not None and folder is not None and job.repetition == 1:
            world.recording(f"{LIVE}{'gated' if job.gate else 'open'}").write(folder)
        left = (time.monotonic() - began) / (len(found) - known) * (len(wanted) - len(found))
        good = goodput(played, objectives)
        say(f"{len(found)} of {len(wanted)}, {job.key}: goodput {good:.2f}/s; some {left:.0f} s to go")


def _figures(ground: Ground, found: Mapping[PlannedRun, LiveRun]) -> Figures:
    """Of the repetitions in which every variant has had its turn."""
    objectives = ground.calibration.objectives
    by_variant = _by_variant(found)
    goodputs = {variant: [goodput(one, objectives) for one in runs] for variant, runs in by_variant.items()}
    told: Figures = {"the load and the tuner's model": ground.calibration.told | dict(ground.learnt)}
    for variant, runs in by_variant.items():
        told[variant.name] = figures(runs, objectives)
        if (width := half_width(goodputs[variant])) is not None:
            told[variant.name]["goodput" + WIDTH] = width
        if not variant.governed and GOVERNED in goodputs:
            told[variant.name] |= _over(goodputs[GOVERNED], goodputs[variant])
    statics = [variant for variant in goodputs if not variant.governed]
    if GOVERNED in goodputs and statics:
        best = max(statics, key=lambda one: statistics.fmean(goodputs[one]))
        told[BEST + best.name] = _over(goodputs[GOVERNED], goodputs[best])
    return told


def tables(figures: Mapping[str, Mapping[str, float]]) -> Tables:
    """The tuner over each variant: goodput, and what each kept of all requests."""
    rows: list[tuple[Cell, ...]] = []
    for name, values in figures.items():
        if OVER in values and not name.startswith(BEST):
            width, ratio = values.get(OVER + WIDTH), f"{values[OVER]:.2f}"
            shown = f"{name}, the best that never moves" if BEST + name in figures else name
            kept = (one["kept all %"] for one in (figures[GOVERNED.name], values))
            rows.append((shown, ratio if width is None else f"{ratio}±{width:.2f}", *kept))
    kept_by = (Column(title=f"{who} kept, %", decimals=0) for who in ("governed", "other"))
    return {"": table(("governed over", "goodput ratio", *kept_by), rows)}


def _by_variant(found: Mapping[PlannedRun, LiveRun]) -> dict[Variant, list[LiveRun]]:
    """By variant its repetitions, in their order; only those that all variants have."""
    tried = list(dict.fromkeys(job.variant for job in found))
    by_job = {(job.variant, job.repetition): played for job, played in found.items()}
    repetitions = sorted({job.repetition for job in found})
    whole = [one for one in repetitions if all((variant, one) in by_job for variant in tried)]
    tried.sort(key=lambda variant: not variant.governed)
    return {variant: [by_job[variant, one] for one in whole] for variant in tried} if whole else {}


def _over(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    shares = quotients(ours, theirs)
    width = half_width(shares)
    return {OVER: statistics.fmean(shares)} | ({} if width is None else {OVER + WIDTH: width})
