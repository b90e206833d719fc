"""Learns the step-time model from sums of steps.

Each window gives one row of exact means per cell (bucket × kind). The newest few rows of every cell are kept: what a
light load does not show is remembered from when it was seen. The fit is non-negative least squares on relative errors,
with a ridge towards a prior. That comes from the first observations, never from a table of devices. κ is chosen among
powers of two, where the cells end. A fit that explains badly is reported and not used: unconstrained recursive
estimates drive the limits to their floor, where nothing is left to learn from.

A trusted model is fitted anew once a minute. Steps of a new size or kind, and a change that is found, are fitted at
once; another window is only remembered, as it says little new. A change of the engine (throttling, a noisy neighbour)
is found by CUSUM on relative residuals. Rows from before it are forgotten, and the model scaled to what is seen becomes
the prior. Pure.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from statistics import median
from typing import Final, TypeAlias

import numpy as np

from flyball_engine.contract import StepKind
from flyball_engine.model import StepModel
from flyball_operator.tuning.control_input import SHORTEST_STEP
from flyball_operator.tuning.estimate.least_squares import Matrix, non_negative
from flyball_operator.tuning.observe.signals import CLOCK_SET_BACK, CellKey, StepWindow, Sums
from flyball_operator.tuning.tunables import TUNABLES

#: A mean step that takes longer is no measurement, in seconds.
LONGEST_STEP: Final = 3600.0


class Doubt(StrEnum):
    """Why a fit is not trusted."""

    FEW_STEPS = "FewSteps"
    """Too few steps, or none with a prompt in it."""
    ALIKE = "AlikeSteps"
    """Enough steps, all of like size: an overloaded engine makes full ones alone."""
    LARGE_ERROR = "LargeError"
    """The model explains half of what it learnt from worse than `largest_error`, or has tokens for nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellMeans:
    """Means over the steps of one cell in one window. `weight` is 0…1, `at` Unix seconds."""

    at: float
    steps: float
    weight: float
    seconds: float
    tokens: float
    decodes: float
    attention: float
    kv_tokens: float
    mixed: bool


