"""`hack/bench law --part robust`: disturbed metrics, and that no figure moves limits out of the envelope."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import fmean, pstdev

import pytest

from flyball_engine.contract import Limits, StepKind
from flyball_lab.benches.law.contenders import play, the_law
from flyball_lab.benches.law.disturbances import Absurd, absurd, changed, noisy
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.benches.law.troubles import NONE, TROUBLES, Disturbed, Trouble, play_fixed, play_law
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.virtual import TimedAct, run
from flyball_operator.tuning.observe.signals import CellKey, ObjectiveCounts, RequestLoad, Signals, StepWindow, Sums

#: A minute within what the engine carries.
CALM = replace(SCENARIOS[0], phases=((8.0, "conversation"),))
CELL = CellKey(512, StepKind.MIXED)


def signals(*, at: float = 100.0, value: float = 50.0) -> Signals:
    """All figures are the same."""
    sums = Sums(steps=value, seconds=value, tokens=value, decodes=value)
    return Signals(
        at=at,
        age_seconds=1.0,
        window_seconds=15.0,
        cores=1,
        steps=StepWindow(start=at - 15, end=at, cells={CELL: sums}),
        load=RequestLoad(
            arrivals=value,
            finished=value,
            prompt_tokens=value,
            cached_tokens=value,
            generated_tokens=value,
            running=value,
            waiting=value,
            kv_tokens=value,
            held_tokens=value,
        ),
        outcomes={"a": ObjectiveCounts(value, value)},
    )


def arrivals(seen: Signals) -> float:
    assert isinstance(seen.load, RequestLoad)
    return seen.load.arrivals


def steps(seen: Signals) -> Sums:
    assert isinstance(seen.steps, StepWindow)
    return seen.steps.cells[CELL]


class TestDisturbances:
    def test_noise_is_as_large_as_asked_and_right_in_the_mean(self) -> None:
        random = Random(1)
        seen = [arrivals(noisy(signals(), 0.25, random)) for _ in range(4000)]
        assert fmean(seen) == pytest.approx(50, rel=0.02)
        assert pstdev(seen) / fmean(seen) == pytest.approx(0.25, rel=0.1)

    def test_figures_are_off_each_by_itself(self) -> None:
        seen = noisy(signals(), 0.25, Random(1))
        assert steps(seen).seconds != steps(seen).steps != arrivals(seen)

    def test_times_and_cores_are_left_alone(self) -> None:
        seen = changed(signals(), lambda _: -1.0)
        assert (seen.at, seen.age_seconds, seen.window_seconds, seen.cores) == (100.0, 1.0, 15.0, 1)
        assert seen.outcomes == {"a": ObjectiveCounts(-1, -1)}

    def test_frozen_figures_are_the_first_ones_with_the_time_of_now(self) -> None:
        seen = absurd(Absurd.FROZEN, signals(at=200.0, value=9.0), signals(at=100.0, value=50.0))
        assert isinstance(seen.steps, StepWindow)
        assert (seen.at, seen.steps.end, arrivals(seen), steps(seen).steps) == (200.0, 200.0, 50.0, 50.0)

    def test_what_is_absurd_is_absurd(self) -> None:
        said = {kind: arrivals(absurd(kind, signals(), signals())) for kind in Absurd if kind is not Absurd.FROZEN}
        assert math.isnan(said.pop(Absurd.NOT_A_NUMBER))
        assert said == {Absurd.ZEROS: 0, Absurd.HUGE: 5e13, Absurd.INFINITE: math.inf, Absurd.RESET: -50}


class TestTheLawInTrouble:
    def test_without_any_it_is_the_law(self) -> None:
        found = play_law(CALM, NONE, 1, gate=True)
        assert replace(found, swing=0.0) == play(CALM, the_law(5.0), 1, gate=True), "which measures no swing"
        assert play_law(CALM, NONE, 1, gate=False).kept > 0.98

    @pytest.mark.parametrize("trouble", [one for one in TROUBLES if one.absurd], ids=lambda one: one.name)
    @pytest.mark.parametrize("gate", [False, True], ids=["open", "gated"])
    def test_limits_stay_inside_the_envelope_and_nothing_raises_whatever_is_said(
        self, trouble: Trouble, gate: bool
    ) -> None:
        came = play_law(CALM, trouble, 1, gate=gate)
        assert (came.outside, came.raised) == (0, 0)

    @pytest.mark.parametrize("trouble", [one for one in TROUBLES if one.scrape != 5.0], ids=lambda one: one.name)
    def test_it_scrapes_as_often_as_it_is_told(self, trouble: Trouble) -> None:
        closed_loop = Disturbed(CALM, trouble, Random(1), gated=False)
        run(CALM.core(1), CALM.requests(1), until=120.0, events=closed_loop.events(120.0))
        assert closed_loop.signals is not None
        assert closed_loop.signals.window_seconds == max(15.0, 3 * trouble.scrape)
        assert closed_loop.signals.at % trouble.scrape == 0

    def test_lost_scrapes_make_signals_old(self) -> None:
        ages: list[float] = []

        def look(_: Core) -> None:
            if closed_loop.signals is not None:
                ages.append(closed_loop.signals.age_seconds)

        closed_loop = Disturbed(CALM, Trouble(name="lost", dropped=0.5), Random(1), gated=False)
        looks = [TimedAct(at + 0.5, look) for at in range(10, 110, 5)]
        run(CALM.core(1), CALM.requests(1), until=110.0, events=[*closed_loop.events(110.0), *looks])
        assert min(ages) == 0.0
        assert 5.0 <= max(ages) <= 15.0

    def test_a_wrong_model_is_what_it_begins_with(self) -> None:
        slow = Disturbed(CALM, Trouble(name="slow", prior=3.0), Random(1), gated=False)
        run(CALM.core(1), [], until=1.0, events=slow.events(1.0))
        model = slow.state.step_time.model
        assert model is not None
        assert model.t0 == pytest.approx(3 * CALM.known.t0)
        assert model.kappa == CALM.known.kappa

    def test_an_engine_that_restarts_serves_again_under_the_same_limits(self) -> None:
        restart = next(one for one in TROUBLES if one.restart)
        limits = Limits(max_num_active_seqs=256, max_num_scheduled_tokens=8192)
        calm, dead = (play_fixed(CALM, limits, one, 1, gate=True) for one in (NONE, restart))
        assert 0.4 < dead.goodput / calm.goodput < 0.9
        assert 0.4 < play_law(CALM, restart, 1, gate=True).goodput / calm.goodput < 0.9
