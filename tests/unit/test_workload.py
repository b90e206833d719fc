"""What one engine core is asked for, out of windows: lengths, and what a decode makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.contract import StepKind
from flyball_lab.harness.tuning import TPOT, signals
from flyball_operator.tuning.control_input import Workload, margins, scattered
from flyball_operator.tuning.estimate.workload import WorkloadEstimator
from flyball_operator.tuning.observe.signals import CellKey, RequestLoad, Signals, StepWindow, Sums


def decodes(*, drafts: int = 0, steps: float = 100) -> Sums:
    """Steps of decodes alone."""
    return Sums(
        steps=steps,
        seconds=steps * 0.01,
        seconds_squared=steps * 0.0001,
        tokens=steps * 8 * (1 + drafts),
        decodes=steps * 8,
    )


def demanded(*windows: Signals) -> Workload:
    """What is remembered of windows, one after the other; before them was one like the first, which tells lengths."""
    seen = WorkloadEstimator()
    for one in (replace(windows[0], at=windows[0].at - 15), *windows):
        assert isinstance(one.load, RequestLoad)
        assert isinstance(one.steps, StepWindow)
        seen = seen.after(one.load, one.steps, at=one.at, seconds=one.window_seconds)
    assert isinstance(one.load, RequestLoad)
    found = seen.workload(one.load, cores=1)
    assert found is not None
    return found


def window(at: float, sums: Sums, **load: float) -> Signals:
    cells = {CellKey(64, StepKind.DECODE): sums}
    return signals(at, window=StepWindow(start=at - 15, end=at, cells=cells), **load)


def test_without_drafts_a_decode_makes_one_token_whatever_a_window_holds_of_its_requests() -> None:
    # Twice as many tokens ended as were decoded in this window.
    found = demanded(window(15, decodes(), finished=40.0, generated_tokens=1640.0))
    assert (found.drafted, found.made) == (1.0, 1.0)


def test_with_drafts_it_makes_what_finished_requests_have_beside_their_first() -> None:
    found = demanded(window(15, decodes(drafts=3), finished=40.0, generated_tokens=2040.0))
    assert (found.drafted, found.made) == (4.0, 2.5)
    assert found.ratio == pytest.approx(found.uncached * 2.5 / found.output), "prompts are fed by fewer decodes"


@pytest.mark.parametrize(("generated", "made"), [(40.0, 1.0), (99_999.0, 4.0)])
def test_no_decode_makes_less_than_a_token_or_more_than_all_its_drafts(generated: float, made: float) -> None:
    assert demanded(window(15, decodes(drafts=3), finished=40.0, generated_tokens=generated)).made == made


def test_what_decodes_make_is_a_mean_over_many_requests() -> None:
    first = window(15, decodes(drafts=3), finished=150.0, generated_tokens=150.0 + 2 * 800)
    last = window(30, decodes(drafts=3), finished=75.0, generated_tokens=75.0 + 3 * 800)
    assert demanded(first, last).made == pytest.approx(2.37, abs=0.01), "three windows, the newer ones count more"


def test_few_long_answers_say_over_many_windows_what_a_decode_makes() -> None:
    # One request of 4001 tokens ends in each fifth window, in all of which 400 decodes make 800 tokens.
    calm = [window(15.0 * n, decodes(drafts=3, steps=50), finished=0.0, generated_tokens=0.0) for n in range(1, 5)]
    last = window(75.0, decodes(drafts=3, steps=50), finished=1.0, generated_tokens=4001.0)
    rows = [replace(one, at=one.at + 75 * turn) for turn in range(8) for one in (*calm, last)]
    assert demanded(last, *(replace(one, at=one.at + 75) for one in rows)).made == pytest.approx(2.0, rel=0.25)


def test_where_drafts_cease_a_decode_makes_one_token_at_once() -> None:
    drafting = [window(15.0 * n, decodes(drafts=3), finished=40.0, generated_tokens=2040.0) for n in range(1, 7)]
    plain = window(105.0, decodes(), finished=40.0, generated_tokens=840.0)
    found = demanded(*drafting, plain)
    assert found.made == 1.0
    assert 1.0 < found.drafted < 4.0, "what they cost is believed as slowly as it was"
    assert scattered(margins(), (TPOT,), found).token > 0


def test_steps_with_prompts_do_not_tell_of_drafts() -> None:
    # Each of the two sums is a tenth off, and the decodes are a small part of them.
    mixed = Sums(steps=100, seconds=1.0, seconds_squared=0.01, tokens=22_000, prefill_tokens=18_000, decodes=400)
    prompts = StepWindow(start=15, end=30, cells={CellKey(256, StepKind.MIXED): mixed})
    plain = window(15, decodes(), finished=40.0, generated_tokens=840.0)
    assert demanded(plain, signals(30, window=prompts, finished=40.0, generated_tokens=840.0)).drafted == 1.0


def test_a_few_decodes_alone_say_little_of_drafts() -> None:
    drafting = window(15.0, decodes(drafts=3), finished=40.0, generated_tokens=2040.0)
    assert demanded(drafting, window(30.0, decodes(steps=2), finished=40.0, generated_tokens=2040.0)).drafted > 3.9


def test_an_odd_window_of_drafts_is_hardly_believed_and_many_are() -> None:
    plain = [window(15.0 * n, decodes(), finished=40.0, generated_tokens=840.0) for n in range(1, 4)]
    odd = window(60.0, decodes(drafts=3), finished=40.0, generated_tokens=840.0)
    assert demanded(*plain, odd).drafted < 2.0
    more = [replace(odd, at=60.0 + 15 * n) for n in range(1, 30)]
    assert demanded(*plain, odd, *more).drafted == pytest.approx(4.0, abs=0.05)


def test_windows_that_overlap_are_taken_in_once() -> None:
    long = window(15.0, decodes(), finished=150.0, prompt_tokens=150.0 * 1000, generated_tokens=150.0 * 20)
    short = window(20.0, decodes(), finished=150.0, prompt_tokens=150.0 * 400, generated_tokens=150.0 * 20)
    assert demanded(long, short).prompt == pytest.approx(1000.0)
    assert demanded(long, short, replace(short, at=30.0)).prompt < 800.0
    many = [replace(short, at=30.0 + 15 * n) for n in range(40)]
    assert demanded(long, *many).prompt == pytest.approx(400.0, rel=0.03)


def test_absurd_figures_are_soon_forgotten() -> None:
    plain = [window(15.0 * n, decodes(), finished=40.0, generated_tokens=840.0) for n in range(1, 40)]
    absurd = window(30.0, decodes(drafts=3, steps=1e14), finished=4e13, prompt_tokens=4e16, generated_tokens=9e14)
    found = demanded(plain[0], absurd, *plain[2:])
    assert found.prompt == pytest.approx(demanded(plain[0]).prompt, rel=0.1)
    assert found.output == pytest.approx(21.0, rel=0.05)
    assert found.drafted < 1.2


def test_a_night_without_requests_leaves_lengths_as_they_were() -> None:
    first = window(15.0, decodes(), finished=3.0, prompt_tokens=900.0, generated_tokens=60.0)
    nothing = [window(15.0 * n, Sums(), finished=0.0, prompt_tokens=0.0, generated_tokens=0.0) for n in range(2, 4000)]
    assert demanded(first, *nothing).prompt == pytest.approx(300.0)


def seen_of(*, uneven: float, arrivals: float, cores: int = 4) -> tuple[WorkloadEstimator, RequestLoad]:
    """After a window in which the fullest core had so many times the requests of the mean one."""
    now = signals(100.0, uneven=uneven, arrivals=arrivals, waiting=40.0)
    assert isinstance(now.load, RequestLoad)
    assert isinstance(now.steps, StepWindow)
    return WorkloadEstimator().after(now.load, now.steps, at=now.at, seconds=15.0, cores=cores), now.load


def test_an_uneven_load_is_that_of_the_fullest_core() -> None:
    seen, load = seen_of(uneven=1.6, arrivals=12.0)
    asked = seen.workload(load, cores=4)
    assert asked is not None
    assert (asked.waiting, asked.arrivals) == pytest.approx((16.0, 1.6 * 12.0 / 4), rel=0.06), "but for chance"


def test_what_chance_makes_uneven_is_not_believed() -> None:
    assert seen_of(uneven=1.6, arrivals=0.1)[0].fullest == 1.0, "of three requests each by chance one core has five"
    assert seen_of(uneven=1.6, arrivals=12.0, cores=1)[0].fullest == 1.0


def test_decodes_without_a_step_say_nothing_of_the_workload() -> None:
    odd = window(15, replace(decodes(), steps=0.0), finished=40.0)
    assert isinstance(odd.load, RequestLoad)
    assert isinstance(odd.steps, StepWindow)
    seen = WorkloadEstimator().after(odd.load, odd.steps, at=odd.at, seconds=odd.window_seconds)
    assert seen.workload(odd.load, cores=1) is None
