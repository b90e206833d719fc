"""The step-token budgeter, Flyball's reflex: the most prefill tokens whose predicted time fits into a step's budget.

The tuner pushes a budget and a step-time model every few seconds; the running batch changes every few milliseconds. So
the engine itself fits each step into the budget: running decodes come first, what time they leave goes to prompts, in
the order vLLM serves them. The prediction is multiplied by a local bias, the ratio of what steps took to what the model
says. It covers a slow pod, a throttled device and a noisy neighbour, and stays when a new model is pushed. Steps with a
prompt have a bias of their own. A budget is for these, and a model that is right about decodes may be wrong about
prompts. The next step is fitted by the last few. What takes many steps, as a prompt that waits, is predicted by more.

Pure: imports only the standard library, the contract, the limits and the step-time model.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.batching.step_statistics import Step
from flyball_engine.contract import StepBudget
from flyball_engine.model import StepModel

#: Waiting prompts whose lengths are looked at before a step; those behind are taken as one long prompt after as much
#: context.
LOOK_AHEAD: Final = 8
#: Weight of one step in the local bias once it has settled, found in simulation: prompts wait for many steps.
BIAS_WEIGHT: Final = 0.04
#: Its weight in the bias that the next step is fitted by. A time per token is a mean over an answer. So what slows
#: steps down for less time than an answer takes must be seen within a few of them. Beside a neighbour that slows the
#: engine down by 40 % now and then, 95 % of answers of 16 tokens keep their time per token; with 0.04 it would be 75 %
#: (`tokens_kept` in the bench of the step budget). The price is gaps: where single steps scatter by 15 %, the 99th
#: percentile is 3 % longer.
STEP_BIAS_WEIGHT: Final = 0.3
#: The range that both are kept in, and each step in them: a stall counts as a step that takes three times as long.
BIAS_RANGE: Final = (0.5, 3.0)


class Prompt(NamedTuple):
    """A prompt to be processed: tokens `remaining`, after `context` tokens that are in the KV cache already."""

    remaining: int
    context: int


class Queue(NamedTuple):
    """What a step may serve, in vLLM's order: `decodes`, of `tokens_per_decode` each, and prompts.

    `prefilling` have begun, `waiting` may join; there may be `more` of those. `indivisible`: the longest part of a
    prompt that goes into a step whole, 0 if none. `kv_tokens`: those of the KV cache that the decodes read.
    """

    decodes: int
    tokens_per_decode: int = 1
    prefilling: Sequence[Prompt] = ()
    waiting: Sequence[Prompt] = ()
    more: bool = False
    indivisible: int = 0
    kv_tokens: float = 0.0

    @property
    def decode_tokens(self) -> int:
        """Tokens that the running decodes take."""
        return self.decodes * self.tokens_per_decode

    @property
    def most_tokens(self) -> float:
        """Tokens of a step that leaves nothing; infinite where nobody looked at all that waits."""
        if self.more:
            return math.inf
        prompts = (*self.prefilling, *self.waiting)
        return self.decode_tokens + sum(prompt.remaining for prompt in prompts)


class _Ratio:
    """What steps of one kind take over what the model says: a mean of the first steps, then a moving average."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._mean = 0.0
        self._steps = 0

    def observe(self, ratio: float) -> None:
        """A step took so many times what was predicted."""
        self._steps += 1
        self._mean += max(self._weight, 1 / self._steps) * (ratio - self._mean)

    def beside(self, guess: float) -> float:
        """The ratio, where a guess has the weight of one step."""
        return guess + self._steps / (self._steps + 1) * (self._mean - guess)


class _Bias:
    """What steps with a prompt take over what the model says, 1 before the first step.

    While few of them were seen, steps of decodes alone say it, too. `weight`: of the newest step.
    """

    def __init__(self, weight: float) -> None:
        self.value = 1.0
        self._decoding = _Ratio(weight)
        self._mixed = _Ratio(weight)

    def observe(self, ratio: float, *, mixed: bool) -> None:
        """A step took so many times what was predicted; `mixed`: one with a prompt."""
        (self._mixed if mixed else self._decoding).observe(ratio)
        self.value = self._mixed.beside(self._decoding.beside(1.0))


