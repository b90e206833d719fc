"""Identification: true coefficients come back from what a window shows, and nothing wild from what it does not."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from flyball_engine.contract import StepKind
from flyball_engine.model import StepModel
from flyball_lab.harness.plant import A100, CPU, H100
from flyball_lab.harness.tuning import step_window
from flyball_lab.simulator.presets import PRESETS
from flyball_operator.tuning.estimate.step_time import Doubt, StepTimeEstimator, learn, resume
from flyball_operator.tuning.observe.signals import CellKey, StepWindow, Sums
from flyball_operator.tuning.tunables import TUNABLES

#: An 8B model on an H100 reads a token of KV in 50 ns.
ON_GPU = replace(H100, beta=6e-6, d=5e-8)
SLOW = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)


#: Tokens behind a decode.
CONTEXT = 500.0


@st.composite
def plants(draw: st.DrawFn) -> StepModel:
    """Step-time laws of devices between a laptop and the next generation: a floor, a hinge, a slope."""
    slope = 10 ** draw(st.floats(-5.3, -3.4))
    floor = slope * draw(st.floats(20, 500))
    return StepModel(
        t0=floor,
        h=floor * draw(st.floats(0, 0.3)),
        c1=slope * draw(st.floats(0, 1.5)),
        c2=slope,
        beta=slope * draw(st.floats(0, 1)),
        g=slope * draw(st.floats(0, 3e-4)),
        kappa=2 ** draw(st.integers(4, 8)),
        d=slope * draw(st.floats(0, 2.5e-3)),
    )


def a_busy_window(
    model: StepModel,
    rng: random.Random,
    *,
    start: float,
    noise: float,
    load: float,
    context: float = CONTEXT,
    spread: float = 0.2,
) -> StepWindow:
    """Steps of a serving engine: batches about `load`, prompts now and then, each step scattered by `noise`.

    Each decode has about `context` tokens behind it, by step at most this `spread` more or less.
    """
    cells: dict[CellKey, Sums] = {}
    contexts = random.Random(start)
    for _ in range(300):
        decodes = max(1, round(rng.gauss(load, load / 3)))
        prefill = 0 if rng.random() < 0.5 else round(min(2000, rng.lognormvariate(5, 1)))
        attention = prefill * (rng.choice((0, 0, 500)) + prefill / 2)
        kv_tokens = decodes * context * contexts.uniform(1 - spread, 1 + spread)
        seconds = model.seconds(decodes=decodes, prefill_tokens=prefill, kv_tokens=kv_tokens)
        seconds += model.g * (attention - prefill**2 / 2)
        seconds *= max(0.3, rng.gauss(1, noise)) * (5 if rng.random() < 0.003 else 1)
        tokens = decodes + prefill
        key = CellKey(1 << (tokens - 1).bit_length(), StepKind.MIXED if prefill else StepKind.DECODE)
        step = Sums(
            steps=1,
            seconds=seconds,
            seconds_squared=seconds**2,
            tokens=tokens,
            prefill_tokens=prefill,
            decodes=decodes,
            kv_tokens=kv_tokens,
            prefill_attention=attention,
        )
        cells[key] = cells.get(key, Sums()).plus(step)
    return StepWindow(start=start, end=start + 15, cells=cells)


def learnt(model: StepModel, *, loads: list[float], noise: float = 0.05, seed: int = 1) -> StepTimeEstimator:
    rng, step_time = random.Random(seed), StepTimeEstimator()
    for number, load in enumerate(loads):
        step_time = learn(step_time, a_busy_window(model, rng, start=15.0 * number, noise=noise, load=load))
    return step_time


def errors(
    step_time: StepTimeEstimator,
    truth: StepModel,
    *,
    decodes: tuple[int, ...],
    prefills: tuple[int, ...],
    context: float = CONTEXT,
) -> list[float]:
    """Relative errors of predicted steps, whose decodes have so much context."""
    assert step_time.fit is not None
    cases = [(n, p) for n in decodes for p in prefills]
    found, true = (
        [model.seconds(decodes=n, prefill_tokens=p, kv_tokens=n * context) for n, p in cases]
        for model in (step_time.fit.model, truth)
    )
    return [abs(one / other - 1) for one, other in zip(found, true, strict=True)]


@SLOW
@given(plants(), st.integers(0, 10**6))
def test_steps_are_predicted_on_any_device(model: StepModel, seed: int) -> None:
    step_time = learnt(model, loads=[3, 10, 30, 60, 20, 8], seed=seed)
    assert step_time.model is not None
    found = errors(step_time, model, decodes=(2, 8, 20, 50), prefills=(0, 100, 500, 1500))
    assert max(found) < 0.3
    assert sorted(found)[len(found) // 2] < 0.1


@SLOW
@given(plants(), st.floats(0.05, 0.25), st.integers(0, 10**6))
def test_noise_blurs_and_does_not_derail(model: StepModel, noise: float, seed: int) -> None:
    step_time = learnt(model, loads=[3, 10, 30, 60, 20, 8], noise=noise, seed=seed)
    assert step_time.model is not None
    assert sorted(errors(step_time, model, decodes=(2, 8, 20, 50), prefills=(0, 100, 500)))[6] < 0.15


@SLOW
@given(plants(), st.floats(1, 40), st.integers(0, 10**6))
def test_a_constant_load_is_explained_where_it_is_and_coefficients_stay_sane(
    model: StepModel, load: float, seed: int
) -> None:
    step_time = learnt(model, loads=[load] * 8, seed=seed)
    assert step_time.fit is not None
    fit = step_time.fit.model
    assert min(fit.t0, fit.h, fit.c1, fit.c2, fit.beta, fit.g, fit.d) >= 0
    if step_time.model is not None:
        near = max(1, round(load))
        assert max(errors(step_time, model, decodes=(near,), prefills=(0, 150))) < 0.3
        # Twice the batch takes twice the time at most, unless it passes κ, and no less than the same.
        assert 1.0 <= of_twice(fit, near) <= max(2.0, 1.3 * of_twice(model, near)) + 1e-9


def of_twice(model: StepModel, batch: int) -> float:
    """How many times as long a step of twice the decodes takes."""
    twice, once = (model.seconds(decodes=n, kv_tokens=n * CONTEXT) for n in (2 * batch, batch))
    return twice / once


@SLOW
@given(plants(), st.floats(1.3, 3.0), st.integers(0, 10**6))
def test_a_device_that_slows_down_is_learnt_anew(model: StepModel, slower: float, seed: int) -> None:
    before = learnt(model, loads=[3, 10, 30, 60, 20, 8], seed=seed)
    assume(before.model is not None)
    throttled = replace(
        model,
        **{name: slower * getattr(model, name) for name in ("t0", "h", "c1", "c2", "beta", "g", "d")},
    )
    rng, step_time = random.Random(seed), before
    for number in range(8):
        window = a_busy_window(throttled, rng, start=1000 + 15.0 * number, noise=0.05, load=15)
        step_time = learn(step_time, window)
    assert step_time.model is not None
    assert max(errors(step_time, throttled, decodes=(10, 20), prefills=(0, 200))) < 0.25
    # What the window does not show has slowed down with what it does.
    assert max(errors(step_time, throttled, decodes=(50,), prefills=(0, 1000))) < 0.6


def test_the_devices_of_the_simulations_are_recovered_closely() -> None:
    for model in (CPU, H100, A100):
        step_time = learnt(model, loads=[3, 10, 30, 60, 100, 20], noise=0.02)
        assert step_time.fit is not None
        assert abs(step_time.fit.model.c2 / model.c2 - 1) < 0.15
        assert step_time.fit.error < 0.05


def blinded(window: StepWindow) -> StepWindow:
    """The same, of which nobody tells what the decodes read."""
    return replace(window, cells={key: sums._replace(kv_tokens=0.0) for key, sums in window.cells.items()})


def test_what_decodes_read_is_told_from_their_number() -> None:
    rng, step_time, blind = random.Random(1), StepTimeEstimator(), StepTimeEstimator()
    for number, context in enumerate((300.0, 300.0, 4000.0, 1000.0, 8000.0, 300.0)):
        window = a_busy_window(ON_GPU, rng, start=15.0 * number, noise=0.05, load=30, context=context)
        step_time, blind = learn(step_time, window), learn(blind, blinded(window))
    assert step_time.model is not None
    for context in (300.0, 4000.0, 16_000.0):
        assert max(errors(step_time, ON_GPU, decodes=(10, 40, 80), prefills=(0, 500), context=context)) < 0.1
    worst = [max(errors(blind, ON_GPU, decodes=(40,), prefills=(0,), context=context)) for context in (300.0, 8000.0)]
    assert max(worst) > 0.4, "by their number alone a decode costs the same at any context"


# A few sequences, always the same: of those that chance makes, five in a thousand wander for a window.
@pytest.mark.parametrize("context", [200.0, 1000.0, 8000.0])
@pytest.mark.parametrize("seed", range(4))
def test_where_contexts_are_alike_the_fit_does_not_wander(context: float, seed: int) -> None:
    rng, step_time, seen = random.Random(seed), StepTimeEstimator(), []
    for number in range(20):
        load = rng.choice((10, 20, 40))
        step_time = learn(
            step_time, a_busy_window(ON_GPU, rng, start=15.0 * number, noise=0.05, load=load, context=context)
        )
        if step_time.model is not None and number >= 5:
            seen.append(step_time.model.seconds(decodes=40, kv_tokens=40 * 2 * context))
    assert seen
    assert max(seen) < 1.15 * min(seen)
    # Twice the context, never seen, is foretold all the same.
    assert abs(seen[-1] / ON_GPU.seconds(decodes=40, kv_tokens=40 * 2 * context) - 1) < 0.2


#: 8B and 70B models on GPUs, each with the seconds of a token of KV that is read: β is that of a decode alone.
GPUS = {
    name: replace(PRESETS[name].step_times.model, d=PRESETS[name].step_times.kv_token)
    for name in ("h100-8b", "a100-8b", "b200-8b", "l4-8b", "4xh100-70b")
}


@pytest.mark.parametrize("device", GPUS)
@pytest.mark.parametrize("context", [300.0, 1200.0, 20_000.0])
def test_where_what_is_read_goes_with_the_batch_other_contexts_are_foretold(device: str, context: float) -> None:
    """Each decode reads as much as every other, always: no data tell β from d, and their units do."""
    rng, step_time, model = random.Random(1), StepTimeEstimator(), GPUS[device]
    for number in range(12):
        load = rng.choice((10, 20, 40))
        window = a_busy_window(model, rng, start=15.0 * number, noise=0.05, load=load, context=context, spread=0.0)
        step_time = learn(step_time, window)
    assert step_time.model is not None
    for times, most in ((0.25, 0.1), (1.0, 0.05), (2.0, 0.1), (4.0, 0.2)):
        found = errors(step_time, model, decodes=(10, 40), prefills=(0,), context=times * context)
        assert max(found) < most, f"at {times:g} times the context"


def test_steps_all_alike_are_not_trusted() -> None:
    step_time = learn(StepTimeEstimator(), step_window(decodes=(4,), prefills=(0,)))
    assert step_time.fit is not None
    assert step_time.fit.doubt is Doubt.FEW_STEPS


def test_a_resumed_model_is_trusted_under_the_lightest_load() -> None:
    step_time = resume(CPU, error=0.05, steps=1000, reach=2048)
    for number in range(4):
        step_time = learn(
            step_time, step_window(decodes=(1, 2), prefills=(0, 50), start=15.0 * number, end=15.0 * number + 15)
        )
    assert step_time.model is not None
    assert max(errors(step_time, CPU, decodes=(1, 40), prefills=(0, 1000))) < 0.3


def test_windows_are_learnt_once() -> None:
    window = step_window()
    once = learn(StepTimeEstimator(), window)
    assert learn(once, window) is once


def settled(rng: random.Random) -> StepTimeEstimator:
    """A trusted model that was fitted a window ago, and learnt from a load of twenty for some minutes."""
    step_time = StepTimeEstimator()
    while step_time.model is None or step_time.until < 300.0 or step_time.fit_due != step_time.until + 60.0:
        step_time = after(step_time, rng, load=20)
    return step_time


def after(step_time: StepTimeEstimator, rng: random.Random, *, load: float, on: StepModel = CPU) -> StepTimeEstimator:
    """With one window more."""
    window = a_busy_window(on, rng, start=max(0.0, step_time.until), noise=0.0, load=load)
    # Kinds of steps that come once in many windows are left out: they would be new each time.
    known = step_time.rows.keys() if load == 20 and step_time.model is not None else window.cells.keys()
    cells = {key: sums for key, sums in window.cells.items() if key in known}
    return learn(step_time, replace(window, cells=cells))


#: As many steps take twice as long.
THROTTLED = replace(
    CPU, t0=2 * CPU.t0, h=2 * CPU.h, c1=2 * CPU.c1, c2=2 * CPU.c2, beta=2 * CPU.beta, g=2 * CPU.g, d=2 * CPU.d
)


def test_a_model_that_explains_what_is_seen_is_fitted_anew_once_a_minute() -> None:
    rng = random.Random(1)
    step_time = settled(rng)
    fits = []
    for _ in range(8):
        step_time = after(step_time, rng, load=20)
        fits.append(step_time.fit)
    assert [fit is before for fit, before in pairwise(fits)] == [True, True, False, True, True, True, False]


def test_windows_between_two_fits_are_learnt_by_the_next() -> None:
    rng = random.Random(1)
    before = step_time = settled(rng)
    for _ in range(3):
        step_time = after(step_time, rng, load=20)
    assert step_time.fit is before.fit
    assert step_time.rows != before.rows
    assert after(step_time, rng, load=20).fit != before.fit


@pytest.mark.parametrize(("load", "on"), [(60.0, CPU), (20.0, THROTTLED)], ids=["steps of another size", "slower"])
def test_what_a_model_was_not_learnt_from_is_fitted_at_once(load: float, on: StepModel) -> None:
    rng = random.Random(1)
    before = settled(rng)
    step_time = after(before, rng, load=load, on=on)
    assert step_time.fit != before.fit
    assert step_time.model is not None
    assert max(errors(step_time, on, decodes=(int(load),), prefills=(0, 100))) < 0.1


def test_what_contradicts_itself_is_forgotten_and_learnt_anew() -> None:
    rng, step_time = random.Random(3), StepTimeEstimator()
    for number in range(8):
        # Starved by its neighbours, now more, now less: no model explains that.
        starved = a_busy_window(CPU, rng, start=15.0 * number, noise=0.1, load=20)
        slower = rng.choice((1.0, 8.0, 60.0))
        cells = {
            key: sums._replace(seconds=slower * sums.seconds, seconds_squared=slower**2 * sums.seconds_squared)
            for key, sums in starved.cells.items()
        }
        step_time = learn(step_time, replace(starved, cells=cells))
    assert step_time.model is None
    for number in range(8, 16):
        step_time = learn(step_time, a_busy_window(CPU, rng, start=15.0 * number, noise=0.05, load=20))
    assert step_time.model is not None
    assert max(errors(step_time, CPU, decodes=(10, 20), prefills=(0, 200, 1000))) < 0.2


def test_a_clock_set_back_does_not_stop_learning() -> None:
    step_time = learn(StepTimeEstimator(), step_window(start=10_000.0, end=10_015.0))
    assert learn(step_time, step_window(start=500.0, end=515.0)).until == 515.0


def test_memory_is_bounded() -> None:
    step_time = StepTimeEstimator()
    for number in range(50):
        step_time = learn(step_time, step_window(start=15.0 * number, end=15.0 * number + 15))
    assert max(len(rows) for rows in step_time.rows.values()) == TUNABLES.rows_per_cell * 9, "figures of a row"


def test_steps_of_less_than_a_token_are_none() -> None:
    # Of these the fit had a singular matrix.
    sums = Sums(steps=729_089.0, seconds=1.0, tokens=0.0078125, prefill_attention=1e-300)
    cells = {CellKey(1, StepKind.MIXED): sums}
    assert learn(StepTimeEstimator(), StepWindow(cells=cells, start=85.0, end=100.0)) == StepTimeEstimator()


def test_while_there_is_no_model_the_newest_window_may_make_one() -> None:
    few = step_window(decodes=(4,), prefills=(0, 50), start=0.0, end=10.0)
    unknowing = learn(StepTimeEstimator(), few)
    assert unknowing.model is None
    overlapping = learn(unknowing, step_window(start=0.0, end=15.0))
    assert overlapping.model is not None
    assert overlapping.steps == learn(StepTimeEstimator(), step_window(start=0.0, end=15.0)).steps, (
        "no step is counted twice"
    )
    assert learn(unknowing, replace(few, start=5.0, end=15.0)) == unknowing, "nothing is forgotten for no model"
    assert learn(overlapping, step_window(start=5.0, end=20.0)) == overlapping
    full = learn(unknowing, step_window(decodes=(40,), prefills=(900,), steps=100, start=0.0, end=15.0))
    assert full.fit is not None
    assert full.fit.usable_for_admission, "what may be refused by is worth it, too"
