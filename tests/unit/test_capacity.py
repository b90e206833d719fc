"""What engines carry at the objectives, and how many of them a load needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_engine.contract import Classes, RequestClass
from flyball_engine.model import StepModel
from flyball_lab.benches.law.ablation import in_force
from flyball_lab.harness.plant import A100, H100
from flyball_lab.harness.tuning import E2E, GAP, TPOT, TTFT, inputs, signals, tuning, workload
from flyball_operator.api.v1alpha1 import ConditionType, Overload
from flyball_operator.tuning.capacity import Balance, Carried, carried, draining, idle, replicas_for, weighed
from flyball_operator.tuning.control_input import ControlInput
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.observe.signals import Missing, Unobserved
from flyball_operator.tuning.reasons import ConditionState, Reason
from flyball_operator.tuning.replicas import Bounds
from flyball_operator.tuning.report import conditions
from flyball_operator.tuning.report.transitions import event_of
from flyball_operator.tuning.spec import LatencyObjective, TuningSpec
from flyball_operator.tuning.state import TuningState, start
from flyball_operator.tuning.tunables import TUNABLES

SPEC = tuning(TTFT, TPOT)
LONG = {"prompt": 1000.0, "uncached": 1000.0, "ratio": 25.0, "attention": 500.0}
SCRAPED = ConditionState("True", Reason.SCRAPED, "")


def mixed(*objectives: LatencyObjective, **lengths: float) -> ControlInput:
    """Calm inputs with other lengths."""
    calm = inputs(*objectives)
    return replace(calm, workload=workload(**lengths))


# What one core carries.


def test_looser_objectives_let_more_be_carried() -> None:
    rates = [carried(inputs(TTFT, replace(TPOT, seconds=seconds))).rate for seconds in (0.04, 0.06, 0.12)]
    assert 0 < rates[0] < rates[1] < rates[2]


def test_longer_prompts_and_slower_devices_let_less_be_carried() -> None:
    short, long = (carried(mixed(TTFT, TPOT, **lengths)).rate for lengths in ({}, LONG))
    assert long < short / 2
    slow, fast = (carried(inputs(TTFT, TPOT, model=model)).rate for model in (A100, H100))
    assert slow < fast


def test_the_load_of_now_does_not_change_what_is_carried() -> None:
    calm = carried(inputs(TTFT, TPOT)).rate
    crowded = inputs(TTFT, TPOT, arrivals=60.0, waiting=400.0, decodes=90.0)
    assert carried(crowded).rate == pytest.approx(calm, rel=0.01)


def test_memory_bounds_what_is_carried() -> None:
    roomy, short = (carried(inputs(TTFT, kv_tokens=kv)).rate for kv in (100_000.0, 1_000.0))
    assert short < roomy


def test_memory_holds_as_many_requests_as_were_seen_to_fit_and_long_answers_run_for_longer() -> None:
    """Of answers of 10 and of 190 tokens, half each, nearly all that run at some time are of the long ones."""
    mean = workload(prompt=100.0, output=100.0, kv_tokens=15_000.0)
    assert mean.fits == 100.0, "while nothing was seen"
    assert replace(mean, context=100.0 + (10**2 + 190**2) / (2 * 200)).fits == pytest.approx(78.7, abs=0.1)


def test_what_is_cached_of_a_prompt_is_no_wait_for_others() -> None:
    """Turns of 100 tokens behind 1,900 that are in the prefix cache: a token's mean position is 1,950."""
    turns = workload(prompt=2000.0, uncached=100.0, attention=1950.0, ratio=2.5)
    assert turns.weighted_prompt == pytest.approx(100.0)
    alone = replace(turns, prompt=100.0, attention=50.0)
    rates = [carried(replace(inputs(TTFT, TPOT, model=H100), workload=found)).rate for found in (turns, alone)]
    assert rates[1] / 2 < rates[0] < rates[1], "attention over what is cached costs something"


def test_a_token_objective_alone_is_carried_as_far_as_the_batch_that_keeps_it() -> None:
    here = inputs(TPOT)
    found = carried(here)
    assert found.binding == "tpot"
    batch = found.rate * here.workload.output * TPOT.seconds
    assert here.balanced_step(0.7 * batch) < TPOT.seconds * here.margins.token


