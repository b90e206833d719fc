"""What the law makes of a service by its status alone, held against what its leader knew, and against what came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_lab.harness.recordings import Recording, Replayed
from flyball_lab.harness.tuning import workload
from flyball_operator.api.parse import parse_service
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.tuning import status_codec
from flyball_operator.tuning.insight import remembered
from flyball_operator.tuning.outlook import attainment


def played(name: str) -> tuple[InferenceService, Replayed]:
    """A recording to its end: the service as the API server has it then, and all that its leader knew."""
    replayed = Recording.named(name).replay()
    return parse_service(replayed.services[-1]), replayed


@pytest.mark.parametrize(
    "name", ["load-h100-chat", "load-a100-code", "load-h100-retrieval", "load-h100-three-objectives", "live-gated"]
)
def test_status_tells_enough_to_choose_as_the_leader_does_and_to_say_what_is_kept(name: str) -> None:
    service, replayed = played(name)
    known, spec = remembered(service), replayed.insight.spec
    by_status, by_leader = known.under(known.spec), replayed.insight.under(spec)
    assert by_status is not None
    assert by_leader is not None
    assert by_status.seqs == pytest.approx(by_leader.seqs, rel=0.1)
    assert by_status.tokens == pytest.approx(by_leader.tokens, rel=0.1)
    attained = {one.name: float(one.attained) for one in service.status.objectives}
    for objective in spec.objectives:
        if attained[objective.name] >= 100 * (1 - objective.allowed):
            assert attainment(by_status, objective).kept, objective.name


def test_what_was_missed_is_predicted_to_be_missed() -> None:
    service, _ = played("load-a100-long-chats")
    known = remembered(service)
    output = known.under(known.spec)
    assert output is not None
    assert {one.name: attainment(output, one).kept for one in known.spec.objectives} == {
        "first-token": False,
        "per-token": True,
    }
    assert float(service.status.objectives[0].attained) < 99


def test_the_load_in_status_stays_while_it_is_right_within_a_quarter() -> None:
    shown = status_codec.workload_status(None, workload(arrivals=4.0))
    assert status_codec.workload_status(shown, workload(arrivals=4.9)) is shown
    assert status_codec.workload_status(shown, workload(arrivals=5.1)).arrivals == "5.1"
    assert status_codec.workload_of(shown) == replace(workload(arrivals=4.0), waiting=0.0, ratio=3.0)


def test_what_older_operators_and_engines_do_not_tell_of_a_load_is_not_known() -> None:
    load = replace(workload(), waiting=0.0, ratio=3.0)
    shown = status_codec.workload_status(None, load)
    assert (shown.token_weighted_prompt, shown.kv_share) == (None, None)
    assert status_codec.workload_of(shown) == load
    told = replace(load, token_weighted_prompt=90.0, kv_share=0.25)
    again = status_codec.workload_status(shown, told)
    assert (again.token_weighted_prompt, again.kv_share) == ("90", "0.25")
    assert status_codec.workload_of(again) == told
    assert status_codec.workload_status(again, replace(told, token_weighted_prompt=100.0)) is again
    assert status_codec.workload_status(again, load).token_weighted_prompt is None


@pytest.mark.parametrize("figure", ["", "-1", "inf", "nan", "x"])
def test_a_load_that_cannot_be_is_none(figure: str) -> None:
    shown = status_codec.workload_status(None, workload())
    assert status_codec.workload_of(shown.model_copy(update={"arrivals": figure})) is None
