"""The plant of the simulated engine: what a step costs, and that sums over stretches have the right mean and spread."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean, pstdev

import pytest

from flyball_engine.batching.step_statistics import Step
from flyball_lab.simulator.plant import CALM, Disturbances, Plant, StepTimes, Stretch
from flyball_lab.simulator.presets import PREFILL_STEP, PRESETS
from flyball_lab.sizing.devices import gpu

H100 = PRESETS["h100-8b"].step_times


def a_step(*, decodes: int = 32, prefill: int = 0, kv: int = 32_000, attention: float = 0.0) -> Step:
    return Step(
        tokens=decodes + prefill, prefill_tokens=prefill, decodes=decodes, kv_tokens=kv, prefill_attention=attention
    )


def a_plant(step_times: StepTimes = H100, disturbances: Disturbances = CALM, seed: int = 1) -> Plant:
    return Plant(step_times, Random(seed), disturbances)


def test_a_decode_pays_for_the_context_it_reads() -> None:
    plant = a_plant()
    assert plant.step(a_step(kv=132_000)) - plant.step(a_step(kv=32_000)) == pytest.approx(100_000 * 0.05e-6)


def test_a_prefill_costs_a_fixed_time_more_and_each_chunk_reads_its_context_again() -> None:
    plant = a_plant()
    tiny = plant.step(a_step(prefill=1)) - plant.step(a_step())
    assert tiny == pytest.approx(PREFILL_STEP, rel=1e-2)
    again = plant.step(a_step(prefill=512), reread_tokens=20_000) - plant.step(a_step(prefill=512))
    assert again == pytest.approx(20_000 * 0.05e-6)


def test_small_steps_cost_the_reading_of_the_weights_and_large_ones_their_tokens() -> None:
    plant = a_plant()
    assert plant.step(a_step(decodes=1, kv=0)) == pytest.approx(6e-3, rel=1e-2)
    more = plant.step(a_step(decodes=1, kv=0, prefill=4096)) - plant.step(a_step(decodes=1, kv=0, prefill=2048))
    assert more == pytest.approx(2048 * 20e-6)


def test_a_slow_down_stretches_every_step_from_then_on() -> None:
    plant = a_plant()
    before = plant.step(a_step())
    plant.slow_down = 1.4
    assert plant.step(a_step()) == pytest.approx(1.4 * before)
    assert plant.stretch(a_step(), growth=0.0, most=100, seconds=1e9).seconds == pytest.approx(140 * before)


def test_scatter_leaves_the_mean_and_stalls_come_as_often_as_said() -> None:
    plant = a_plant(disturbances=Disturbances(stall_chance=0.01))
    expected = H100.seconds(a_step())
    times = [plant.step(a_step()) for _ in range(20_000)]
    stalled = [seconds for seconds in times if seconds > expected + 0.015]
    assert len(stalled) == pytest.approx(200, abs=60)
    calm = [seconds for seconds in times if seconds <= expected + 0.015]
    assert fmean(calm) == pytest.approx(expected, rel=2e-3)
    assert pstdev(calm) == pytest.approx(0.05 * expected, rel=0.03)


def test_a_step_takes_as_long_as_the_graph_that_it_is_padded_to() -> None:
    step_times = replace(H100, graphs=(256, 512))
    plant, bare = a_plant(step_times), a_plant()
    stairs = [plant.step(a_step(decodes=0, kv=0, prefill=tokens)) for tokens in (300, 400, 512)]
    assert stairs == 3 * [bare.step(a_step(decodes=0, kv=0, prefill=512))]
    assert plant.step(a_step(prefill=600)) == bare.step(a_step(prefill=600))


def test_the_first_step_of_a_size_without_a_graph_waits_for_its_kernels() -> None:
    step_times = replace(H100, graphs=(256,))
    plant = a_plant(step_times, replace(CALM, compile_seconds=2.0))
    assert plant.step(a_step(decodes=200)) < 1.0
    assert plant.step(a_step(prefill=500)) > 2.0
    assert plant.step(a_step(prefill=510)) < 1.0
    assert plant.step(a_step(prefill=900)) > 2.0


def test_a_stretch_waits_for_its_kernels_once_and_not_where_there_is_no_time() -> None:
    plant = a_plant(disturbances=replace(CALM, compile_seconds=2.0))
    assert plant.stretch(a_step(), growth=0.0, most=100, seconds=1.0).steps == 0
    made = plant.stretch(a_step(), growth=0.0, most=100, seconds=1e9)
    assert made.steps == 100
    assert made.longest > 2.0
    assert made.seconds == pytest.approx(2.0 + 100 * H100.seconds(a_step()))


def stretches(*, jumped: bool, runs: int = 600) -> list[Stretch]:
    """The same 200 steps over and over; a threshold among the step times makes the plant step through them."""
    plant = a_plant(disturbances=Disturbances(stall_chance=0.0), seed=2 if jumped else 3)
    thresholds = () if jumped else (H100.seconds(a_step()),)
    return [plant.stretch(a_step(), growth=32.0, most=200, seconds=1e9, thresholds=thresholds) for _ in range(runs)]


def test_a_jump_has_the_mean_and_the_spread_of_the_steps_it_stands_for() -> None:
    jumped, stepped = stretches(jumped=True), stretches(jumped=False)
    for what, exact in (("seconds", 2e-3), ("seconds_squared", 2e-3), ("longest", 2e-2)):
        ours, theirs = ([getattr(one, what) for one in found] for found in (jumped, stepped))
        assert fmean(ours) == pytest.approx(fmean(theirs), rel=exact)
        assert pstdev(ours) == pytest.approx(pstdev(theirs), rel=0.15)


def test_no_stretch_passes_the_moment_it_must_not_pass() -> None:
    plant = a_plant(disturbances=Disturbances())
    for seconds in (0.001, 0.05, 0.3, 1.7, 4.0) * 50:
        made = plant.stretch(a_step(), growth=32.0, most=10_000, seconds=seconds)
        assert made.seconds <= seconds
        assert made.seconds > seconds - 0.06, "the next step would have ended later"


def test_gaps_beyond_a_threshold_are_counted_step_by_step() -> None:
    step = a_step(kv=0)
    threshold = H100.seconds(step._replace(kv_tokens=1000 * 32))
    made = a_plant().stretch(step, growth=32.0, most=3000, seconds=1e9, thresholds=(threshold, 1.0, 1e-6))
    assert made.within == [1001, 3000, 0]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_one_that_an_engine_would_start_with(name: str) -> None:
    preset = PRESETS[name]
    assert preset.kv_tokens >= preset.sizes.max_model_len
    assert preset.sizes.max_num_batched_tokens >= preset.sizes.max_num_seqs
    assert preset.source
    assert preset.start_seconds > 0
    model = preset.step_times.model
    assert min(model.t0, model.c2, model.beta, model.g) > 0


def test_fitted_presets_read_the_weights_as_fast_as_the_memory_does() -> None:
    weights = 2 * 8.03e9
    for name, device, launch in (("h100-8b", "H100-SXM", 1.2e-3), ("a100-8b", "A100-80GB", 1.5e-3)):
        compute = gpu(device).compute
        assert compute is not None
        assert PRESETS[name].step_times.model.t0 - launch == pytest.approx(weights / compute.bandwidth, rel=0.03)