class StepTokenBudgeter:
    """Fits steps into a budget. Its biases outlive the budget and the model: the pod is what it was.

    `bias`: what steps with a prompt take over what the model says, in the mean of some seconds; not a number before the
    first comparison. Prompts that wait are predicted by it, and others are told of it. `holds`: whether steps are
    fitted into a budget: there is one, and its model is trusted. `seconds`: the time a step may take; 0 where steps are
    not fitted. `reads_kv`: whether the time of a step depends on the KV cache that its decodes read.
    """

    def __init__(self) -> None:
        self._bias = _Bias(BIAS_WEIGHT)
        self._step_bias = _Bias(STEP_BIAS_WEIGHT)
        self.bias = math.nan
        self.set_budget(None)

    def set_budget(self, budget: StepBudget | None) -> None:
        """The budget from the next step on; None leaves steps to the limits."""
        self._budget = budget if budget is not None and budget.model.trusted else None
        self._model = None if budget is None else budget.model.step_model()
        # Attention apart, so that it says of no prompts that they take longer than they do.
        self._flat = None if self._model is None else replace(self._model, g=0.0)
        self.holds = self._budget is not None
        self.seconds = 0.0 if self._budget is None else self._budget.seconds
        self.reads_kv = self._model is not None and self._model.d > 0

    def observe(self, step: Step, seconds: float) -> None:
        """A step took `seconds`: move the biases of its kind by their share of the difference."""
        if (predicted := self._predicted(step)) > 0:
            low, high = BIAS_RANGE
            ratio, mixed = min(high, max(low, seconds / predicted)), step.prefill_tokens > 0
            self._bias.observe(ratio, mixed=mixed)
            self._step_bias.observe(ratio, mixed=mixed)
            self.bias = self._bias.value

    @property
    def step_bias(self) -> float:
        """What the next step is expected to take over what the model says: the mean of the last few."""
        return self._step_bias.value

    def expected(self, step: Step) -> float:
        """Seconds that a step will take; 0 without a model."""
        return self._step_bias.value * self._predicted(step)

    def step_tokens(self, queue: Queue, *, least_chunk: int, most: int, graphs: Sequence[int] = ()) -> int:
        """Tokens of the next step, `most` at most; so many where there is no budget, or no prompt to fit into it.

        Never below the decodes and one chunk for the prompt that is served first: `least_chunk` is the engine's own
        least, the budget may ask for more. A step that leaves prompts has a size that suits the engine's `graphs`
        (captured sizes, rising).
        """
        if self._budget is None or self._model is None:
            return most
        if not (queue.prefilling or queue.waiting or queue.more):
            return most
        chunk = max(least_chunk, self._budget.least_prefill_chunk)
        fitting = max(chunk, _fit(self._model, self._budget.seconds / self._step_bias.value, queue))
        tokens = queue.decode_tokens + fitting
        # Those that advance by whole parts have sizes of their own.
        if not queue.indivisible and tokens < queue.most_tokens:
            tokens = rounded_down(tokens, graphs=graphs, least=queue.decode_tokens + chunk)
        return min(most, max(tokens, queue.decode_tokens + queue.indivisible))

    def reach(self, *, decodes: int, decode_tokens: int, least: int, kv_tokens: float) -> float:
        """Prefill tokens of a step that `step_tokens` gives at most, whatever the prompts; infinite without a budget.

        `decode_tokens`: of its `decodes`. `least`: what a prompt needs at least. `kv_tokens`: of the KV cache, that the
        decodes read.
        """
        if self._budget is None or self._flat is None:
            return math.inf
        seconds = self._budget.seconds / self._step_bias.value
        fits = self._flat.largest_chunk(seconds=seconds, tokens=decode_tokens, decodes=decodes, kv_tokens=kv_tokens)
        # Rounding may give a prompt a token more.
        return max(least, self._budget.least_prefill_chunk, (1 + _ROUNDING) * fits + 1)

    def prefill_rate(
        self, *, decodes: int, decode_tokens: int, tokens: int, least_chunk: int, kv_tokens: float = 0.0
    ) -> PrefillRate | None:
        """How fast prompts are processed beside so many decodes; None where steps are not fitted.

        `decode_tokens`: of those decodes. `kv_tokens`: of the KV cache, that they read. `tokens`: of a step, at most.
        """
        if self._budget is None or self._model is None:
            return None
        return prefill_rate(
            self._model,
            budget=self._budget.seconds,
            bias=self._bias.value,
            decodes=decodes,
            decode_tokens=decode_tokens,
            tokens=tokens,
            least_chunk=max(least_chunk, self._budget.least_prefill_chunk),
            kv_tokens=kv_tokens,
        )

    def _predicted(self, step: Step) -> float:
        """What the model says of a step; 0 where there is none."""
        if self._model is None:
            return 0.0
        return self._model.step_seconds(
            tokens=step.tokens,
            decodes=step.decodes,
            prefills=step.prefill_tokens > 0,
            attention=step.prefill_attention,
            kv_tokens=step.kv_tokens,
        )