def test_an_objective_that_an_idle_engine_cannot_keep_is_named_with_what_it_can() -> None:
    tight = replace(TTFT, seconds=0.01)
    found = carried(inputs(tight, TPOT))
    assert found.rate == 0
    ((name, seconds),) = found.reachable
    assert name == "ttft"
    assert carried(inputs(replace(tight, seconds=1.01 * seconds), TPOT)).rate > 0
    assert carried(inputs(replace(tight, seconds=0.9 * seconds), TPOT)).rate == 0


def test_of_two_objectives_that_exclude_each_other_the_nearest_that_go_together_are_named() -> None:
    first, gap = replace(TTFT, seconds=0.3), replace(GAP, seconds=0.03)
    found = carried(mixed(first, gap, **LONG))
    reachable = dict(found.reachable)
    assert reachable
    together = [replace(o, seconds=1.01 * reachable.get(o.name, o.seconds)) for o in (first, gap)]
    assert not carried(mixed(*together, **LONG)).reachable


def test_the_nearest_threshold_is_named_though_the_loosest_would_make_first_tokens_late() -> None:
    # On a slow processor a token that may take for ever lets steps grow until no first token comes in 5 s.
    slow = StepModel(t0=0.0258, h=0.005, c1=4.06e-4, c2=4.06e-4, beta=2.03e-4, g=1.2e-7, kappa=1)
    here = replace(
        inputs(replace(TTFT, seconds=5.0), replace(TPOT, seconds=0.01), model=slow),
        workload=workload(prompt=1250.0, uncached=1250.0, ratio=150.0, attention=625.0),
    )
    ((name, seconds),) = carried(here).reachable
    assert name == "tpot"
    assert 0.01 < seconds < 0.1
    assert carried(replace(here, objectives=(here.objectives[0], replace(TPOT, seconds=1.01 * seconds)))).rate > 0


@settings(max_examples=60, deadline=None)
@given(
    ttft=st.floats(0.2, 10.0),
    tpot=st.floats(0.01, 0.5),
    looser=st.floats(1.1, 4.0),
    prompt=st.floats(10.0, 3000.0),
    output=st.floats(2.0, 500.0),
)
def test_a_looser_objective_never_lets_less_be_carried(
    ttft: float, tpot: float, looser: float, prompt: float, output: float
) -> None:
    """But for longer steps of long prompts: they end where first tokens have time, and what they buy goes with them."""
    lengths = {"prompt": prompt, "uncached": prompt, "attention": prompt / 2, "output": output}
    first, token = replace(TTFT, seconds=ttft), replace(TPOT, seconds=tpot)
    with in_force(("long_step", 1.0)):
        tight, loose = (
            carried(mixed(one, token, ratio=prompt / output, **lengths)).rate
            for one in (first, replace(first, seconds=looser * ttft))
        )
    assert loose >= tight * 0.99 - 1e-6


# The load against it.


def balance(*loads: float, rate: float = 5.0, pods: int = 2, seconds: float = TUNABLES.window_seconds) -> Balance:
    """What is known after so many windows of arrivals."""
    found, now = None, 1000.0
    for arrivals in loads:
        found = then(found, arrivals, now=now, rate=rate, pods=pods)
        now += seconds
    assert found is not None
    return found


def then(
    before: Balance | None,
    arrivals: float,
    *,
    now: float | None = None,
    rate: float = 5.0,
    pods: int = 2,
    waiting: float = 0.0,
    unseen: int = 0,
    spec: TuningSpec = SPEC,
) -> Balance:
    """One window later."""
    found = Carried(rate=rate, binding="tpot") if rate else Carried(rate=0.0, reachable=(("ttft", 0.3214),))
    at = now if now is not None else (before.at if before is not None else 0.0) + TUNABLES.window_seconds
    more = {"cores": pods, "pods": pods, "waiting": waiting, "unseen": unseen}
    return weighed(before, found, arrivals=arrivals, spec=spec, now=at, **more)  # type: ignore[arg-type]


def windows(before: Balance, count: float, arrivals: float, *, rate: float = 5.0, pods: int = 2) -> Balance:
    for _ in range(int(count)):
        before = then(before, arrivals, rate=rate, pods=pods)
    return before


def verdict(found: Balance | None, **changed: object) -> ConditionState:
    asked = {"objectives": SPEC.objectives, "metrics": SCRAPED, "known": None, "lengths": True} | changed
    return conditions.capacity_verdict(found, **asked)  # type: ignore[arg-type]


