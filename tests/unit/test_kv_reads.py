"""Decodes read the KV cache: on a GPU a step takes several times as long by their contexts alone."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from flyball_engine.contract import ModelSpec, Setpoint, StepBudget
from flyball_engine.control_port import body_of
from flyball_engine.model import StepModel
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.presets import PRESETS
from support.simulated import a_core, a_request, a_setpoint, submitted

#: An 8B model on an H100. A token of KV costs 50 ns, so that 40 contexts of 8,000 cost 16 ms.
PLANT = PRESETS["h100-8b-fit"].step_times
BUDGET = 0.030
#: What is learnt of short chats, where nothing tells a decode from what it reads.
WITHOUT = replace(PLANT.model, beta=PLANT.model.beta + 300 * PLANT.kv_token)
WITH = replace(PLANT.model, d=PLANT.kv_token)


def a_core_that_holds(model: StepModel) -> Core:
    """It serves long prompts beside short chats, one after the other, so that its bias settles."""
    core = a_core(seqs=128, tokens=8192, kv_tokens=1_000_000, model_len=32_768, step_times=PLANT, jumps=False)
    core.apply(a_setpoint(step=StepBudget(seconds=BUDGET, model=ModelSpec(id="m", trusted=True, **asdict(model)))))
    submitted(core, a_request(8_000, 1, shared=8_000))
    submitted(core, *[a_request(200, 1_000, at=1.0) for _ in range(20)])
    submitted(core, *[a_request(8_000, 4, at=1.0 + number) for number in range(8)])
    return core


def steps_until(core: Core, end: float) -> list[float]:
    """Seconds of each step."""
    found = []
    while core.now < end:
        began = core.now
        core.run(began + 1e-9)
        core.run(core.next_change)
        found.append(core.now - began)
    return found


def steps_when_long_chats_return(model: StepModel) -> list[float]:
    """Forty chats come back, whose 8,000 tokens the prefix cache holds, and beside them a long prompt."""
    core = a_core_that_holds(model)
    core.run(12.0)
    core.submit([a_request(8_000, 4, at=12.0)])
    for _ in range(40):
        core.submit([a_request(8_020, 400, at=12.0, shared=8_000)])
    core.submit([a_request(16_000, 4, at=12.0)])
    return steps_until(core, 13.0)


def test_long_contexts_do_not_pass_the_step_budget() -> None:
    longest = max(steps_when_long_chats_return(WITH))
    # The step in which they join included: what the prefix cache holds of them is context for their last tokens.
    assert longest < 1.02 * BUDGET
    without = max(steps_when_long_chats_return(WITHOUT))
    assert without > 1.2 * longest, "the bias alone has to learn what the decodes read"


def a_setpoint_with(model: StepModel) -> Setpoint:
    return a_setpoint(step=StepBudget(seconds=BUDGET, model=ModelSpec(id="m", trusted=True, **asdict(model))))


def test_a_setpoint_without_the_coefficient_has_none() -> None:
    written = json.loads(body_of(a_setpoint_with(WITH)))
    del written["step"]["model"]["d"]
    read = Setpoint.model_validate_json(json.dumps(written)).step
    assert read is not None
    assert read.model.step_model() == replace(WITH, d=0.0)


def test_an_engine_that_is_older_than_the_coefficient_is_not_sent_one_that_says_nothing() -> None:
    assert "d" not in json.loads(body_of(a_setpoint_with(WITHOUT)))["step"]["model"]
    assert json.loads(body_of(a_setpoint_with(WITH)))["step"]["model"]["d"] == WITH.d
    assert Setpoint.model_validate_json(body_of(a_setpoint_with(WITHOUT))) == a_setpoint_with(WITHOUT)
