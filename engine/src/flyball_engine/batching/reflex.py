"""The reflex: before each step, the most prefill tokens whose predicted time fits into the step budget.

The brain pushes a budget and a step-time model every few seconds; the running batch changes every few milliseconds. So
the engine itself fits each step into the budget: running decodes come first, what time they leave goes to prompts, in
the order vLLM serves them. The prediction is multiplied by a local bias, the ratio of what steps took to what the model
says, which covers a slow pod, a throttled device and a noisy neighbour at once, and stays when a new model is pushed.
Steps with a prompt in them have a bias of their own: it is them that a budget is for, and a model that is right about
decodes may be wrong about prompts.

Pure: imports only the standard library, the contract and the step-time model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.batching.step_statistics import Step
from flyball_engine.contract import StepBudget
from flyball_engine.model import StepModel

#: Waiting prompts whose lengths are looked at before a step; those behind are taken as one long prompt.
LOOK_AHEAD: Final = 8
#: Weight of one step in the local bias once it has settled, and the range it is kept in: design 5, found in simulation.
BIAS_WEIGHT: Final = 0.04
BIAS_RANGE: Final = (0.5, 3.0)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt to be processed: tokens `remaining`, after `context` tokens that are in the KV cache already."""

    remaining: int
    context: int


@dataclass(frozen=True, kw_only=True)
class Queue:
    """What a step may serve, in vLLM's order: `decodes`, of `tokens_per_decode` each, and prompts.

    `prefilling` have begun, `waiting` may join; there may be `more` of those. `decodes_behind`: some decode is served
    after a prompt that has begun. `indivisible`: the longest part of a prompt that goes into a step whole, 0 if none.
    """

    decodes: int
    tokens_per_decode: int = 1
    prefilling: Sequence[Prompt] = ()
    waiting: Sequence[Prompt] = ()
    more: bool = False
    decodes_behind: bool = False
    indivisible: int = 0

    @property
    def decode_tokens(self) -> int:
        """Tokens that the running decodes take."""
        return self.decodes * self.tokens_per_decode


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a step gets: `tokens` in all, and of one prompt at most `threshold`, 0 being no cap."""

    tokens: int
    threshold: int


class _Ratio:
    """What steps of one kind take over what the model says: a mean of the first steps, then a moving average."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._steps = 0

    def observe(self, ratio: float) -> None:
        """A step took so many times what was predicted."""
        low, high = BIAS_RANGE
        # A single step is held to the range, too: a stall of a second says nothing about the next hundred steps.
        ratio = min(high, max(low, ratio))
        self._steps += 1
        self._mean += max(BIAS_WEIGHT, 1 / self._steps) * (ratio - self._mean)

    def beside(self, guess: float) -> float:
        """The ratio, where a guess has the weight of one step."""
        return guess + self._steps / (self._steps + 1) * (self._mean - guess)

    def __bool__(self) -> bool:
        return self._steps > 0


