"""A request is let in if its first token can come in time, served alone; the queue is no reason to refuse it."""

from __future__ import annotations

from typing import Any

import pytest

from flyball_engine.batching.gate import PROBE_SECONDS, AdmissionReason, Arrival
from flyball_engine.batching.prefill_rate import PrefillRate
from support.gates import BUSY, FULL, IDLE, GatedCores, a_policy


def counted(cores: GatedCores) -> dict[AdmissionReason, int]:
    return {reason: count for reason, count in cores.gate.counts.items() if count}


def test_a_prompt_that_is_late_even_alone_is_refused_at_once() -> None:
    cores = GatedCores()
    verdict = cores.ask(2100)
    assert (verdict.admitted, verdict.reason, verdict.status) == (False, AdmissionReason.LATE, 503)
    assert verdict.predicted == pytest.approx(2.1)
    cores.expect(2000, AdmissionReason.IN_TIME)


def test_however_many_short_prompts_wait_one_more_is_let_in() -> None:
    cores = GatedCores(FULL)
    for _ in range(100):
        cores.expect(100, AdmissionReason.IN_TIME)
    cores.expect(2100, AdmissionReason.LATE)


def test_the_steps_in_flight_are_waited_for() -> None:
    GatedCores(BUSY._replace(in_flight_seconds=0.5)).expect(1500, AdmissionReason.IN_TIME)
    GatedCores(BUSY._replace(in_flight_seconds=0.5)).expect(1501, AdmissionReason.LATE)


def test_beside_many_decodes_prompts_take_longer() -> None:
    GatedCores(BUSY._replace(rate=PrefillRate(per_token=0.003))).expect(700, AdmissionReason.LATE)


def test_a_long_prompt_costs_its_attention_too() -> None:
    cores = GatedCores(BUSY._replace(rate=PrefillRate(per_token=0.001, per_attention=1e-6)))
    assert cores.ask(100).predicted == pytest.approx(0.105)
    assert cores.ask(1500).predicted == pytest.approx(1.5 + 1.125)


def test_an_idle_engine_serves_what_is_late_anyway() -> None:
    cores = GatedCores(IDLE)
    for now in range(3):
        verdict = cores.ask(100_000, now=float(now))
        assert (verdict.admitted, verdict.reason) == (True, AdmissionReason.IDLE)


@pytest.mark.parametrize("busy", [{"running": 1}, {"running": 1, "prefills": 1}, {"waiting": 1}], ids=str)
def test_beside_others_what_is_late_is_refused(busy: dict[str, Any]) -> None:
    GatedCores(IDLE._replace(**busy)).expect(10_000, AdmissionReason.LATE)


def test_of_several_cores_one_that_is_idle_serves() -> None:
    GatedCores(BUSY, IDLE).expect(10_000, AdmissionReason.IDLE)
    GatedCores(BUSY, BUSY).expect(10_000, AdmissionReason.LATE)


def test_of_several_cores_the_best_one_counts() -> None:
    slow = FULL._replace(rate=PrefillRate(per_token=0.01))
    GatedCores(slow, BUSY).expect(2000, AdmissionReason.IN_TIME)
    GatedCores(slow, slow).expect(2000, AdmissionReason.LATE)


def test_several_that_come_at_once_to_an_idle_engine_may_be_refused_by_it_later() -> None:
    """The core keeps one of them, if nobody else is there: `late.but_one_alone`."""
    cores = GatedCores(IDLE)
    assert [cores.ask(100_000).refusable for _ in range(3)] == [True, True, True]


def test_a_model_that_refuses_everything_is_tried_now_and_then() -> None:
    wrong = GatedCores(BUSY._replace(rate=PrefillRate(per_token=1.0)))
    wrong.expect(1000, AdmissionReason.LATE)
    wrong.expect(1000, AdmissionReason.LATE, now=PROBE_SECONDS - 1)
    wrong.expect(1000, AdmissionReason.PROBE, now=PROBE_SECONDS)
    wrong.expect(1, AdmissionReason.IN_TIME, now=2 * PROBE_SECONDS - 1)
    wrong.expect(1000, AdmissionReason.LATE, now=3 * PROBE_SECONDS - 2)


def test_of_many_that_come_at_once_one_is_a_probe_and_it_is_served_however_late() -> None:
    """The core does not have the first of them yet: what was let in counts here at once."""
    wrong = GatedCores(BUSY._replace(rate=PrefillRate(per_token=1.0)))
    came = [wrong.ask(1000, now=PROBE_SECONDS) for _ in range(50)]
    assert [one.reason for one in came] == [AdmissionReason.PROBE, *(49 * [AdmissionReason.LATE])]
    assert not came[0].refusable


@pytest.mark.parametrize("busy", [{"running": 1, "prefills": 1}, {"running": 1, "waiting": 1}], ids=str)
def test_nothing_is_tried_while_prompts_are_processed_whose_steps_correct_the_model(busy: dict[str, Any]) -> None:
    GatedCores(IDLE._replace(**busy)).expect(10_000, AdmissionReason.LATE, now=10 * PROBE_SECONDS)