#: Means of cells, those of each side by side, in the order of `_NAMES`: what a fit is made of.
#: Subscripted for type checkers alone: before Python 3.12 an array is none at run time.
Rows: TypeAlias = "array[float]"
_NAMES: Final = ("at", "seconds", "weight", "steps", "tokens", "decodes", "attention", "kv_tokens", "mixed")
_STEPS: Final = 3
#: Of a model.
_COEFFICIENTS: Final = 7
_WIDTH: Final = 9
_NO_ROWS: Final = array("d")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted model. `error`: median relative error. `reach`: tokens of the largest steps it was learnt from."""

    model: StepModel
    error: float
    steps: int
    reach: int
    doubt: Doubt | None

    @property
    def trusted(self) -> bool:
        """Whether decisions may rest on it."""
        return self.doubt is None

    @property
    def usable_for_admission(self) -> bool:
        """Whether it may foretell steps like those it was learnt from, be it no model of others."""
        return self.trusted or self.doubt is Doubt.ALIKE


@dataclass(frozen=True)
class Cusum:
    """Sums of residuals to either side in standard deviations, and when the larger one left zero."""

    slower: float = 0.0
    faster: float = 0.0
    since: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepTimeEstimator:
    """All that is remembered between windows. `steps`: all that were ever seen.

    `rows`: means of cells, those of a row side by side: of a thousand services there are a hundred thousand rows.
    `proven`: the prior was itself identified and trusted, so what the data leave open may be taken from it. `fit_due`:
    when a trusted model is fitted anew even though it explains what is seen.
    """

    rows: Mapping[CellKey, Rows] = field(default_factory=dict)
    prior: StepModel | None = None
    proven: bool = False
    fit: Fit | None = None
    cusum: Cusum = Cusum()
    until: float = -math.inf
    steps: float = 0.0
    forgotten: int = 0
    fit_due: float = -math.inf

    @property
    def model(self) -> StepModel | None:
        """The model decisions may rest on, if there is one."""
        return self.fit.model if self.fit is not None and self.fit.trusted else None


def learn(step_time: StepTimeEstimator, window: StepWindow) -> StepTimeEstimator:
    """Take one window in. A window that overlaps what was learnt already, or is empty, changes nothing.

    Only while there is no model yet may it take the place of what it overlaps, if more can be done by what it makes.
    """
    # Far before what was learnt is no overlap: a clock was set back.
    overlaps = step_time.until - CLOCK_SET_BACK < window.start < step_time.until - 0.5
    if overlaps and (step_time.model is not None or window.end <= step_time.until):
        return step_time
    fresh = {key: row for key, sums in window.cells.items() if (row := _row(key, sums, window.end)) is not None}
    if not fresh:
        return step_time
    if not overlaps:
        return _taken(step_time, fresh, window.end)
    instead = _taken(_until(step_time, window.start), fresh, window.end)
    return instead if _use(instead) > _use(step_time) else step_time


def measured(step_time: StepTimeEstimator) -> list[CellMeans]:
    """All that is remembered of steps."""
    found = (dict(zip(_NAMES, row, strict=True)) for row in _columns(step_time.rows).T.tolist())
    return [CellMeans(**row | {"mixed": row["mixed"] > 0}) for row in found]


def _use(step_time: StepTimeEstimator) -> int:
    """What may be done by what was learnt: nothing, refusing, all."""
    if step_time.fit is None or not step_time.fit.usable_for_admission:
        return 0
    return 1 if step_time.model is None else 2


def _taken(step_time: StepTimeEstimator, fresh: Mapping[CellKey, Rows], at: float) -> StepTimeEstimator:
    watched = _watch(step_time, fresh, at)
    kept = _WIDTH * TUNABLES.rows_per_cell
    rows = {key: (watched.rows.get(key, _NO_ROWS) + row)[-kept:] for key, row in fresh.items()}
    seen = watched.steps + sum(row[_STEPS] for row in fresh.values())
    learnt = replace(watched, rows={**watched.rows, **rows}, until=at, steps=seen)
    early = at < step_time.fit_due - 0.5 <= at + TUNABLES.fits_apart
    if early and watched.forgotten == step_time.forgotten and _knows(step_time, fresh):
        return learnt
    # A fit that was needed sooner leaves the rhythm as it is: fits of many services stay spread over time.
    learnt = _fitted(learnt if early else replace(learnt, fit_due=at + TUNABLES.fits_apart))
    if learnt.fit is not None and learnt.fit.doubt is Doubt.LARGE_ERROR:
        return _fitted(_without_contradiction(learnt))
    return learnt


def _knows(step_time: StepTimeEstimator, fresh: Mapping[CellKey, Rows]) -> bool:
    """Whether there is a trusted model, learnt from steps of all these kinds."""
    return step_time.model is not None and fresh.keys() <= step_time.rows.keys()


def _until(step_time: StepTimeEstimator, end: float) -> StepTimeEstimator:
    """What was learnt of windows that ended by then."""
    kept = _those(step_time.rows, lambda at: at <= end)
    later = _those(step_time.rows, lambda at: at > end)
    return replace(step_time, rows=kept, steps=step_time.steps - sum(_columns(later)[_STEPS].tolist()))


def _fitted(step_time: StepTimeEstimator) -> StepTimeEstimator:
    table = _Table(_columns(step_time.rows))
    prior = step_time.prior or first_guess(table)
    return replace(step_time, prior=prior, fit=_fit(table, prior, step_time))


def _without_contradiction(step_time: StepTimeEstimator) -> StepTimeEstimator:
    """No model explains all that is remembered, so it comes from different times: only the latest is kept."""
    latest = _since(step_time.rows, step_time.until - TUNABLES.memory_seconds)
    return replace(step_time, rows=latest, prior=None, proven=False, fit=None, forgotten=step_time.forgotten + 1)


def _since(rows: Mapping[CellKey, Rows], since: float) -> dict[CellKey, Rows]:
    return _those(rows, lambda at: at >= since)


def _those(rows: Mapping[CellKey, Rows], when: Callable[[float], bool]) -> dict[CellKey, Rows]:
    """The rows of some times; cells that have none of these are left out."""
    kept: dict[CellKey, Rows] = {}
    for key, cell in rows.items():
        for begin in range(0, len(cell), _WIDTH):
            if when(cell[begin]):
                kept[key] = kept.get(key, _NO_ROWS) + cell[begin : begin + _WIDTH]
    return kept


def resume(model: StepModel, *, error: float, steps: int, reach: int) -> StepTimeEstimator:
    """An estimator that starts from a model an earlier one identified and trusted; it is used until data speak."""
    fit = Fit(model=model, error=error, steps=steps, reach=reach, doubt=None)
    return StepTimeEstimator(prior=model, proven=True, fit=fit, steps=steps)


def first_guess(table: _Table) -> StepModel:
    """A weak prior out of the first rows: half of the fastest step is fixed cost, the rest is paid by the token."""
    fixed = float(table.seconds.min()) / 2
    rate = float(np.median(np.maximum(0.0, table.seconds - fixed) / table.tokens))
    return StepModel(t0=fixed, h=0.0, c1=rate, c2=rate, beta=0.0, g=0.0, kappa=1)


def _row(key: CellKey, sums: Sums, at: float) -> Rows | None:
    """Means of a cell; None without a whole step (`increase()` extrapolates to fractions), or with none that can be."""
    # Only steps with tokens are counted; less is rounding.
    if sums.steps < 1 or not 0.99 <= sums.tokens / sums.steps <= 2 * key.bucket:
        return None
    mean = sums.seconds / sums.steps
    if not SHORTEST_STEP <= mean <= LONGEST_STEP or sums.decodes > 1.01 * sums.tokens:
        return None
    scatter = max(0.0, sums.seconds_squared / sums.steps / mean**2 - 1.0)
    weight = sums.steps / (sums.steps + 10.0) / (1.0 + scatter)
    each = (figure / sums.steps for figure in (sums.tokens, sums.decodes, sums.prefill_attention, sums.kv_tokens))
    return array("d", (at, mean, weight, sums.steps, *each, key.kind is StepKind.MIXED))


def _columns(rows: Mapping[CellKey, Rows]) -> Matrix:
    """The fields of all rows."""
    return np.frombuffer(b"".join(rows.values()), dtype=np.float64).reshape(-1, _WIDTH).T


class _Table:
    """Rows as columns: made once, used for each κ."""

    def __init__(self, columns: Matrix) -> None:
        self.seconds, self.weight, self.steps, self.tokens = columns[1:5]
        self.decodes, self.attention, self.kv_tokens, self.mixed = columns[5:]

    @cached_property
    def magnitudes(self) -> Matrix:
        """Powers of two that the tokens of each row's steps are."""
        exponents: Matrix = np.log2(np.maximum(1.0, self.tokens))
        return exponents

    def features(self, kappas: Sequence[int]) -> Matrix:
        """What each coefficient is multiplied with, by κ, coefficient and row."""
        # Without a hinge there is one slope: two of them, one constant, could not be told from t0.
        tokens, hinge = self.tokens, np.array([[kappa if kappa > 1 else math.inf] for kappa in kappas])
        features = np.empty((len(kappas), _COEFFICIENTS, len(tokens)))
        features[:, 0] = 1.0
        features[:, 1] = self.mixed
        below = np.minimum(tokens, hinge, out=features[:, 2])
        np.subtract(tokens, below, out=features[:, 3])
        features[:, 4] = self.decodes
        features[:, 5] = self.attention
        features[:, 6] = self.kv_tokens
        return features

    def predicted(self, model: StepModel) -> Matrix:
        """Seconds the model gives the mean step of each row."""
        seconds: Matrix = _vector(model) @ self.features([model.kappa])[0]
        return seconds