def test_a_pod_of_several_cores_carries_what_they_do() -> None:
    one = weighed(None, Carried(rate=5.0), arrivals=12.0, cores=4, pods=2, spec=SPEC, now=0.0)
    assert (one.rate, one.capacity, one.advised) == (10.0, 20.0, 2)


def test_a_mean_that_decays_is_told_as_no_arrivals_in_the_end() -> None:
    assert verdict(windows(balance(4.0), 120, 0.0)).message == "carries 10 requests/s at the objectives, 0 arrive"


def test_an_overload_asks_for_more_at_once_and_says_what_binds() -> None:
    over = windows(balance(*[4.0] * 10), 12, 14.0)
    assert over.overloaded
    assert over.advised == 3
    said = verdict(over)
    assert (said.status, said.reason) == ("False", Reason.OVERLOADED)
    assert said.message == "13 requests/s arrive, 2 pods carry 10 at the objectives: tpot binds; 3 pods would do"


def test_a_burst_is_no_overload() -> None:
    assert not windows(balance(*[6.0] * 10), 1, 20.0).overloaded


def test_an_overload_does_not_end_at_its_edge() -> None:
    over = windows(balance(*[6.0] * 10), 20, 11.0)
    assert windows(over, 20, 9.6).overloaded
    assert not windows(over, 20, 8.0).overloaded


def test_fewer_are_advised_only_after_minutes_with_room() -> None:
    calm = balance(*[4.0] * 5, pods=3)
    assert calm.advised == 3
    assert windows(calm, TUNABLES.fewer_seconds / TUNABLES.window_seconds - 6, 4.0, pods=3).advised == 3
    assert windows(calm, TUNABLES.fewer_seconds / TUNABLES.window_seconds + 1, 4.0, pods=3).advised == 1
    tight = windows(balance(*[9.5] * 5, pods=3), 100, 9.5, pods=3)
    assert tight.advised == 3, "two would carry it, but with too little to spare"


def test_where_the_operator_scales_a_pod_is_due_before_the_last_is_full() -> None:
    scaled = replace(SPEC, scaling=Bounds(most=8))
    assert [replicas_for(arrivals, 5.0, SPEC) for arrivals in (9.5, 10.0)] == pytest.approx([1.9, 2.0])
    assert replicas_for(9.5, 5.0, scaled) > 2.0, "it takes a minute or more to start one"


def test_bursts_add_pods_and_room_beyond_them_is_for_the_mean() -> None:
    """Three carry what comes even in bursts. There are some always."""
    scaled, found = replace(SPEC, scaling=Bounds(most=8)), balance(*[11.0] * 5, pods=5)
    for number in range(60):
        found = then(found, 13.0 if number % 2 else 9.0, pods=5, spec=scaled)
    assert found.advised == 3
    assert then(found, 14.0, pods=3, spec=scaled).advised == 4


def test_where_the_operator_scales_a_queue_is_served_by_pods_besides_those_that_the_arrivals_need() -> None:
    scaled, enough = replace(SPEC, scaling=Bounds(most=8)), balance(*[8.0] * 5, pods=2)
    assert then(enough, 8.0, spec=scaled).advised == 2
    queue = 5.0 * TUNABLES.drain_seconds
    assert then(enough, 8.0, waiting=queue, spec=scaled).advised == 3
    assert then(enough, 8.0, waiting=queue).advised == 2, "what is advised is for the arrivals"
    patient = tuning(replace(TTFT, seconds=5 * TUNABLES.drain_seconds))
    assert draining(queue, patient) == 1.0, "a queue that is in time may last"


def test_it_is_known_for_a_minute_that_a_queue_decided_the_pods() -> None:
    scaled, enough = replace(SPEC, scaling=Bounds(most=8)), balance(*[8.0] * 5, pods=2)
    queue = 5.0 * TUNABLES.drain_seconds
    assert not then(enough, 8.0, spec=scaled).queue_asks
    found = then(enough, 8.0, waiting=queue, spec=scaled)
    assert found.queue_asks
    minute = int(TUNABLES.memory_seconds / TUNABLES.window_seconds)
    for _ in range(minute - 1):
        found = then(found, 8.0, pods=3, spec=scaled)
    assert found.queue_asks
    found = then(found, 8.0, pods=3, spec=scaled)
    assert (found.advised, found.queue_asks) == (3, False), "the pods stay for the down window"
    assert not then(enough, 8.0, waiting=queue).queue_asks, "what is advised is for the arrivals"
    roomy = then(then(enough, 26.0, spec=scaled), 8.0, waiting=queue, spec=scaled)
    assert (roomy.advised, roomy.queue_asks) == (6, False), "there are more for the arrivals"


