"""What a setpoint may say of admission, and what it is told when it says something else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from flyball_engine.contract import Batching, BatchingKnob, Knob, QueueKnob, QueueLimits, SchedulingPolicy, Setpoint
from flyball_engine.control.acceptance import SetpointRefused, judge
from flyball_engine.knobs import Bucketed, Continuous, Dynamic, NoEvict, Static, knob_named
from flyball_lab.harness.engine import SERVICE, setpoint


def said_of(**batching: Any) -> str:
    """What is wrong with it, in the words a writer is told."""
    body = {"service": SERVICE, "epoch": 1, "generation": 1, "batching": batching}
    with pytest.raises(ValidationError) as caught:
        Setpoint.model_validate_json(json.dumps(body))
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in caught.value.errors())


def test_absent_is_the_engine_s_own_way() -> None:
    batching = Setpoint.model_validate({"service": SERVICE, "epoch": 1, "generation": 1}).batching
    assert batching == Batching()
    assert batching.strategy is None
    assert batching.given() == ()


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": "Continuous"},
        {"type": "Static", "batch_size": 8},
        {"type": "Dynamic", "batch_size": 8, "max_delay_seconds": 0.05},
        {"type": "Dynamic", "batch_size": 8, "max_delay_seconds": 0.05, "max_batch_tokens": 4096},
        {"type": "Bucketed", "batch_size": 8, "boundaries": [128, 512, 2048]},
        {"type": "Bucketed", "batch_size": 8, "sorted": True},
    ],
)
def test_every_strategy_travels_as_json(strategy: dict[str, Any]) -> None:
    batching = Batching.model_validate({"strategy": strategy})
    assert Batching.model_validate_json(batching.model_dump_json()) == batching
    assert batching.strategy is not None
    assert batching.strategy.type == strategy["type"]


@pytest.mark.parametrize(
    ("batching", "told"),
    [
        ({"strategy": {"type": "Greedy"}}, "'Continuous', 'Static', 'Dynamic', 'Bucketed'"),
        ({"strategy": {"batch_size": 4}}, "batching.strategy: Unable to extract tag using discriminator 'type'"),
        ({"strategy": {"type": "Static"}}, "batching.strategy.Static.batch_size: Field required"),
        ({"strategy": {"type": "Static", "batch_size": 0}}, "greater than or equal to 1"),
        ({"strategy": {"type": "Static", "batch_size": 4, "sorted": True}}, "batching.strategy.Static.sorted: Extra"),
        (
            {"strategy": {"type": "Dynamic", "batch_size": 4, "max_delay_seconds": 61.0}},
            "batching.strategy.Dynamic.max_delay_seconds: Input should be less than or equal to 60",
        ),
        ({"strategy": {"type": "Bucketed", "batch_size": 4}}, "accepted: either boundaries"),
        ({"strategy": {"type": "Bucketed", "batch_size": 4, "boundaries": [8], "sorted": True}}, "accepted: either"),
        ({"strategy": {"type": "Bucketed", "batch_size": 4, "boundaries": [64, 64]}}, "above the one before"),
        ({"admission_delay_seconds": -0.1}, "batching.admission_delay_seconds: Input should be greater"),
        ({"no_evict": {"quantile": 1.5}}, "batching.no_evict.quantile: Input should be less than or equal to 1"),
        (
            {"max_concurrent_prefills": 0},
            "batching.max_concurrent_prefills: Input should be greater than or equal to 1",
        ),
        ({"policy": "lifo"}, "'fcfs' or 'priority'"),
        (
            {
                "strategy": {"type": "Dynamic", "batch_size": 4, "max_delay_seconds": 1.0},
                "admission_delay_seconds": 0.5,
            },
            "accepted beside Dynamic: 0",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_is_accepted(batching: dict[str, Any], told: str) -> None:
    assert told in said_of(**batching)


def test_a_setpoint_names_all_it_asks_for() -> None:
    batching = Batching(
        strategy=Bucketed(batch_size=8, sorted=True),
        admission_delay_seconds=0.1,
        no_evict=NoEvict(),
        max_concurrent_prefills=2,
        policy=SchedulingPolicy.PRIORITY,
    )
    queue = QueueLimits(max_num_queued_reqs=9, max_num_queued_tokens=9000)
    asked = setpoint(1, limits={"num_speculative_tokens": 2}, batching=batching, queue=queue).asks()
    others = {BatchingKnob.CONTINUOUS, BatchingKnob.STATIC, BatchingKnob.DYNAMIC}
    assert set(asked) == {Knob.NUM_SPECULATIVE_TOKENS, *BatchingKnob, *QueueKnob} - others


@pytest.mark.parametrize(
    ("batching", "knob"),
    [
        (Batching(strategy=Continuous()), BatchingKnob.CONTINUOUS),
        (Batching(strategy=Static(batch_size=4)), BatchingKnob.STATIC),
        (Batching(strategy=Dynamic(batch_size=4, max_delay_seconds=1.0)), BatchingKnob.DYNAMIC),
        (Batching(strategy=Bucketed(batch_size=4, sorted=True)), BatchingKnob.BUCKETED),
        (Batching(max_concurrent_prefills=1), BatchingKnob.MAX_CONCURRENT_PREFILLS),
    ],
)
def test_what_an_engine_lacks_is_refused_by_name(batching: Batching, knob: BatchingKnob) -> None:
    with pytest.raises(SetpointRefused, match=f"{knob.value}: not here"):
        judge(held=None, offered=setpoint(1, batching=batching), service=SERVICE, unsupported={knob: "not here"})
    judge(held=None, offered=setpoint(1), service=SERVICE, unsupported={knob: "not here"})


def test_every_knob_is_found_by_its_value() -> None:
    for knob in (*Knob, *BatchingKnob, *QueueKnob):
        assert knob_named(knob.value) is knob
    with pytest.raises(ValueError, match="warp"):
        knob_named("warp")