class Reflex:
    """Fits steps into a budget. Its bias outlives the budget and the model: the pod is what it was."""

    def __init__(self) -> None:
        self._decoding = _Ratio()
        self._mixed = _Ratio()
        self._budget: StepBudget | None = None
        self._model: StepModel | None = None

    @property
    def bias(self) -> float:
        """What steps with a prompt take over what the model says; not a number before the first comparison.

        While few of them were seen, steps of decodes alone say it, too.
        """
        return self._mixed.beside(self._decoding.beside(1.0)) if self._mixed or self._decoding else math.nan

    @property
    def holds(self) -> bool:
        """Whether steps are fitted into a budget: there is one, and its model is trusted."""
        return self._budget is not None and self._budget.model.trusted

    @property
    def seconds(self) -> float:
        """The time a step may take; 0 where steps are not fitted."""
        return self._budget.seconds if self._budget is not None and self.holds else 0.0

    def set_budget(self, budget: StepBudget | None) -> None:
        """The budget from the next step on; None leaves steps to the limits."""
        self._budget = budget
        self._model = None if budget is None else budget.model.step_model()

    def observe(self, step: Step, seconds: float) -> None:
        """A step took `seconds`: move the bias of its kind by its share of the difference."""
        if self._model is None:
            return
        predicted = self._model.step_seconds(
            tokens=step.tokens,
            decodes=step.decodes,
            prefills=step.prefill_tokens > 0,
            attention=step.prefill_attention,
        )
        if predicted <= 0:
            return
        (self._mixed if step.prefill_tokens else self._decoding).observe(seconds / predicted)

    def room(self, queue: Queue, *, least_chunk: int, most: Room) -> Room:
        """The room of the next step, within `most`; that alone where steps are not fitted into a budget.

        Never below the decodes and one chunk for each prompt that has begun, or for the first that waits: `least_chunk`
        is the engine's own least, the budget may ask for more.
        """
        if self._budget is None or self._model is None or not self.holds:
            return most
        chunk = max(least_chunk, self._budget.least_prefill_chunk)
        bias = 1.0 if math.isnan(self.bias) else self.bias
        room = _room(self._model, self._budget.seconds / bias, queue, chunk)
        tokens = min(most.tokens, max(room.tokens, queue.decode_tokens + queue.indivisible))
        caps = [cap for cap in (most.threshold, room.threshold) if cap]
        return Room(tokens=tokens, threshold=min(caps, default=0))


def _room(model: StepModel, seconds: float, queue: Queue, chunk: int) -> Room:
    fitting = _fit(model, seconds, queue)
    begun = len(queue.prefilling)
    if fitting >= sum(prompt.remaining for prompt in queue.prefilling):
        return Room(tokens=queue.decode_tokens + max(fitting, chunk), threshold=0)
    if begun > 1 or queue.decodes_behind:
        return _levelled(model, seconds, queue, chunk)
    return Room(tokens=queue.decode_tokens + max(fitting, chunk), threshold=0)


def _fit(model: StepModel, seconds: float, queue: Queue) -> int:
    """Prefill tokens that fit beside the decodes, the prompts being served in order."""
    tokens, attention = float(queue.decode_tokens), 0.0
    prompts = [*queue.prefilling, *queue.waiting]
    if queue.more:
        prompts.append(Prompt(remaining=_ENDLESS, context=0))
    for prompt in prompts:
        chunk = model.largest_chunk(
            seconds=seconds, tokens=tokens, decodes=queue.decodes, attention=attention, context=prompt.context
        )
        served = prompt.remaining if chunk >= prompt.remaining else math.floor(chunk)
        tokens += served
        if served < prompt.remaining:
            break
        attention += served * (prompt.context + served / 2)
    return int(tokens) - queue.decode_tokens


def _levelled(model: StepModel, seconds: float, queue: Queue, chunk: int) -> Room:
    """One cap for all prompts that have begun, so that each advances.

    Nothing else keeps the first off the share of what is served behind it, decodes among them.
    """
    cap = max(chunk, _level(model, seconds, queue))
    served = sum(min(cap, prompt.remaining) for prompt in queue.prefilling)
    return Room(tokens=queue.decode_tokens + served, threshold=cap)


def _level(model: StepModel, seconds: float, queue: Queue) -> int:
    """The largest cap on each prompt that has begun whose step fits: water filling, from the shortest prompt up."""
    ordered = sorted(queue.prefilling, key=lambda prompt: prompt.remaining)
    tokens, attention = float(queue.decode_tokens), 0.0
    for served, prompt in enumerate(ordered):
        rest = ordered[served:]
        share = model.largest_chunk(
            seconds=seconds,
            tokens=tokens,
            decodes=queue.decodes,
            attention=attention,
            prompts=len(rest),
            context=sum(other.context for other in rest),
        )
        if share < prompt.remaining:
            return math.floor(share)
        tokens += prompt.remaining
        attention += prompt.remaining * (prompt.context + prompt.remaining / 2)
    return ordered[-1].remaining


#: Longer than any prompt.
_ENDLESS: Final = 2**31