def test_requests_without_a_deadline_wait_by_design_and_add_no_pod() -> None:
    batch = Classes(header="x-class", classes=(RequestClass(name="batch", value="batch"),))
    assert draining(600.0, replace(SPEC, classes=batch)) == 0.0
    due = replace(SPEC, classes=batch, objectives=(*SPEC.objectives, replace(TTFT, of_class="batch")))
    assert draining(600.0, due) == 600.0 / TUNABLES.drain_seconds
    assert draining(600.0, tuning(TPOT)) == 0.0


def test_the_advice_does_not_flap_with_a_load_at_the_edge() -> None:
    found, advised = balance(10.1, pods=3), set()
    for number in range(400):
        found = then(found, 10.1 if number % 8 < 4 else 9.5, pods=3)
        advised.add(found.advised)
    assert advised == {3}


def test_what_the_busiest_of_those_minutes_needed_is_still_advised() -> None:
    found = balance(*[2.0] * 3, pods=6)
    for number in range(60):
        found = then(found, 20.0 if number % 10 == 5 else 2.0, pods=6)
    assert 1 < found.advised < 6


def test_a_window_of_long_prompts_is_no_verdict_on_the_objectives() -> None:
    calm = balance(*[4.0] * 10)
    minute = TUNABLES.memory_seconds / TUNABLES.window_seconds
    chance = windows(calm, minute, 4.0, rate=0.0)
    assert verdict(chance).reason == Reason.SUFFICIENT
    lasting = windows(calm, minute + 1, 4.0, rate=0.0)
    said = verdict(lasting)
    assert (said.status, said.reason) == ("False", Reason.INFEASIBLE)
    assert said.message == (
        "even an idle engine cannot keep ttft within 2s, the least that it can keep is 330ms. "
        "Raise the threshold, or use a faster accelerator or a smaller model"
    )
    assert lasting.advised == calm.advised, "no number of pods would do"
    assert verdict(windows(lasting, 1, 4.0)).reason == Reason.SUFFICIENT


def test_while_some_pods_are_not_scraped_no_fewer_are_advised_and_that_is_said() -> None:
    whole = windows(balance(*[18.0] * 10, pods=4), 12, 18.0, pods=4)
    assert whole.advised == 4
    half, minutes = whole, int(2 * TUNABLES.fewer_seconds / TUNABLES.window_seconds)
    for _ in range(minutes):
        half = then(half, 9.0, pods=2, unseen=2)
    assert half.advised == 4
    assert verdict(half).message.endswith("; 2 of 4 Ready pods are scraped: until all are no fewer are advised")
    for _ in range(12):
        half = then(half, 30.0, pods=2, unseen=2)
    assert half.advised == 6, "what is seen may need more"
    again = windows(half, 2 * minutes, 9.0, pods=4)
    assert again.advised == 3
    assert "scraped" not in verdict(again).message


def test_hardly_any_capacity_asks_for_no_thousand_pods_and_says_so() -> None:
    over = windows(balance(*[4.0] * 10, rate=0.01), 12, 4.0, rate=0.01)
    assert over.advised == 2 * TUNABLES.most_growth
    assert verdict(over).message.endswith("8 pods would not do, more than 4 times what runs is not advised")
    scaled = windows(over, 12, 4.0, rate=5.0, pods=8)
    assert verdict(scaled).status == "True"


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(most=4), "maxReplicas allows no more"),
        (Bounds(up_seconds=600.0), "more are asked for once the need has lasted"),
    ],
)
def test_where_the_user_keeps_more_pods_away_that_is_told_as_the_cause(bounds: Bounds, why: str) -> None:
    found = None
    for _ in range(12):
        found = then(found, 27.0, pods=4, spec=replace(SPEC, scaling=bounds))
    assert found is not None
    assert verdict(found).message.endswith(f"tpot binds; 4 pods would not do, {why}")


