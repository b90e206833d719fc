"""Small simulated engines, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from random import Random

from flyball_engine.batching.setpoint_enforcer import Sizes
from flyball_engine.contract import (
    Classes,
    Limits,
    ModelSpec,
    ObjectiveSpec,
    OnTime,
    RequestClass,
    SchedulingPolicy,
    Setpoint,
    Shed,
    StepBudget,
)
from flyball_engine.model import StepModel
from flyball_lab.simulator.core import Core
from flyball_lab.simulator.core_config import CoreConfig, Speculation
from flyball_lab.simulator.plant import CALM, Disturbances, Plant, StepTimes
from flyball_lab.simulator.requests import Prefix, Request

#: A step takes 10 ms, and 1 ms more for each token beyond 64; decodes pay for the KV they read.
STEP_TIMES = StepTimes(
    model=StepModel(t0=10e-3, h=4e-3, c1=0.0, c2=1e-3, beta=1e-4, g=1e-8, kappa=64), kv_token=1e-6, reread=1e-6
)
SERVICE = "uid-1"


def a_core(
    *,
    seqs: int = 8,
    tokens: int = 128,
    kv_tokens: int = 65_536,
    model_len: int = 4096,
    policy: SchedulingPolicy = SchedulingPolicy.FCFS,
    speculation: Speculation | None = None,
    step_times: StepTimes = STEP_TIMES,
    disturbances: Disturbances = CALM,
    jumps: bool = True,
    seed: int = 1,
) -> Core:
    random = Random(seed)
    sizes = Sizes(max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=model_len)
    config = CoreConfig(sizes=sizes, kv_tokens=kv_tokens, policy=policy, speculation=speculation)
    return Core(config, Plant(step_times, random, disturbances), random, jumps=jumps)


def a_request(prompt: int = 32, output: int = 8, *, at: float = 0.0, shared: int = 0, **more: object) -> Request:
    """`shared`: so many first tokens are the same for all requests that share."""
    prefix = Prefix("shared", shared) if shared else None
    return Request(at, prompt, output, prefix=prefix, **more)  # type: ignore[arg-type]  # passed on as they are


def submitted(core: Core, *requests: Request) -> list[Request]:
    """Each comes in by itself, when it arrives."""
    for request in requests:
        core.run(request.arrival)
        core.submit([request])
    return list(requests)


def a_budget(seconds: float, step_times: StepTimes = STEP_TIMES) -> StepBudget:
    """With the plant's own step times, but for what no model has."""
    model = ModelSpec(id="true", trusted=True, **asdict(step_times.model))
    return StepBudget(seconds=seconds, model=model)


def two_classes(seconds: float | None, *, weight: float = 1.0, share: float = 0.0) -> Classes:
    """People who wait for so long at most, and batch work that may keep a share."""
    return Classes(
        classes=(
            RequestClass(name="chat", value="Chat", first_token_deadline_seconds=seconds, weight=weight),
            RequestClass(name="batch", value="batch", prefill_share=share, priority=5),
        )
    )


def a_setpoint(
    number: int = 1,
    *,
    active: int | None = None,
    tokens: int | None = None,
    threshold: int | None = None,
    objectives: Sequence[ObjectiveSpec] = (),
    step: StepBudget | None = None,
    shed: Shed | None = None,
    on_time: OnTime | None = None,
    classes: Classes | None = None,
    expires: float = 3600.0,
) -> Setpoint:
    limits = Limits(max_num_active_seqs=active, max_num_scheduled_tokens=tokens, long_prefill_token_threshold=threshold)
    return Setpoint(
        service=SERVICE,
        epoch=1,
        generation=number,
        limits=limits,
        objectives=tuple(objectives),
        step=step,
        shed=shed,
        on_time=on_time,
        classes=classes,
        expires_seconds=expires,
    )
