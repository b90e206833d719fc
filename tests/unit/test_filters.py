"""What a proposed policy passes, filter by filter: what each lets through, and what it remembers."""

from __future__ import annotations

from dataclasses import replace

from flyball_engine.contract import Shed
from flyball_lab.harness.tuning import TPOT, TTFT, limits, signals, tuning
from flyball_operator.api.v1alpha1 import Mode, Overload
from flyball_operator.tuning.filters.filters import (
    FILTERS,
    Filter,
    HoldReason,
    Hysteresis,
    Pace,
    PodsObserved,
    Proposal,
    Proven,
    Rollback,
    Tick,
)
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.spec import Envelope, Span, TuningSpec
from flyball_operator.tuning.tunables import TUNABLES

AUTO = tuning(TTFT, TPOT)
CURRENT = Policy(limits=limits(64, 1024))
OTHER = Policy(limits=limits(16, 512))
START = Policy(limits=AUTO.envelope.upper())
NARROW = replace(AUTO, envelope=Envelope(Span(1, 100), AUTO.envelope.tokens))
WORKS = PodsObserved(stuck=None, moving=True, live=CURRENT)
STUCK = PodsObserved(stuck="chat-0", moving=False, live=CURRENT)


def a_tick(at: float = 100.0, *, pods: PodsObserved | None = WORKS, mode: Mode = Mode.AUTO) -> Tick:
    return Tick(at=at, current=CURRENT, spec=replace(AUTO, mode=mode), observation=signals(at), pods=pods)


def proposed(policy: Policy = OTHER, *, hold: HoldReason = HoldReason.GOOD_ENOUGH, urgent: bool = False) -> Proposal:
    return Proposal(policy=policy, hold=hold, trigger="tpot binds", urgent=urgent)


def expect_passed(one: Filter, tick: Tick, proposal: Proposal) -> None:
    assert one.apply(tick, proposal)[1] == proposal


def way_back(*, proven: Policy, current: Policy, spec: TuningSpec) -> Policy:
    """Where pods that are stuck are sent."""
    tick = replace(a_tick(pods=replace(STUCK, live=current)), current=current, spec=spec)
    return Rollback(proven=Proven(policy=proven)).apply(tick, proposed())[1].policy


def expect_held(one: Filter, tick: Tick, reason: HoldReason) -> None:
    _, left = one.apply(tick, proposed())
    assert (left.policy, left.hold) == (CURRENT, reason)


def test_a_way_back_comes_before_what_noise_and_pace_hold() -> None:
    assert [type(one) for one in FILTERS] == [Rollback, Hysteresis, Pace]


def test_what_users_ask_for_passes_all_of_them_at_any_time() -> None:
    close = proposed(Policy(limits=limits(63, 1024)), urgent=True)
    for one in (Rollback(held_until=1e9), Hysteresis(), Pace(99.0)):
        expect_passed(one, a_tick(pods=None), close)


def test_a_change_soon_after_another_waits_and_is_not_counted() -> None:
    expect_held(Pace(99.0), a_tick(), HoldReason.CHANGED_OFTEN)
    assert Pace(99.0).apply(a_tick(), proposed())[0] == Pace(99.0)
    assert Pace(99.0).apply(a_tick(99.0 + TUNABLES.changes_apart), proposed())[0] == Pace(99.0 + TUNABLES.changes_apart)


def test_a_shadow_has_no_pace() -> None:
    expect_passed(Pace(99.0), a_tick(mode=Mode.RECOMMEND), proposed())


def test_nothing_moves_during_a_hold_and_what_is_not_observed_is_said_first() -> None:
    held = Rollback(held_until=101.0)
    expect_held(held, a_tick(), HoldReason.ROLLED_BACK)
    expect_passed(held, a_tick(), proposed(CURRENT, hold=HoldReason.NOT_OBSERVED))
    expect_passed(held, a_tick(101.0), proposed())


def test_a_clock_set_back_makes_no_hold_last_and_no_policy_wait_to_be_proven() -> None:
    held = Rollback(held_until=10_000.0, proven=Proven(live=CURRENT, since=9_990.0))
    expect_passed(held, a_tick(), proposed())
    for at in (100.0, 100.0 + TUNABLES.trial_seconds):
        held, _ = held.apply(a_tick(at), proposed())
    assert held.proven.policy == CURRENT


def test_pods_that_are_stuck_go_back_to_what_worked_and_stay_there() -> None:
    after, back = Rollback(proven=Proven(policy=OTHER)).apply(a_tick(pods=STUCK), proposed())
    assert (back.policy.limits, back.urgent) == (OTHER.limits, True)
    assert after.held_until == 100.0 + TUNABLES.rollback_hold
    expect_held(after, a_tick(after.held_until - 1.0, pods=STUCK), HoldReason.ROLLED_BACK)


def test_pods_that_are_stuck_under_what_worked_go_back_to_start_values() -> None:
    _, back = Rollback(proven=Proven(policy=CURRENT)).apply(a_tick(pods=STUCK), proposed())
    assert back.policy == START


def test_the_way_back_stays_within_bounds_that_were_narrowed_since() -> None:
    back = way_back(proven=Policy(limits=limits(200, 2048)), current=Policy(limits=limits(50, 512)), spec=NARROW)
    assert back.limits == limits(100, 2048)


def test_pods_that_are_stuck_under_what_an_edit_left_of_what_worked_go_back_to_start_values() -> None:
    back = way_back(proven=Policy(limits=limits(200, 2048)), current=Policy(limits=limits(100, 2048)), spec=NARROW)
    assert back == Policy(limits=NARROW.envelope.upper())
    refuses = replace(tuning(replace(TTFT, seconds=0.5), TPOT, overload=Overload.SHED), refusal_status=429)
    shed = Shed(ttft_deadline_seconds=1.0, margin=0.85, refusal_status=503)
    edited = Shed(ttft_deadline_seconds=0.5, margin=0.85, refusal_status=429)
    back = way_back(proven=replace(CURRENT, shed=shed), current=replace(CURRENT, shed=edited), spec=refuses)
    assert back == START


def test_a_shadow_never_goes_back() -> None:
    expect_passed(Rollback(), a_tick(pods=STUCK, mode=Mode.RECOMMEND), proposed())


def test_a_policy_is_proven_when_requests_have_ended_under_it_for_long_enough() -> None:
    one = Rollback()
    for at in (100.0, 100.0 + TUNABLES.trial_seconds / 2, 100.0 + TUNABLES.trial_seconds):
        assert one.proven.policy is None
        one, _ = one.apply(a_tick(at), proposed())
    assert one.proven.policy == CURRENT