def test_noise_changes_no_word() -> None:
    said = {verdict(windows(balance(*[7.0] * 6), number, 7.0 + 0.2 * (number % 3))).message for number in range(20)}
    assert said == {"carries 10 requests/s at the objectives, 7 arrive"}


def test_what_cannot_be_known_is_said() -> None:
    away = ConditionState("False", Missing.UNREACHABLE.value, "away")
    idle = ConditionState("Unknown", Reason.NO_READY_PODS, "no pod is Ready")
    found = balance(*[4.0] * 10)
    assert verdict(found, objectives=()).reason == Reason.NO_OBJECTIVES
    assert verdict(found, metrics=away).reason == Reason.NOT_OBSERVED
    assert verdict(found, metrics=idle).reason == Reason.NO_READY_PODS
    assert verdict(balance(4.0)).reason == Reason.LEARNING
    assert verdict(None, lengths=False).reason == Reason.NO_REQUESTS
    known = ConditionState("False", Reason.OVERLOADED, "as an earlier leader saw it")
    assert verdict(balance(4.0), known=known) == known


@pytest.mark.parametrize(
    ("before", "now", "event"),
    [
        (None, ("True", Reason.SUFFICIENT), None),
        (("Unknown", Reason.LEARNING), ("True", Reason.SUFFICIENT), None),
        (("True", Reason.SUFFICIENT), ("False", Reason.OVERLOADED), ("Warning", "CapacityOverloaded")),
        (("False", Reason.OVERLOADED), ("False", Reason.OVERLOADED), None),
        (("False", Reason.OVERLOADED), ("False", Reason.INFEASIBLE), ("Warning", "CapacityInfeasible")),
        (("False", Reason.OVERLOADED), ("True", Reason.SUFFICIENT), ("Normal", "CapacitySufficient")),
        (("False", Reason.OVERLOADED), ("Unknown", Reason.NOT_OBSERVED), None),
    ],
)
def test_events_tell_of_turns(
    before: tuple[str, str] | None, now: tuple[str, str], event: tuple[str, str] | None
) -> None:
    assert event_of(ConditionType.CAPACITY_SUFFICIENT, before, ConditionState(*now, "")) == event


# In a tick.


def ticks(
    state: TuningState, count: int, spec: TuningSpec = SPEC, *, begin: float = 100.0, refused: float = 0.0
) -> TuningState:
    for number in range(count):
        now = begin + 5.0 * number
        state, _ = decide(state, signals(now, refused=refused), spec, now)
    return state


def test_what_is_refused_counts_as_load() -> None:
    shed = replace(SPEC, overload=Overload.SHED)
    calm, refusing = (ticks(start(shed), 20, shed, refused=refused).balance for refused in (0.0, 100.0))
    assert calm is not None
    assert refusing is not None
    assert not calm.overloaded
    assert refusing.overloaded
    assert refusing.carried.rate == pytest.approx(calm.carried.rate, rel=0.01)


def test_nobody_asked_for_objectives_so_nothing_is_carried_at_them() -> None:
    nothing = tuning()
    assert ticks(start(nothing), 20, nothing).balance is None


def test_an_edit_of_the_objectives_starts_anew_and_keeps_the_advice() -> None:
    before = ticks(start(SPEC), 20)
    edited = tuning(TTFT, E2E)
    after, _ = decide(before, signals(205.0), edited, 205.0)
    assert before.balance is not None
    assert after.balance is not None
    assert before.balance.settled
    assert not after.balance.settled
    assert after.desired is not None
    assert before.desired is not None
    assert after.desired.replicas == before.desired.replicas


def test_in_the_dark_what_was_known_stays() -> None:
    before = ticks(start(SPEC), 20)
    after, _ = decide(before, Unobserved(Missing.UNREACHABLE, "away"), SPEC, 400.0)
    assert after.balance == before.balance


@pytest.mark.parametrize(("unseen", "left"), [(0, 1), (2, 4)])
def test_where_nothing_arrives_a_minute_must_pass_and_all_pods_be_seen(unseen: int, left: int) -> None:
    at_once, found, numbers = Bounds(down_seconds=0.0), None, []
    for at in range(0, 90, 5):
        found = idle(found, at_once, pods=4 - unseen, unseen=unseen, now=float(at))
        numbers.append(found.replicas)
    assert numbers == [*[4] * 12, *[left] * 6]