def _vector(model: StepModel) -> Matrix:
    return np.array([model.t0, model.h, model.c1, model.c2, model.beta, model.g, model.d])


def _model(vector: Matrix, kappa: int) -> StepModel:
    t0, h, c1, c2, beta, g, d = (float(value) for value in vector)
    return StepModel(t0=t0, h=h, c1=c1, c2=c2 if kappa > 1 else c1, beta=beta, g=g, d=d, kappa=kappa)


def _fit(table: _Table, prior: StepModel, step_time: StepTimeEstimator) -> Fit:
    kept = step_time.fit.model.kappa if step_time.fit is not None else prior.kappa
    pull = TUNABLES.proven_pull if step_time.proven else TUNABLES.guess_pull
    kappas = _kappas(table, kept, proven=step_time.proven)
    vectors, losses = _solve(table, prior, kappas, pull)
    best = int(np.argmin(losses))
    model = _model(vectors[best], kappas[best])
    fit = Fit(
        model=model,
        # Of a hundred figures, in a tenth of numpy's time; likewise where sets are made below.
        error=median(np.abs(table.predicted(model) / table.seconds - 1.0).tolist()),
        # One after the other: a sum shall not change in its last digit.
        steps=int(sum(table.steps.tolist())),
        reach=int(table.tokens.max()),
        doubt=None,
    )
    return replace(fit, doubt=_doubt(fit, table, proven=step_time.proven))


def _kappas(table: _Table, kept: int, *, proven: bool) -> list[int]:
    """Powers of two with two cells on either side; 1 stands for no hinge, `kept` for the one in use or once proven."""
    sizes = [2 ** int(exponent) for exponent in sorted({*np.ceil(table.magnitudes).tolist()})]
    return sorted({1, *sizes[1:-2], *([kept] if proven or sizes[0] <= kept < sizes[-1] else [])})


