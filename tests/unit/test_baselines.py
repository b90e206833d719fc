"""The other rules that `hack/bench law` runs: each does what its source says, and comes to rest on a plant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Self

import pytest

from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.contract import Knob, Limits, StepKind
from flyball_lab.baselines import ppas
from flyball_lab.baselines.aimd import Aimd
from flyball_lab.baselines.baseline import Baseline, SearchBounds, Window
from flyball_lab.baselines.binary_search import BinarySearch
from flyball_lab.baselines.gradient import Gradient2
from flyball_lab.baselines.loop import Opponent, pressed
from flyball_lab.baselines.random_search import TRIAL_SECONDS, TRIALS, RandomSearch
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.virtual import run
from flyball_operator.tuning.spec import Span

#: A minute within what the engine carries.
CALM = replace(SCENARIOS[0], phases=((8.0, "conversation"),))
BOUNDS = SearchBounds(Span(4, 256), Span(128, 8192), token_objective=0.030)


def a_window(
    *,
    token: float | None = None,
    p99: float | None = None,
    batch: float | None = None,
    running: int = 256,
    good: int = 0,
    kv_tokens: int = 430_000,
    request_tokens: float | None = None,
) -> Window:
    """Busy and of one second, unless told otherwise."""
    return Window(
        seconds=1.0,
        token=token,
        token_p99=p99 if p99 is not None else token,
        batch=batch,
        running=running,
        waiting=0,
        good=good,
        kv_tokens=kv_tokens,
        request_tokens=request_tokens,
    )


def seqs(baseline: Baseline) -> int:
    limit = baseline.limits.max_num_active_seqs
    assert limit is not None
    return limit


def tokens(baseline: Baseline) -> int:
    limit = baseline.limits.max_num_scheduled_tokens
    assert limit is not None
    return limit


def saturated(baseline: Baseline, *, windows: int, base: float = 0.006, each: float = 0.2e-3) -> Baseline:
    """The baseline on a plant that is always full: a token takes `base` seconds, and `each` more for every decode."""
    for _ in range(windows):
        batch = seqs(baseline)
        baseline = baseline.after(a_window(token=base + each * batch, batch=batch, running=batch))
    return baseline


class TestAimd:
    """arXiv:1612.03079, 4.3.1."""

    def test_it_grows_by_the_same_amount_while_the_objective_is_kept(self) -> None:
        baseline = Aimd(BOUNDS, 100.0)
        sizes = [(baseline := baseline.after(a_window(p99=0.029))).size for _ in range(3)]
        assert sizes == [104, 108, 112]

    def test_it_backs_off_by_ten_per_cent_when_the_objective_is_missed(self) -> None:
        assert Aimd(BOUNDS, 100.0).after(a_window(p99=0.031)).size == pytest.approx(90)

    def test_it_saws_about_the_largest_batch_that_keeps_the_objective(self) -> None:
        # 120 decodes take 30 ms.
        baseline: Baseline = saturated(Aimd.start(BOUNDS), windows=60)
        seen = [seqs(baseline := saturated(baseline, windows=1)) for _ in range(60)]
        assert 104 <= min(seen) <= 112
        assert 120 <= max(seen) <= 124

    def test_it_knows_nothing_of_chunks_and_learns_nothing_of_silence(self) -> None:
        baseline = Aimd(BOUNDS, 100.0)
        assert tokens(baseline.after(a_window(p99=0.5))) == 8192
        assert baseline.after(a_window()) == baseline


class TestBinarySearch:
    """arXiv:2503.05248."""

    BASELINE = BinarySearch(BOUNDS, low=40, high=120, fits=256)

    def test_beyond_the_objective_the_upper_end_comes_down_to_the_batch(self) -> None:
        after = self.BASELINE.after(a_window(token=0.031, batch=80))
        assert (after.low, after.high) == (35, 80)
        narrow = self.BASELINE.after(a_window(token=0.031, batch=50))
        assert narrow.high == 60, "never narrower than alpha above the lower end"

    def test_below_it_the_lower_end_goes_up_to_the_batch(self) -> None:
        after = self.BASELINE.after(a_window(token=0.015, batch=80))
        assert (after.low, after.high) == (80, 125)
        assert self.BASELINE.after(a_window(token=0.015, batch=119)).low == 100

    def test_within_the_tolerance_the_interval_is_put_about_the_batch(self) -> None:
        after = self.BASELINE.after(a_window(token=0.025, batch=77))
        assert (after.low, after.high, seqs(after)) == (67, 87, 77)

    def test_on_a_plant_of_constant_load_it_settles_where_the_objective_is(self) -> None:
        # 95 decodes take 25 ms, which is D; D ± ε is 70 to 120 of them.
        assert 70 <= seqs(saturated(BinarySearch.start(BOUNDS), windows=40)) <= 120

    def test_it_finds_the_objective_again_when_the_plant_becomes_slower(self) -> None:
        settled = saturated(BinarySearch.start(BOUNDS), windows=40)
        slower = saturated(settled, windows=60, base=0.006, each=0.4e-3)
        assert 35 <= seqs(slower) <= 60

    def test_what_does_not_fit_into_the_cache_is_not_run(self) -> None:
        after = self.BASELINE.after(a_window(token=0.015, batch=80, kv_tokens=43_000, request_tokens=1000))
        assert seqs(after) == 43


class TestGradient2:
    """github.com/Netflix/concurrency-limits."""

    def test_a_steady_latency_lets_it_grow_by_the_queue(self) -> None:
        baseline = Gradient2(BOUNDS, limit=100.0, long=0.02, windows=100)
        assert baseline.after(a_window(token=0.02)).limit == pytest.approx(100 + 0.2 * 4)

    def test_a_latency_beyond_the_tolerance_shrinks_it_by_the_gradient(self) -> None:
        baseline = Gradient2(BOUNDS, limit=100.0, long=0.02, windows=100_000)
        after = baseline.after(a_window(token=0.040))
        assert after.limit == pytest.approx(0.8 * 100 + 0.2 * (1.5 * after.long / 0.040 * 100 + 4))
        far = baseline.after(a_window(token=10.0))
        assert far.limit == pytest.approx(0.8 * 100 + 0.2 * (0.5 * 100 + 4)), "by half at most"

    def test_it_does_not_grow_while_less_than_half_of_it_is_used(self) -> None:
        baseline = Gradient2(BOUNDS, limit=100.0, long=0.02, windows=100)
        assert baseline.after(a_window(token=0.02, running=49)).limit == 100

    def test_after_an_overload_the_long_latency_is_cut(self) -> None:
        baseline = Gradient2(BOUNDS, limit=100.0, long=0.1, windows=100_000)
        assert baseline.after(a_window(token=0.01)).long == pytest.approx(0.095, rel=0.01)

    def test_the_first_windows_are_averaged_alike(self) -> None:
        baseline = Gradient2.start(BOUNDS)
        for token in (0.01, 0.02, 0.03):
            baseline = baseline.after(a_window(token=token))
        assert baseline.long == pytest.approx(0.02)

    def test_it_stays_between_its_least_and_the_upper_bound(self) -> None:
        assert seqs(saturated(Gradient2.start(BOUNDS), windows=2000, each=0.0)) == 256
        baseline = Gradient2(BOUNDS, limit=21.0, long=0.01, windows=100_000)
        assert seqs(baseline.after(a_window(token=1.0))) == 20


class TestPPas:
    """arXiv:2608.15171."""

    @pytest.mark.parametrize(
        ("prefills", "decodes", "has"), [(2, 1, 2048), (9, 200, 2048), (1, 200, 16_384), (2, 0, 16_384), (0, 0, 16_384)]
    )
    def test_two_prefills_beside_a_decode_are_pressure(self, prefills: int, decodes: int, has: int) -> None:
        assert ppas.tokens(prefills=prefills, decodes=decodes) == has


class TestRandomSearch:
    def searched(self, good: Callable[[Baseline], int], *, seconds: int) -> RandomSearch:
        baseline = RandomSearch.start(BOUNDS, Random(1))
        for _ in range(seconds):
            baseline = baseline.after(a_window(good=good(baseline)))
        return baseline

    def test_each_trial_is_another_draw_from_the_envelope(self) -> None:
        candidates = RandomSearch.start(BOUNDS, Random(1)).candidates
        assert len(set(map(str, candidates))) == len(candidates) == TRIALS
        for one in candidates:
            assert 4 <= (one.max_num_active_seqs or 0) <= 256
            assert 128 <= (one.max_num_scheduled_tokens or 0) <= 8192

    def test_after_the_last_trial_it_stays_with_the_best(self) -> None:
        whole = int(TRIALS * TRIAL_SECONDS)
        baseline = self.searched(seqs, seconds=whole)
        assert len(baseline.scores) == TRIALS
        assert seqs(baseline) == max(one.max_num_active_seqs or 0 for one in baseline.candidates)
        assert baseline.after(a_window(good=10_000)) == baseline

    def test_what_ends_in_the_first_second_of_a_trial_belongs_to_the_one_before(self) -> None:
        baseline = RandomSearch.start(BOUNDS, Random(1)).after(a_window(good=50))
        assert baseline.good == 0
        assert baseline.after(a_window(good=7)).good == 7


class Recorder:
    """A rule that keeps what it sees and asks for one decode less each time."""

    def __init__(self) -> None:
        self.seen: list[Window] = []

    @property
    def limits(self) -> Limits:
        return Limits(max_num_active_seqs=100 - len(self.seen), max_num_scheduled_tokens=8192)

    def after(self, window: Window) -> Self:
        self.seen.append(window)
        return self


class TestTheLoop:
    def test_a_rival_sees_what_the_engine_did_and_is_obeyed(self) -> None:
        recorder = Recorder()
        requests = CALM.requests(1)
        core = CALM.core(1)
        opponent = Opponent(recorder, requests, told=lambda limits: CALM.setpoint(limits, gate=False))
        run(core, requests, until=90.0, events=opponent.events(90.0))
        seen = recorder.seen
        assert len(seen) == 90
        assert sum(window.good for window in seen) == sum(map(CALM.good, requests))
        busy = seen[20:60]
        assert all(0.005 < (window.token or 0) < 0.030 for window in busy)
        assert any(window.token_p99 and 0.005 < window.token_p99 < 0.060 for window in busy)
        assert all(1 <= (window.batch or 0) <= 80 for window in busy)
        assert seen[-1].request_tokens == pytest.approx(1366, rel=0.2)
        assert seen[-1].token is None, "nothing is left to be answered"

    def test_limits_that_move_are_in_force(self) -> None:
        requests, core = CALM.requests(1), CALM.core(1)
        opponent = Opponent(Recorder(), requests, told=lambda limits: CALM.setpoint(limits, gate=False))
        opponent.baseline = Aimd(SearchBounds(Span(4, 256), Span(128, 8192), token_objective=1e-6), 256)
        run(core, requests, until=70.0, events=opponent.events(70.0))
        assert len(opponent.changes) > 10
        shown = core.governed.shown(core.scheduler.batch())
        assert shown[Knob.MAX_NUM_ACTIVE_SEQS].effective < 64

    def test_p_pas_holds_steps_down_only_under_pressure(self) -> None:
        def mixed_steps(*, under: bool, prompts: int) -> int:
            core = CALM.core(1)
            if under:
                pressed(core)
            early = Request(0.0, 16, 2000)
            late = [Request(1.0, 6000, 2) for _ in range(prompts)]
            run(core, [early, *late], until=10.0)
            return sum(one.steps for one in step_sums(core.statistics.sums) if one.kind is StepKind.MIXED)

        assert mixed_steps(under=True, prompts=4) > 2 * mixed_steps(under=False, prompts=4)
        assert mixed_steps(under=True, prompts=1) == mixed_steps(under=False, prompts=1)