def prefill_rate(
    model: StepModel,
    *,
    budget: float,
    bias: float,
    decodes: int,
    decode_tokens: int,
    tokens: int,
    least_chunk: int,
    kv_tokens: float = 0.0,
) -> PrefillRate:
    """What a prompt token costs: what a step costs anyway is spread over the chunk that fits into the `budget`.

    What attention costs is told apart. Where the budget bounds the step, it takes the room of tokens, and costs what
    these would. `decode_tokens`: of the step's `decodes`. `kv_tokens`: of the KV cache, that they read. `tokens`: of a
    step, at most. The model's times are multiplied by `bias`.
    """
    idle, _, _ = _full_step(model, budget / bias, _Decodes(), tokens, least_chunk)
    beside = _Decodes(decodes, decode_tokens, kv_tokens)
    per_token, chunk, by_time = _full_step(model, budget / bias, beside, tokens, least_chunk)
    last_token = model.c2 if decode_tokens + chunk > model.kappa else model.c1
    per_attention = bias * model.g * (per_token / last_token if by_time and last_token > 0 else 1.0)
    # A model in which a step costs nothing knows of no batch that slows prompts down.
    of_idle = idle / per_token if per_token > 0 else 1.0
    return PrefillRate(per_token=bias * per_token, per_attention=per_attention, of_idle=of_idle)


class _Decodes(NamedTuple):
    """Decodes of a step: how many, their tokens, and those of the KV cache that they read."""

    number: int = 0
    tokens: int = 0
    kv_tokens: float = 0.0


def _full_step(
    model: StepModel, seconds: float, decodes: _Decodes, tokens: int, least_chunk: int
) -> tuple[float, float, bool]:
    """Seconds per prompt token of a step as full as it may be, its prompt tokens, and whether time bounds them."""
    number, taken, kv_tokens = decodes
    fits = model.largest_chunk(seconds=seconds, tokens=taken, decodes=number, kv_tokens=kv_tokens)
    room = tokens - taken
    chunk = max(1.0, least_chunk, min(fits, room))
    step = model.step_seconds(tokens=taken + chunk, decodes=number, prefills=True, attention=0.0, kv_tokens=kv_tokens)
    return step / chunk, chunk, fits <= room


def _fit(model: StepModel, seconds: float, queue: Queue) -> int:
    """Prefill tokens that fit beside the decodes, the prompts being served in order."""
    decodes, kv_tokens, surely = queue.decodes, queue.kv_tokens, _SURELY * seconds
    prompts = [*queue.prefilling, *queue.waiting]
    tokens, attention = float(queue.decode_tokens), 0.0
    # What a step has that serves so many of the prompts.
    served = [(tokens, attention)]
    for remaining, context in prompts:
        tokens += remaining
        attention += remaining * (context + remaining / 2)
        served.append((tokens, attention))

    def step_seconds(step: tuple[float, float]) -> float:
        return model.step_seconds(
            tokens=step[0], decodes=decodes, prefills=True, attention=step[1], kv_tokens=kv_tokens
        )

    # Each prompt makes the step longer, so most need no look.
    first = bisect_right(served, surely, lo=1, key=step_seconds) - 1
    for (tokens, attention), (remaining, context) in zip(served[first:], _from(queue, prompts, first), strict=False):
        chunk = model.largest_chunk(
            seconds=seconds, tokens=tokens, decodes=decodes, attention=attention, kv_tokens=kv_tokens, context=context
        )
        if chunk < remaining:
            # What a part that cannot be split leaves would go to the next prompt, after a context of its own.
            part = math.floor(chunk)
            part -= part % queue.indivisible if queue.indivisible else 0
            return int(tokens + part) - queue.decode_tokens
    return _ENDLESS if queue.more else int(served[-1][0]) - queue.decode_tokens


def _from(queue: Queue, prompts: Sequence[Prompt], first: int) -> Iterator[Prompt]:
    """The prompts from the `first` on; what nobody looked at comes last, as one long prompt."""
    yield from prompts[first:]
    if queue.more:
        yield Prompt(remaining=_ENDLESS, context=_mean_context(queue.waiting))


def _mean_context(prompts: Sequence[Prompt]) -> int:
    """Tokens before a token of these prompts, in the mean: those behind them are thought to be like them."""
    tokens = sum(prompt.remaining for prompt in prompts)
    return sum(prompt.remaining * prompt.context for prompt in prompts) // tokens if tokens else 0


#: Share of a step's time that may be lost by rounding.
_ROUNDING: Final = 1e-9
#: Share of it up to which a prompt fits in any case: what it leaves is not solved for.
_SURELY: Final = 1 - _ROUNDING
#: Longer than any prompt.
_ENDLESS: Final = 2**31


#: Tokens: the tile of matrix kernels on current GPUs, so that no tile is partly empty. Rounding down to it costs a step
#: beyond the largest graph (512 by default) a fifth of its tokens at most.
EVEN: Final = 128


def rounded_down(tokens: int, *, graphs: Sequence[int], least: int) -> int:
    """The largest good size of a step of at most so many tokens, but never below `least`.

    `graphs`: captured sizes, rising; without any every size is as good.
    """
    if not graphs:
        return tokens
    if tokens > graphs[-1]:
        return max(least, graphs[-1], tokens - tokens % EVEN)
    smaller = bisect_right(graphs, tokens)
    return max(least, graphs[smaller - 1] if smaller else 0)