def test_a_deadline_that_is_new_is_given_its_time() -> None:
    cores = GatedCores(policy=a_policy(None))
    cores.gate.set_policy(a_policy(), now=1000.0)
    cores.expect(3000, AdmissionReason.LATE, now=1000.0)
    cores.gate.set_policy(a_policy(), now=1000.0 + PROBE_SECONDS)
    cores.expect(3000, AdmissionReason.PROBE, now=1000.0 + PROBE_SECONDS)


def test_what_is_cached_is_no_work() -> None:
    cores = GatedCores()
    cores.expect(10_000, AdmissionReason.LATE, cached=(0,))
    cores.expect(10_000, AdmissionReason.IN_TIME, cached=(9_500,))
    # Of a core that came meanwhile nobody knows what it holds.
    cores.expect(10_000, AdmissionReason.LATE, cached=(9_500, 9_500))


def test_the_core_that_holds_most_of_a_prompt_may_be_the_best_one() -> None:
    GatedCores(BUSY, FULL).expect(10_000, AdmissionReason.IN_TIME, cached=(0, 9_500))


def test_a_cached_prefix_costs_attention() -> None:
    cores = GatedCores(BUSY._replace(rate=PrefillRate(per_token=0.0, per_attention=1e-6)))
    assert cores.ask(1000, cached=(900,)).predicted == pytest.approx(1e-6 * 100 * 950)


def test_where_nobody_knows_what_is_cached_the_share_held_lately_counts() -> None:
    cores = GatedCores()
    cores.expect(10_000, AdmissionReason.LATE)
    for _ in range(10):
        cores.gate.finished(prompt_tokens=10_000, cached_tokens=9_500)
    cores.expect(10_000, AdmissionReason.IN_TIME)


def test_the_margin_leaves_room_for_what_is_not_known() -> None:
    cores = GatedCores(policy=a_policy(margin=0.5))
    cores.expect(1000, AdmissionReason.IN_TIME)
    cores.expect(1001, AdmissionReason.LATE)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (a_policy(None), AdmissionReason.NO_DEADLINE),
        (a_policy(trusted=False), AdmissionReason.NO_MODEL),
        (a_policy(2.0).model_copy(update={"step": None}), AdmissionReason.NO_MODEL),
    ],
)
def test_without_a_deadline_or_a_model_everything_is_let_in(policy: Any, reason: AdmissionReason) -> None:
    verdict = GatedCores(policy=policy).ask(10**6)
    assert (verdict.admitted, verdict.reason, verdict.refusable) == (True, reason, False)


def test_a_core_that_has_no_deadline_yet_says_no_rate_and_refuses_nobody() -> None:
    GatedCores(BUSY, BUSY._replace(rate=None)).expect(10**6, AdmissionReason.NO_MODEL)


def test_a_core_that_cannot_be_seen_refuses_nobody() -> None:
    cores = GatedCores()
    cores.loads = None
    cores.expect(10**6, AdmissionReason.UNOBSERVED)


def test_a_policy_that_nobody_renews_expires() -> None:
    cores = GatedCores(FULL, policy=a_policy(expires_seconds=60.0))
    cores.expect(10**6, AdmissionReason.LATE, now=59)
    cores.expect(10**6, AdmissionReason.NO_DEADLINE, now=60)


def test_it_is_worth_looking_what_is_cached_only_where_that_decides() -> None:
    assert GatedCores().gate.predicts(0.0)
    assert not GatedCores(policy=a_policy(None)).gate.predicts(0.0)
    assert not GatedCores(policy=a_policy(trusted=False)).gate.predicts(0.0)


def test_every_decision_is_counted_and_says_when_to_come_back() -> None:
    cores = GatedCores()
    assert cores.ask(12_000).retry_after(0.0) == 10
    cores.ask(10)
    assert counted(cores) == {AdmissionReason.LATE: 1, AdmissionReason.IN_TIME: 1}


def test_what_is_refused_later_is_counted_and_has_the_status_of_the_setpoint() -> None:
    cores = GatedCores(policy=a_policy(refusal_status=429))
    cores.ask(10)
    assert cores.gate.expired() == 429
    assert counted(cores) == {AdmissionReason.IN_TIME: 1, AdmissionReason.EXPIRED: 1}


def test_a_look_counts_nothing() -> None:
    cores = GatedCores()
    assert cores.gate.judge(Arrival(10), 0.0).admitted
    assert counted(cores) == {}


def test_those_that_are_refused_together_come_back_apart_within_twice_the_time() -> None:
    late = GatedCores().ask(6000)
    seconds = [late.retry_after(chance / 100) for chance in range(100)]
    assert set(seconds) == set(range(4, 9))
    far = GatedCores().ask(10**6)
    # The official client takes a longer time for none.
    assert [far.retry_after(chance) for chance in (0.0, 0.5, 0.999)] == [30, 45, 60]
