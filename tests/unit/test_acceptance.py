"""Which setpoints an engine accepts, beside the one it holds."""

from __future__ import annotations

import pytest

from flyball_engine.contract import AnyKnob, Generation, Knob, Refusal, Setpoint
from flyball_engine.control.acceptance import STATUS, SetpointRefused, check_not_overtaken, judge
from flyball_lab.harness.engine import SERVICE, setpoint

HELD = setpoint(7, epoch=3, limits={"max_num_active_seqs": 8})


def offer(offered: Setpoint, *, held: Setpoint | None = HELD, unsupported: dict[AnyKnob, str] | None = None) -> str:
    """What becomes of an offer, in a word."""
    try:
        verdict = judge(held=held, offered=offered, service=SERVICE, unsupported=unsupported or {})
    except SetpointRefused as refused:
        return refused.refusal.value
    return "renewed" if verdict.renewal else "accepted"


@pytest.mark.parametrize(
    ("offered", "outcome"),
    [
        (setpoint(8, epoch=3), "accepted"),
        (setpoint(1, epoch=4), "accepted"),
        (HELD, "renewed"),
        (setpoint(7, epoch=3, limits={"max_num_active_seqs": 9}), "Conflict"),
        (setpoint(7, epoch=3, limits={"max_num_active_seqs": 8}, expires_seconds=60.0), "Conflict"),
        (setpoint(6, epoch=3, limits={"max_num_active_seqs": 8}), "StaleGeneration"),
        (setpoint(900, epoch=2), "StaleEpoch"),
        (setpoint(900, epoch=9, service="another"), "OtherService"),
    ],
)
def test_an_offer_beside_the_one_held(offered: Setpoint, outcome: str) -> None:
    assert offer(offered) == outcome


def test_the_first_offer_is_accepted_whatever_its_order() -> None:
    assert offer(setpoint(0, epoch=0), held=None) == "accepted"


def test_a_knob_that_cannot_be_moved_is_refused_by_name() -> None:
    with pytest.raises(SetpointRefused, match="long_prefill_token_threshold: chunked prefill is off"):
        judge(
            held=None,
            offered=setpoint(1, limits={"long_prefill_token_threshold": 64}),
            service=SERVICE,
            unsupported={Knob.LONG_PREFILL_TOKEN_THRESHOLD: "chunked prefill is off"},
        )


def test_a_knob_that_cannot_be_moved_does_not_matter_if_it_is_left_out() -> None:
    unsupported: dict[AnyKnob, str] = {Knob.LONG_PREFILL_TOKEN_THRESHOLD: "chunked prefill is off"}
    assert offer(setpoint(9, epoch=9, limits={"max_num_active_seqs": 4}), unsupported=unsupported) == "accepted"


def test_a_core_that_went_further_refuses_for_the_server() -> None:
    with pytest.raises(SetpointRefused) as refused:
        check_not_overtaken(setpoint(4, epoch=2), Generation(epoch=2, generation=5))
    assert refused.value.refusal is Refusal.STALE_GENERATION
    check_not_overtaken(setpoint(4, epoch=2), Generation(epoch=2, generation=4))
    check_not_overtaken(setpoint(4, epoch=2), None)


def test_every_refusal_has_a_status() -> None:
    assert set(STATUS) == set(Refusal)
