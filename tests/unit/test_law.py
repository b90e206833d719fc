"""The law: which limits follow from a model, a demand and objectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_operator.governor.capacity import carried
from flyball_operator.governor.law import GAP_SHARE, calm_seqs, choose, point_at
from flyball_operator.governor.situation import Margins, Regime, Situation
from flyball_operator.governor.spec import Envelope, Objective, Span
from support.plant import A100, H100
from support.tuning import E2E, GAP, TPOT, TTFT, demand, situation


def test_a_gap_objective_bounds_the_step_that_a_long_prompt_may_take() -> None:
    here = situation(TTFT, GAP, ratio=20.0, uncached=1500.0, prompt=1500.0, arrivals=1.0, attention=700.0)
    choice = choose(here)
    full = here.step(here.decodes(choice.seqs), choice.tokens - here.decodes(choice.seqs))
    assert full <= GAP.seconds * here.margins.token * GAP_SHARE
    assert choice.tokens < 2048
    assert choice.predicted.gap == full


def test_a_token_objective_bounds_the_batch() -> None:
    here = situation(TPOT)
    seqs, binding = calm_seqs(here)
    budget = TPOT.seconds * here.margins.token
    assert here.balanced_step(seqs) <= budget < here.balanced_step(seqs + 1)
    assert binding == choose(here).binding == "tpot"


def test_the_batch_is_larger_where_full_steps_keep_the_token_objective_too() -> None:
    here = situation(TPOT, ratio=20.0)
    choice, budget = choose(here), TPOT.seconds * here.margins.token

    def full_step(seqs: int) -> float:
        return here.step(seqs, choice.tokens - seqs)

    assert choice.seqs > calm_seqs(here)[0]
    assert full_step(choice.seqs) <= budget
    assert full_step(choice.seqs + 1) > budget or choice.seqs == choice.tokens // 2, "prompts have the other half"


def test_with_speculation_a_step_makes_several_tokens_and_may_take_as_much_longer() -> None:
    plain, drafting = situation(TPOT), situation(TPOT, drafted=3.0, made=2.0)
    choice = choose(drafting)
    assert drafting.token_seconds(choice.seqs) <= TPOT.seconds * drafting.margins.token
    assert drafting.token_seconds(choice.seqs + 1) > TPOT.seconds * drafting.margins.token
    assert drafting.step(8, 0) > plain.step(8, 0), "drafts are computed"
    assert choose(situation(TPOT, drafted=3.0, made=3.0)).seqs > choose(plain).seqs, "all accepted"
    assert choose(situation(TPOT, drafted=3.0)).seqs < choose(plain).seqs, "none accepted"


def test_steps_have_room_for_the_drafts_of_all_that_decode() -> None:
    here = situation(TTFT, TPOT, drafted=5.0, made=2.0, decodes=60.0)
    assert choose(here).tokens >= 5.0 * here.decodes(128)


def test_a_tighter_objective_never_allows_more() -> None:
    sizes = [choose(situation(replace(TPOT, seconds=seconds))).seqs for seconds in (0.02, 0.04, 0.08, 0.16)]
    assert sizes == sorted(sizes)


def test_one_law_fits_devices_that_differ_tenfold() -> None:
    wide = Envelope(Span(4, 256), Span(256, 8192))
    tight = replace(GAP, seconds=0.05)
    chosen = [choose(situation(TTFT, tight, model=model, envelope=wide)) for model in (A100, H100)]
    assert chosen[0].predicted.gap <= 0.05
    assert chosen[1].predicted.gap <= 0.05
    assert chosen[1].predicted.capacity > 2 * chosen[0].predicted.capacity


def test_memory_caps_the_batch() -> None:
    roomy, short = (choose(situation(TTFT, kv_tokens=kv)).seqs for kv in (100_000.0, 4_000.0))
    assert roomy == 128
    assert short * 140 <= 0.92 * 4_000


def test_a_load_beyond_capacity_is_drained_not_protected() -> None:
    choice = choose(situation(TTFT, TPOT, arrivals=40.0, waiting=200.0, running=40.0))
    assert choice.regime is Regime.DRAINING
    assert choice.seqs == 128, "a batch held small would lose every first token"
    assert choice.binding == "ttft"


def test_what_keeps_tokens_and_is_nearly_as_fast_is_not_given_up_for_a_drain() -> None:
    wide = situation(replace(TTFT, seconds=4.0), TPOT, model=H100, envelope=Envelope(Span(4, 256), Span(128, 8192)))
    big = demand(kv_tokens=430_000.0)
    # Attention makes large steps of long prompts slow: the largest computes them little faster than a middle one.
    long = replace(big, prompt=24_000.0, uncached=24_000.0, output=30.0, ratio=800.0, attention=12_000.0, held=25_000.0)
    few = replace(long, waiting=6.0, running=3.0, decodes=1.5, arrivals=0.4)
    chosen = choose(replace(wide, demand=few))
    assert chosen.tokens < 2048
    assert chosen.predicted.tpot <= TPOT.seconds
    # Short prompts are computed much faster by large steps than beside a full batch in small ones.
    short = replace(big, prompt=1000.0, uncached=1000.0, ratio=25.0)
    many = replace(short, waiting=200.0, running=150.0, decodes=150.0, arrivals=30.0)
    assert choose(replace(wide, objectives=(TTFT, replace(TPOT, seconds=0.02)), demand=many)).tokens == 8192


def test_a_queue_that_is_only_foretold_is_not_drained() -> None:
    crowd = situation(TTFT, TPOT, arrivals=40.0, running=40.0)
    assert choose(crowd).regime is not Regime.DRAINING
    assert choose(crowd).predicted.tpot <= TPOT.seconds


@pytest.mark.parametrize("arrivals", [2.0, 6.0, 10.0])
@pytest.mark.parametrize("waiting", [0.0, 5.0])
def test_up_to_what_keeps_all_tokens_steps_are_the_prompts_alone(arrivals: float, waiting: float) -> None:
    first, token = replace(TTFT, seconds=0.5), replace(TPOT, seconds=0.03)
    wide = situation(first, token, model=H100, envelope=Envelope(Span(4, 256), Span(128, 8192)), tokens=8192)
    long = {"prompt": 1500.0, "uncached": 1500.0, "output": 20.0, "ratio": 75.0, "attention": 900.0, "decodes": 2.0}
    here = replace(wide, demand=demand(arrivals=arrivals, waiting=waiting, **long))
    choice = choose(here)
    assert here.step(here.decodes(choice.seqs), choice.tokens - here.decodes(choice.seqs)) <= token.seconds
    smaller = [point_at(here, choice.seqs, tokens) for tokens in (128, 256, 512)]
    assert choice.predicted.ttft < min(point.predicted.ttft for point in smaller)


@pytest.mark.parametrize(("ttft", "tpot"), [(0.1, 0.2), (0.08, 0.1)])
@pytest.mark.parametrize("waiting", [0.0, 2.0])
def test_no_step_is_longer_than_what_waits_for_it_may_wait(ttft: float, tpot: float, waiting: float) -> None:
    first, token = replace(TTFT, seconds=ttft), replace(TPOT, seconds=tpot)
    wide = situation(first, token, model=H100, envelope=Envelope(Span(4, 256), Span(128, 8192)), tokens=8192)
    mix = {"prompt": 500.0, "uncached": 500.0, "output": 200.0, "ratio": 2.5, "attention": 250.0, "decodes": 8.0}
    here = replace(wide, demand=demand(arrivals=4.0, waiting=waiting, **mix))
    choice = choose(here)
    assert choice.regime is Regime.BALANCED
    assert choice.predicted.ttft <= ttft
    assert carried(here, gated=False).rate > 4.0


def test_a_drain_ends_with_room_not_at_the_edge() -> None:
    edge = situation(TTFT, TPOT, waiting=45.0)
    assert choose(edge).regime is Regime.BALANCED
    assert choose(replace(edge, draining=True)).regime is Regime.DRAINING
    assert choose(situation(TTFT, TPOT, waiting=0.0, draining=True)).regime is Regime.BALANCED


def long_prompts(*objectives: Objective, waiting: float = 0.0, draining: bool = False) -> Situation:
    """Prompts of 2000 tokens, with short answers, now and then."""
    long = {"prompt": 2000.0, "uncached": 2000.0, "output": 10.0, "ratio": 200.0, "attention": 1000.0, "decodes": 0.5}
    calm = situation(*objectives, draining=draining)
    return replace(calm, demand=demand(arrivals=0.3, waiting=waiting, **long))


def test_a_drain_of_long_prompts_ends_with_the_queue() -> None:
    idle = choose(long_prompts(TTFT)).predicted.ttft
    assert idle > 0.5 * TTFT.seconds * Margins().first_token, "on an idle engine they use more than half of the margin"
    assert choose(long_prompts(TTFT, draining=True)).regime is not Regime.DRAINING
    assert choose(long_prompts(TTFT, draining=True, waiting=2.0)).regime is Regime.DRAINING


def test_a_few_decodes_more_do_not_enlarge_the_steps_of_long_prompts() -> None:
    gap = replace(GAP, seconds=0.2)
    assert choose(long_prompts(TTFT, gap)).predicted.gap <= gap.seconds


def test_a_batch_is_enlarged_only_as_far_as_its_queue_needs() -> None:
    calm = choose(situation(TTFT, TPOT, arrivals=4.0)).seqs
    busy = choose(situation(TTFT, TPOT, arrivals=14.0, running=30.0, decodes=25.0)).seqs
    assert calm <= busy < 128


def test_without_a_first_token_objective_a_queue_is_no_reason_to_slow_tokens() -> None:
    assert choose(situation(TPOT, arrivals=40.0, waiting=500.0)).seqs == choose(situation(TPOT)).seqs


def test_end_to_end_latency_bounds_the_batch_by_the_whole_answer() -> None:
    here = situation(E2E, output=200.0, ratio=0.6, arrivals=1.0)
    choice = choose(here)
    assert choice.predicted.ttft + 200 * here.balanced_step(choice.seqs) <= E2E.seconds


def test_without_objectives_nothing_is_held_back() -> None:
    choice = choose(situation())
    assert (choice.seqs, choice.tokens, choice.regime) == (128, 2048, Regime.THROUGHPUT)


def test_prefill_is_never_starved() -> None:
    here = situation(replace(GAP, seconds=0.02), decodes=60.0, ratio=4.0)
    choice = choose(here)
    assert choice.tokens >= min(2048, here.demand.decodes * (1 + here.demand.ratio))


def test_equal_bounds_pin_a_limit() -> None:
    pinned = Envelope(Span(32, 32), Span(512, 512))
    choice = choose(situation(TTFT, TPOT, GAP, envelope=pinned))
    assert (choice.seqs, choice.tokens) == (32, 512)


def test_the_present_limit_is_kept_unless_another_is_clearly_better() -> None:
    chosen = choose(situation(TTFT, GAP, arrivals=1.0)).tokens
    nearby = int(chosen * 1.15)
    assert choose(situation(TTFT, GAP, arrivals=1.0, tokens=nearby)).tokens == nearby
    assert choose(situation(TTFT, GAP, arrivals=1.0, tokens=2048)).tokens < 2048
