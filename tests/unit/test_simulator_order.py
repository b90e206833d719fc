"""The simulated engine serves prompts in the on-time order: `batching.on_time`, carried out step by step."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from flyball_engine.batching.gate import PROBE_SECONDS
from flyball_engine.batching.step_token_budgeter import prefill_rate
from flyball_engine.contract import ModelSpec, OnTime, SchedulingPolicy, Setpoint, Shed, StepBudget
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.plant import StepTimes
from flyball_lab.simulator.requests import Fate, Request
from support.simulated import STEP_TIMES, a_budget, a_core, a_request, a_setpoint, submitted

LATER = 1e6
#: A step of 30 ms has room for some 80 prompt tokens: 10 + 4 ms, and 1 ms for each token beyond 64.
BUDGET = 0.030
DEADLINE = 0.5


def the_order(
    number: int = 1, *, shed: bool = False, late_share: float = 0.0, active: int | None = None, expires: float = 3600.0
) -> Setpoint:
    """Prompts in the on-time order; who cannot be in time waits behind, or is refused where the service sheds."""
    return a_setpoint(
        number,
        active=active,
        step=a_budget(BUDGET),
        shed=Shed(ttft_deadline_seconds=DEADLINE) if shed else None,
        on_time=OnTime(first_token_deadline_seconds=DEADLINE, late_share=late_share),
        expires=expires,
    )


def told(core: Core, setpoint: Setpoint) -> Core:
    core.follow(setpoint)
    core.apply(setpoint)
    return core


def ordered(*, shed: bool = False, late_share: float = 0.0, seqs: int = 32, **more: object) -> Core:
    core = a_core(seqs=seqs, tokens=256, **more)  # type: ignore[arg-type]  # passed on as they are
    return told(core, the_order(shed=shed, late_share=late_share))


def in_time(requests: list[Request]) -> list[bool]:
    return [one.first_token is not None and one.first_token - one.arrival <= DEADLINE for one in requests]


def a_crowd(*, at: float = 0.0) -> list[Request]:
    """A prompt of a second, and eight short ones: all of them come at once."""
    return [a_request(2400, 2, at=at), *(a_request(100, 2, at=at) for _ in range(8))]


def test_a_long_prompt_that_cannot_be_in_time_is_served_behind_those_that_can() -> None:
    core = ordered()
    served = submitted(core, *a_crowd())
    core.run(LATER)
    assert in_time(served) == [False, *(8 * [True])]
    assert all(one.fate is Fate.FINISHED for one in served)
    assert (core.prompts.moved_behind, core.prompts.in_time_after_all) == (1, 0)


def test_first_come_first_served_keeps_none_of_them() -> None:
    core = a_core(seqs=32, tokens=256)
    core.apply(a_setpoint(step=a_budget(BUDGET)))
    served = submitted(core, *a_crowd())
    core.run(LATER)
    assert in_time(served) == 9 * [False]


def test_a_prompt_that_has_begun_waits_for_those_before_it_and_keeps_its_blocks() -> None:
    core = ordered()
    (long,) = submitted(core, a_request(1500, 2))
    core.run(0.1)
    done = long.computed
    assert done > 0
    short = submitted(core, *(a_request(100, 2, at=0.1) for _ in range(8)))
    core.run(0.3)
    assert long.running
    assert long.computed < done + 200
    core.run(LATER)
    assert in_time(short) == 8 * [True]
    assert core.scheduler.preemptions == 0


def test_decodes_make_a_token_in_every_step_whatever_the_order_of_prompts() -> None:
    core = ordered()
    (first,) = submitted(core, a_request(64, 400))
    core.run(0.2)
    assert first.first_token is not None
    steps, made = core.scheduler.steps, first.made_at(core.scheduler.steps)
    submitted(core, *a_crowd(at=0.2))
    core.run(1.0)
    assert core.scheduler.steps > steps + 10
    assert first.made_at(core.scheduler.steps) - made == core.scheduler.steps - steps


def test_one_that_was_preempted_after_its_first_token_comes_back_before_all_prompts() -> None:
    patient = OnTime(first_token_deadline_seconds=600.0)
    core = told(a_core(seqs=32, tokens=256, kv_tokens=4096), a_setpoint(step=a_budget(BUDGET), on_time=patient))
    old, young = submitted(core, a_request(1200, 900), a_request(1200, 900))
    core.run(2.0)
    assert None not in (old.first_token, young.first_token)
    waiting = submitted(core, *(a_request(1900, 2, at=2.0) for _ in range(3)))
    core.run(LATER)
    assert all(one.fate is Fate.FINISHED for one in (old, young, *waiting))
    assert young.preemptions == 1
    assert young.joined < min(one.joined for one in waiting)


def test_a_cached_prefix_is_no_work() -> None:
    core = ordered()
    submitted(core, a_request(3000, 2, shared=2976))
    core.run(10.0)
    known, unknown = submitted(core, a_request(3000, 2, at=10.0, shared=2976), a_request(3000, 2, at=10.0))
    core.run(LATER)
    assert in_time([known, unknown]) == [True, False]


def test_work_that_others_cached_meanwhile_counts_no_more() -> None:
    core = ordered(seqs=1)
    first, *others = submitted(core, *(a_request(1000, 2, shared=992) for _ in range(4)))
    core.run(LATER)
    assert in_time([first, *others]) == 4 * [True]


@pytest.mark.parametrize(("late_share", "waits"), [(0.0, True), (0.1, False)])
def test_a_share_of_the_prefill_keeps_the_oldest_late_one_from_starving(late_share: float, waits: bool) -> None:
    core = ordered(late_share=late_share)
    (long,) = submitted(core, a_request(2400, 2))
    # Short prompts come without end, as many as are carried.
    submitted(core, *(a_request(150, 1, at=number * 0.05) for number in range(1, 2000)))
    core.run(95.0)
    assert (long.first_token is None) is waits


def test_late_ones_do_not_fill_the_batch_that_a_burst_will_find() -> None:
    core = ordered()
    late = submitted(core, *(a_request(100, 300) for _ in range(40)))
    core.run(6.0)
    running = len(core.scheduler.running)
    assert 8 < running < 32, "slots are left, and would slow down whoever comes"
    core.run(LATER)
    assert all(one.fate is Fate.FINISHED for one in late)


def test_where_load_is_shed_one_is_refused_as_soon_as_it_cannot_be_in_time_and_nothing_was_sent() -> None:
    core = ordered(shed=True)
    crowd = submitted(core, *(a_request(800, 2) for _ in range(4)))
    core.run(LATER)
    fates = [one.fate for one in crowd]
    assert fates.count(Fate.SHED) > 0
    assert fates.count(Fate.FINISHED) > 0
    shed = [one for one in crowd if one.fate is Fate.SHED]
    assert all(0 < one.ended <= DEADLINE and one.first_token is None for one in shed)
    assert in_time([one for one in crowd if one.fate is Fate.FINISHED]) == fates.count(Fate.FINISHED) * [True]
    assert core.ledger.collect().requests["refused"] == len(shed)
    assert not core.scheduler.running
    assert core.scheduler.used_blocks() == 0


def test_what_is_hopeless_is_refused_when_it_comes() -> None:
    core = ordered(shed=True)
    submitted(core, a_request(64, 300))
    (hopeless,) = submitted(core, a_request(3000, 2, at=0.1))
    assert (hopeless.fate, hopeless.ended) == (Fate.SHED, 0.1)


def test_the_queue_is_no_reason_to_refuse_one_that_comes() -> None:
    core = ordered(shed=True)
    crowd = submitted(core, *(a_request(100, 2) for _ in range(30)))
    assert all(one.fate is Fate.OPEN for one in crowd)


def test_an_idle_engine_serves_what_is_hopeless() -> None:
    core = ordered(shed=True)
    (alone,) = submitted(core, a_request(3000, 2))
    core.run(LATER)
    assert alone.fate is Fate.FINISHED


def test_an_engine_that_only_decodes_is_let_a_hopeless_one_now_and_then() -> None:
    core = ordered(shed=True)
    submitted(core, a_request(64, 4000))
    at = PROBE_SECONDS + 1.0
    first, second = submitted(core, a_request(3000, 2, at=at), a_request(3000, 2, at=at))
    core.run(at + 20.0)
    assert (first.fate, second.fate) == (Fate.FINISHED, Fate.SHED)


def test_what_is_served_in_any_case_has_its_share_and_the_others_get_all_else() -> None:
    core = ordered(shed=True, late_share=0.1)
    submitted(core, a_request(64, 4000))
    at = PROBE_SECONDS + 1.0
    (probe,) = submitted(core, a_request(3000, 2, at=at))
    crowd = submitted(core, *(a_request(400, 2, at=at + number * 0.05) for number in range(400)))
    core.run(at + 20.0)
    assert probe.first_token is not None, "it is not kept waiting for the crowd to end"
    assert any(one.fate is Fate.SHED for one in crowd)


def test_sequences_of_a_request_are_refused_together_and_not_once_one_has_a_token() -> None:
    core = ordered(shed=True, seqs=2)
    submitted(core, a_request(64, 100))
    together = [a_request(200, 2, at=0.02), a_request(200, 2, at=0.02)]
    core.run(0.02)
    core.submit(together)
    core.run(20.0)
    assert [one.fate for one in together] == 2 * [Fate.FINISHED], "the second waits for the slot of the first"
    late = [a_request(700, 2, at=core.now) for _ in range(2)]
    submitted(core, a_request(64, 400, at=core.now), a_request(64, 400, at=core.now))
    core.submit(late)
    core.run(40.0)
    assert [one.fate for one in late] == 2 * [Fate.SHED]
    assert core.ledger.collect().requests["refused"] == 1


def untrusted(setpoint: Setpoint) -> Setpoint:
    assert setpoint.step is not None
    model = setpoint.step.model.model_copy(update={"trusted": False})
    return setpoint.model_copy(update={"step": setpoint.step.model_copy(update={"model": model})})


@pytest.mark.parametrize(
    "setpoint",
    [untrusted(the_order()), the_order().model_copy(update={"step": None})],
    ids=["untrusted model", "no model"],
)
def test_without_a_model_that_is_trusted_prompts_are_served_as_they_come(setpoint: Setpoint) -> None:
    core = told(a_core(seqs=32, tokens=256), setpoint)
    assert not core.prompts.holds


def test_when_the_setpoint_expires_prompts_are_served_as_they_come() -> None:
    core = told(a_core(seqs=1, tokens=256), the_order(expires=60.0))
    core.run(59.0)
    assert core.prompts.holds
    core.run(61.0)
    assert not core.prompts.holds


def test_an_order_that_is_changed_knows_who_waits_already() -> None:
    core = told(a_core(seqs=32, tokens=256), a_setpoint(1, step=a_budget(BUDGET)))
    crowd = submitted(core, *a_crowd())
    core.run(0.02)
    told(core, the_order(2))
    core.run(LATER)
    assert in_time(crowd) == [False, *(8 * [True])]


def test_the_priority_policy_is_an_order_of_its_own() -> None:
    core = told(a_core(policy=SchedulingPolicy.PRIORITY), the_order())
    core.run(1.0)
    assert not core.prompts.holds


def test_a_crash_leaves_nobody_in_the_order() -> None:
    core = ordered()
    crowd = submitted(core, *a_crowd())
    core.crash(0.05, start_seconds=1.0)
    assert all(one.fate is Fate.FAILED for one in crowd)
    served = submitted(told(core, the_order(2)), *a_crowd(at=2.0))
    core.run(LATER)
    assert in_time(served) == [False, *(8 * [True])]


def test_a_cache_full_of_prompts_that_have_begun_is_no_standstill() -> None:
    core = ordered(kv_tokens=4096, seqs=8)
    began = submitted(core, a_request(3900, 2))
    core.run(1.2)
    short = submitted(core, *(a_request(900, 2, at=1.2) for _ in range(3)))
    core.run(20.0)
    assert all(one.fate is Fate.FINISHED for one in (*began, *short))
    assert core.governed.trips == 0


MODEL = STEP_TIMES.model


@pytest.mark.parametrize("decodes", [0, 16])
@pytest.mark.parametrize(
    ("seconds", "tokens"), [(BUDGET, 4096), (1.0, 256)], ids=["steps bounded by time", "by tokens"]
)
@pytest.mark.parametrize("attention", [0.0, 2e-8])
def test_the_rate_says_how_long_a_prompt_takes(decodes: int, seconds: float, tokens: int, attention: float) -> None:
    step_times = StepTimes(model=replace(MODEL, g=attention))
    core = a_core(seqs=32, tokens=tokens, step_times=step_times)
    budget = StepBudget(seconds=seconds, model=ModelSpec(id="true", trusted=True, **asdict(step_times.model)))
    told(core, a_setpoint(step=budget, on_time=OnTime(first_token_deadline_seconds=600.0)))
    submitted(core, *(a_request(16, 3000) for _ in range(decodes)))
    core.run(2.0)
    (prompt,) = submitted(core, a_request(4000, 2, at=2.0))
    core.run(LATER)
    rate = prefill_rate(
        step_times.model,
        budget=seconds,
        bias=1.0,
        decodes=decodes,
        decode_tokens=decodes,
        tokens=tokens,
        least_chunk=16,
    )
    assert prompt.first_token is not None
    assert rate.seconds(4000, 4000**2 / 2) == pytest.approx(prompt.first_token - 2.0, rel=0.05)
