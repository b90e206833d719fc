"""What the control port of a simulated core would answer, without a port: for runs in virtual time."""

from __future__ import annotations

import math

from flyball_engine import __version__
from flyball_engine.batching.step_statistics import step_sums
from flyball_engine.contract import Ceilings, Clamp, CoreState, Limits, ReadBack, Setpoint
from flyball_lab.simulator.core import Core


def read_back(core: Core, accepted: Setpoint | None) -> ReadBack:
    """The answer of an engine of one core that has accepted a setpoint, or none since its start."""
    return ReadBack(
        service="" if accepted is None else accepted.service,
        plugin_version=__version__,
        engine_version="flyball simulator",
        governed=True,
        accepted=accepted,
        cores=(core_state(core),),
        ungated=None,
    )


def core_state(core: Core) -> CoreState:
    """What a core reports of itself.

    `applied` is what holds when the step in flight has ended: a real engine answers a write only then.
    """
    governed, scheduler = core.governed, core.scheduler
    shown = governed.shown(scheduler.batch())
    sizes = governed.sizes
    return CoreState(
        engine=0,
        applied=core.accepted,
        effective=Limits(**{knob.value: one.effective for knob, one in shown.items()}),
        start=Limits(**{knob.value: value for knob, value in governed.started().items()}),
        clamped=tuple(
            Clamp(knob=knob, requested=one.requested, effective=one.effective, reason=one.reason.value)
            for knob, one in shown.items()
            if one.reason is not None
        ),
        ceilings=Ceilings(
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_model_len=sizes.max_model_len,
        ),
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_cache_usage=scheduler.used_blocks() / scheduler.capacity,
        kv_cache_tokens=core.kv_tokens,
        watchdog_trips=governed.trips,
        longest_step_seconds=core.statistics.longest_seconds,
        local_bias=None if math.isnan(governed.budgeter.bias) else governed.budgeter.bias,
        tokens_per_decode=sizes.tokens_per_decode,
        steps=step_sums(core.statistics.sums),
    )
