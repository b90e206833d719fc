"""A request is let in if its first token will come in time, as far as anybody can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flyball_engine.batching.gate import PROBE_SECONDS, RESERVATION_SECONDS, Arrival, Reason, Work, prompt_work
from support.gates import BUSY, IDLE, GatedCores, a_policy


def test_an_engine_takes_what_it_can_answer_in_time() -> None:
    cores = GatedCores()
    cores.expect(1700, Reason.IN_TIME)
    cores.expect(2000, Reason.LATE)
    idle = GatedCores(IDLE)
    assert idle.ask(1000).predicted == pytest.approx(1.1)
    assert idle.ask(50).predicted == pytest.approx(0.060)


def test_an_idle_engine_serves_what_is_late_anyway() -> None:
    cores = GatedCores(IDLE)
    for now in range(3):
        verdict = cores.ask(100_000, now=float(now))
        assert (verdict.admitted, verdict.reason) == (True, Reason.IDLE)
    # A wrong bias refuses nobody who is alone, either: what he does corrects it.
    cores.publish(bias=3.0)
    cores.expect(1000, Reason.IDLE)


@pytest.mark.parametrize(
    "busy",
    [
        {"running": 1},
        {"running": 1, "decodes": 1},
        {"backlog": Work(requests=1)},
        {"places": 0},
    ],
    ids=str,
)
def test_beside_others_what_is_late_is_refused(busy: dict[str, Any]) -> None:
    GatedCores(replace(IDLE, **busy)).expect(10_000, Reason.LATE)


def test_behind_one_that_is_on_its_way_the_next_is_refused() -> None:
    cores = GatedCores(IDLE)
    cores.expect(10_000, Reason.IDLE)
    first = cores.gate.reserve(Arrival(10_000), now=0.0)
    cores.expect(10_000, Reason.LATE)
    cores.gate.release(first)
    cores.gate.sent(first.work)
    cores.expect(10_000, Reason.LATE)
    cores.publish(received=1, running=1)
    cores.expect(10_000, Reason.LATE)
    cores.publish(running=0)
    cores.expect(10_000, Reason.IDLE)


def test_of_several_cores_one_that_is_idle_serves() -> None:
    GatedCores(BUSY, IDLE).expect(10_000, Reason.IDLE)
    GatedCores(BUSY, BUSY).expect(10_000, Reason.LATE)


def test_what_is_queued_goes_first() -> None:
    cores = GatedCores(replace(IDLE, backlog=prompt_work(1500), running=1))
    cores.expect(200, Reason.IN_TIME)
    cores.expect(400, Reason.LATE)


def test_what_was_sent_and_not_received_goes_first_too() -> None:
    cores = GatedCores()
    cores.gate.sent(prompt_work(700))
    cores.gate.sent(prompt_work(1500))
    cores.expect(400, Reason.LATE)
    cores.publish(received=1)
    cores.expect(400, Reason.LATE)
    cores.publish(received=2)
    cores.expect(400, Reason.IN_TIME)


def test_what_was_let_in_goes_first_until_it_is_sent_or_given_back() -> None:
    cores = GatedCores()
    kept = cores.gate.reserve(Arrival(1500), now=0.0)
    cores.expect(400, Reason.LATE)
    cores.gate.release(kept)
    cores.gate.release(kept)
    cores.expect(400, Reason.IN_TIME)


def test_a_reservation_that_nobody_gives_back_expires() -> None:
    cores = GatedCores()
    cores.gate.reserve(Arrival(1500), now=0.0)
    cores.gate.reserve(Arrival(1), now=RESERVATION_SECONDS + 1)
    cores.expect(400, Reason.IN_TIME, now=RESERVATION_SECONDS + 1)


def test_an_error_of_counting_ends_when_nothing_is_unfinished() -> None:
    cores = GatedCores()
    cores.gate.sent(prompt_work(100_000))
    cores.expect(10, Reason.LATE)
    cores.gate.rebase()
    cores.expect(10, Reason.IN_TIME)


def test_decodes_take_their_part_of_every_step() -> None:
    alone = GatedCores(replace(IDLE, backlog=prompt_work(900))).ask(100).predicted
    beside = GatedCores(replace(IDLE, backlog=prompt_work(900), decodes=50, running=50)).ask(100).predicted
    assert alone is not None
    assert beside is not None
    assert beside > 1.8 * alone


def test_a_slow_pod_says_no_earlier() -> None:
    cores = GatedCores(replace(BUSY, bias=1.5))
    cores.expect(1700, Reason.LATE)


def test_predictions_that_refuse_everything_are_tried_now_and_then() -> None:
    stalled = GatedCores(replace(BUSY, bias=3.0))
    stalled.expect(1000, Reason.LATE)
    stalled.expect(1000, Reason.LATE, now=PROBE_SECONDS - 1)
    stalled.expect(1000, Reason.PROBE, now=PROBE_SECONDS)
    stalled.expect(1000, Reason.LATE, now=PROBE_SECONDS + 1)
    stalled.expect(100, Reason.IN_TIME, now=2 * PROBE_SECONDS)
    stalled.expect(1000, Reason.LATE, now=3 * PROBE_SECONDS - 1)


def test_nothing_is_tried_while_a_prompt_is_processed_or_no_place_is_free() -> None:
    busy = GatedCores(replace(BUSY, bias=3.0, places=0))
    busy.expect(1000, Reason.LATE, now=10 * PROBE_SECONDS)
    busy.publish(places=IDLE.places, backlog=Work(requests=1))
    busy.expect(1000, Reason.LATE, now=10 * PROBE_SECONDS)
    busy.publish(backlog=Work())
    coming = busy.gate.reserve(Arrival(10), now=10 * PROBE_SECONDS)
    busy.expect(1000, Reason.LATE, now=10 * PROBE_SECONDS)
    busy.gate.release(coming)
    busy.expect(1000, Reason.PROBE, now=10 * PROBE_SECONDS)


def test_decodes_that_run_on_and_on_keep_nobody_out_for_ever() -> None:
    decoding = GatedCores(replace(IDLE, bias=3.0, running=1, decodes=1))
    decoding.expect(1000, Reason.LATE, now=PROBE_SECONDS - 1)
    decoding.expect(1000, Reason.PROBE, now=PROBE_SECONDS)


def test_a_deadline_that_is_new_is_given_its_time() -> None:
    cores = GatedCores(replace(BUSY, bias=3.0), policy=a_policy(None))
    cores.gate.set_policy(a_policy(), now=1000.0)
    cores.expect(1000, Reason.LATE, now=1000.0)
    cores.gate.set_policy(a_policy(), now=1000.0 + PROBE_SECONDS)
    cores.expect(1000, Reason.PROBE, now=1000.0 + PROBE_SECONDS)


def test_the_limit_on_tokens_may_be_less_than_the_budget() -> None:
    cores = GatedCores(replace(BUSY, tokens=20))
    cores.expect(1700, Reason.LATE)


def test_steps_in_flight_are_waited_for() -> None:
    running = replace(IDLE, decodes=40, running=40)
    one = GatedCores(running).ask(100).predicted
    two = GatedCores(replace(running, pipeline_depth=2)).ask(100).predicted
    assert one is not None
    assert two is not None
    assert two == pytest.approx(one + 0.050)


def test_with_a_pipeline_a_step_has_its_part_of_the_decodes_and_a_token_takes_all_stages() -> None:
    running = replace(IDLE, decodes=40, running=40, pipeline_depth=2)
    one, two = GatedCores(running), GatedCores(replace(running, stages=2))
    few, half = one.ask(100).predicted, two.ask(100).predicted
    assert few is not None
    assert half is not None
    # A step of 20 decodes takes 30 ms where one of 40 takes 50, and leaves a prompt more room.
    assert half < few - 0.020
    for cores in (one, two):
        cores.publish(places=0)
        for _ in range(10):
            cores.gate.finished(prompt_tokens=50, cached_tokens=0, output_tokens=1000)
    # Whoever has a place makes a token in 50 ms, or in two steps of 30 ms.
    few, half = one.ask(1).predicted, two.ask(1).predicted
    assert few is not None
    assert half is not None
    assert half > few


def test_the_first_token_of_an_idle_pipeline_comes_from_its_last_stage() -> None:
    one, four = (GatedCores(replace(IDLE, pipeline_depth=stages, stages=stages)) for stages in (1, 4))
    first, last = one.ask(50).predicted, four.ask(50).predicted
    assert first == pytest.approx(0.060)
    assert last == pytest.approx(0.240)


def test_without_a_place_the_wait_is_for_answers_to_end() -> None:
    full = replace(IDLE, decodes=10, running=10, places=0)
    cores = GatedCores(full)
    # Nobody knows yet how long answers are.
    cores.expect(50, Reason.IN_TIME)
    for _ in range(10):
        cores.gate.finished(prompt_tokens=50, cached_tokens=0, output_tokens=1000)
    cores.expect(50, Reason.LATE)
    cores.publish(places=1)
    cores.expect(50, Reason.IN_TIME)
    cores.publish(backlog=Work(requests=1))
    cores.expect(50, Reason.LATE)


def test_warm_prefixes_are_not_refused() -> None:
    cores = GatedCores()
    cores.expect(10_000, Reason.LATE, cached=(0,))
    cores.expect(10_000, Reason.IN_TIME, cached=(9_500,))


def test_what_is_cached_counts_on_the_core_that_holds_it() -> None:
    cores = GatedCores(replace(IDLE, backlog=prompt_work(1500), running=2), BUSY)
    # vLLM sends it to the second, which has less to do, whatever is cached.
    cores.expect(10_000, Reason.LATE, cached=(9_900, 0))
    cores.expect(10_000, Reason.IN_TIME, cached=(0, 9_500))


def test_what_is_let_in_adds_only_what_is_not_cached() -> None:
    cores = GatedCores()
    cores.gate.reserve(Arrival(10_000, (9_500,)), now=0.0)
    cores.expect(1000, Reason.IN_TIME)
    cores.gate.reserve(Arrival(10_000, (9_000,)), now=0.0)
    cores.expect(1000, Reason.LATE)


def test_a_backlog_that_leaves_out_what_is_cached_is_not_cut_again() -> None:
    blind = GatedCores(replace(IDLE, backlog=prompt_work(10_000), running=1))
    seeing = GatedCores(replace(IDLE, backlog=prompt_work(10_000), running=1, knows_prefixes=True))
    for cores in (blind, seeing):
        for _ in range(10):
            cores.gate.finished(prompt_tokens=10_000, cached_tokens=9_500, output_tokens=10)
    blind.expect(100, Reason.IN_TIME)
    seeing.expect(100, Reason.LATE)


def test_where_nobody_knows_what_is_cached_the_share_held_lately_counts() -> None:
    cores = GatedCores()
    cores.expect(10_000, Reason.LATE)
    for _ in range(10):
        cores.gate.finished(prompt_tokens=10_000, cached_tokens=9_500, output_tokens=10)
    cores.expect(10_000, Reason.IN_TIME)


def test_long_prompts_cost_their_attention_too() -> None:
    policy = a_policy(10.0)
    assert policy.step is not None
    model = policy.step.model.model_copy(update={"g": 1e-7})
    costly = policy.model_copy(update={"step": policy.step.model_copy(update={"model": model})})
    linear, quadratic = GatedCores(policy=policy), GatedCores(policy=costly)
    short = (linear.ask(100).predicted, quadratic.ask(100).predicted)
    long = (linear.ask(8000).predicted, quadratic.ask(8000).predicted)
    assert short[1] == pytest.approx(short[0], rel=0.01)
    # 3.2e7 token² at 1e-7 s are 3.2 s of work, in steps that are a tenth overhead.
    assert None not in long
    assert long[1] - long[0] == pytest.approx(3.5, rel=0.1)  # type: ignore[operator] # seen above


def test_the_core_with_most_room_counts() -> None:
    cores = GatedCores(replace(IDLE, backlog=prompt_work(100_000), running=1), IDLE)
    cores.expect(1000, Reason.IN_TIME)


def test_the_margin_leaves_room_for_what_is_not_known() -> None:
    assert GatedCores(policy=a_policy(margin=0.5)).ask(1000).reason is Reason.LATE


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (a_policy(None), Reason.NO_DEADLINE),
        (a_policy(trusted=False), Reason.NO_MODEL),
        (a_policy(2.0).model_copy(update={"step": None}), Reason.NO_MODEL),
    ],
)
def test_without_a_deadline_or_a_model_everything_is_let_in(policy: object, reason: Reason) -> None:
    cores = GatedCores(policy=policy)  # type: ignore[arg-type] # parametrised
    verdict = cores.ask(10**6)
    assert (verdict.admitted, verdict.reason) == (True, reason)


def test_a_core_that_cannot_be_seen_refuses_nobody() -> None:
    cores = GatedCores()
    cores.loads = None
    cores.expect(10**6, Reason.UNOBSERVED)


def test_a_policy_that_nobody_renews_expires() -> None:
    cores = GatedCores(replace(IDLE, backlog=Work(requests=1)), policy=a_policy(expires_seconds=60.0))
    cores.expect(10**6, Reason.LATE, now=59)
    cores.expect(10**6, Reason.NO_DEADLINE, now=60)


def test_every_decision_is_counted_and_says_when_to_come_back() -> None:
    cores = GatedCores()
    verdict = cores.ask(10_000)
    assert verdict.retry_after(0.0) == 10
    cores.ask(10)
    assert {reason: count for reason, count in cores.gate.counts.items() if count} == {
        Reason.LATE: 1,
        Reason.IN_TIME: 1,
    }


def test_those_that_are_refused_together_come_back_apart_within_twice_the_time() -> None:
    late = GatedCores().ask(5000)
    seconds = [late.retry_after(chance / 100) for chance in range(100)]
    assert (min(seconds), max(seconds)) == (4, 8)
    assert set(seconds) == set(range(4, 9))
    far = GatedCores().ask(10**6)
    # The official client takes a longer time for none.
    assert [far.retry_after(chance) for chance in (0.0, 0.5, 0.999)] == [30, 45, 60]


def test_what_the_decodes_read_takes_its_part_of_the_steps() -> None:
    policy = a_policy()
    assert policy.step is not None
    reading = policy.step.model_copy(update={"model": policy.step.model.model_copy(update={"d": 1e-5})})
    chats = replace(BUSY, backlog=prompt_work(900), running=20, decodes=20)
    short, long = (
        GatedCores(replace(chats, kv_tokens=tokens), policy=policy.model_copy(update={"step": reading})).ask(100)
        for tokens in (0, 5_000)
    )
    assert short.predicted is not None
    assert long.predicted is not None
    # 50 ms of each step of 110 ms go to the contexts.
    assert long.predicted > 1.7 * short.predicted
