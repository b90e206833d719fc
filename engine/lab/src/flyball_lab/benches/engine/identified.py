"""The step-time model of the engine at hand, learnt as the operator does: from its step statistics."""

from __future__ import annotations

import functools
import time
from typing import Final

from flyball_lab.benches.engine.engines import WarmEngines, say
from flyball_lab.benches.engine.load import Ask, closed
from flyball_operator.tuning.estimate.step_time import Fit, StepTimeEstimator, learn
from flyball_operator.tuning.observe.signals import CellKey, PackedSteps, StepWindow, Sums

#: Limits under which the engine is watched, each for a window: steps of all sizes.
TOKENS: Final = (32, 128, 512, 2048)
WINDOW_SECONDS: Final = 3.0
#: The shortest and the longest prompt, and how many streams.
PROMPTS: Final = (50, 2500)
STREAMS: Final = 12


@functools.cache
def identify(engines: WarmEngines) -> Fit:
    """Load the engine with prompts of all lengths, and fit; once for all parts."""
    with engines.apart():
        return _learnt(engines)


def _learnt(engines: WarmEngines) -> Fit:
    step_time = StepTimeEstimator()
    before = _sums(engines)
    for tokens in (*TOKENS, *TOKENS):
        engines.governed.put(limits={"max_num_scheduled_tokens": tokens})
        lengths = (engines.random.randint(*PROMPTS) for _ in iter(int, 1))
        asks = (Ask(engines.prompts.of(length), engines.random.randint(4, 48)) for length in lengths)
        load = closed(engines.governed.server.url, asks, streams=STREAMS, seconds=WINDOW_SECONDS)
        began = time.time()
        engines.clients.send(load)
        after = _sums(engines)
        cells = {key: sums.minus(before.get(key, Sums())) for key, sums in after.items()}
        step_time, before = learn(step_time, StepWindow(start=began, end=time.time(), cells=cells)), after
    engines.governed.put()
    if step_time.fit is None:
        raise RuntimeError("nothing was learnt of this engine's steps")
    say(f"{step_time.fit}")
    return step_time.fit


def _sums(engines: WarmEngines) -> dict[CellKey, Sums]:
    (core,) = engines.governed.control.read().cores
    return PackedSteps.of(core.steps).cells()