def _units(prior: StepModel) -> Matrix:
    """How far each coefficient may be from the prior before it is surprising."""
    token = max(prior.c1, prior.c2, 1e-9)
    fixed = max(prior.t0, token)
    return np.array([fixed, fixed / 2, token, token, token, TUNABLES.attention_unit * token, TUNABLES.kv_unit * token])


def _solve(table: _Table, prior: StepModel, kappas: Sequence[int], pull: float) -> tuple[Matrix, Matrix]:
    """Coefficients and loss at each κ: Huber-weighted, ridged, non-negative least squares on relative errors."""
    # In their units all coefficients are of one size, so that the normal equations lose no digits.
    units, weight = _units(prior), table.weight
    relative = table.features(kappas)
    relative *= units[:, None]
    relative /= table.seconds
    by_row = relative.transpose(0, 2, 1)
    start = _vector(prior) / units
    free = np.ones((len(kappas), len(units)), dtype=np.bool_)
    ridge, rooted = pull**2 * np.eye(len(units)), None
    residual = np.abs(start @ relative - 1.0)
    for _ in range(4):
        weights = weight * np.minimum(1.0, TUNABLES.huber / np.maximum(residual, 1e-9))
        if rooted is not None and np.array_equal(weights, rooted):
            break
        rooted = weights
        weighted = relative * weights[:, None, :]
        found = non_negative(weighted @ by_row + ridge, weighted.sum(axis=2) + pull**2 * start, free)
        free = found > 0.0
        residual = np.abs((found[:, None, :] @ relative)[:, 0] - 1.0)
    loss = np.where(residual < TUNABLES.huber, residual**2 / 2, TUNABLES.huber * (residual - TUNABLES.huber / 2))
    losses: Matrix = (weight * loss).sum(axis=1) / weight.sum() + 1e-9
    return found * units, losses


def _doubt(fit: Fit, table: _Table, *, proven: bool) -> Doubt | None:
    if fit.error > TUNABLES.largest_error or not fit.model.charges:
        return Doubt.LARGE_ERROR
    if proven:
        return None
    if fit.steps < TUNABLES.least_alike_steps or not table.mixed.any():
        return Doubt.FEW_STEPS
    if len({*(2.0 * np.round(table.magnitudes) + table.mixed).tolist()}) < TUNABLES.least_cells:
        return Doubt.ALIKE
    return Doubt.FEW_STEPS if fit.steps < TUNABLES.least_steps else None


def _watch(step_time: StepTimeEstimator, fresh: Mapping[CellKey, Rows], at: float) -> StepTimeEstimator:
    """Advance the change detector; on an alarm forget what was seen before the change began."""
    if step_time.model is None or step_time.fit is None:
        return step_time
    table = _Table(_columns(fresh))
    weights = table.weight * np.minimum(table.steps, 50.0)
    ratios = table.seconds / np.maximum(table.predicted(step_time.model), 1e-9)
    ratio = float((weights * ratios).sum() / weights.sum())
    residual = (ratio - 1.0) / max(TUNABLES.least_noise, step_time.fit.error)
    old = step_time.cusum
    slower = max(0.0, old.slower + residual - TUNABLES.cusum_drift)
    faster = max(0.0, old.faster - residual - TUNABLES.cusum_drift)
    since = at if max(old.slower, old.faster) == 0 else old.since
    if max(slower, faster) <= TUNABLES.cusum_alarm:
        return replace(step_time, cusum=Cusum(slower, faster, since))
    return replace(
        step_time,
        rows=_since(step_time.rows, since),
        prior=_scaled(step_time.model, ratio),
        proven=True,
        cusum=Cusum(),
        forgotten=step_time.forgotten + 1,
    )


def _scaled(model: StepModel, ratio: float) -> StepModel:
    bounded = min(10.0, max(0.1, ratio))
    return _model(_vector(model) * bounded, model.kappa)


_DOUBT_MESSAGES: Final[Mapping[Doubt, str]] = {
    Doubt.FEW_STEPS: "too few engine steps were seen, or none that processed a prompt",
    Doubt.ALIKE: "all engine steps seen are of like size, as in an overload, and say nothing of others",
    Doubt.LARGE_ERROR: "it explains the times of the engine steps badly",
}


def doubt_message(fit: Fit | None) -> str:
    """What speaks against a model, in words that stay the same from tick to tick."""
    if fit is None or fit.doubt is None:
        return "too few requests have ended"
    return _DOUBT_MESSAGES[fit.doubt]
