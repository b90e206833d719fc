"""What one engine core is asked for, out of what windows show: lengths, the mix of steps, and how much comes.

Chance must not look like a change: lengths are means over many requests. Pure; seconds and tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from flyball_engine.contract import StepKind
from flyball_operator.governor.signals import UNEVEN_SECONDS, Load, StepWindow
from flyball_operator.governor.situation import Demand

#: Requests whose lengths the running means remember.
LENGTH_MEMORY: Final = 150.0
#: Fewer tokens processed for a decode than this are no speculation: counters of one scrape are extrapolated each by
#: itself. And more are none either.
LEAST_DRAFTED: Final = 1.2
MOST_DRAFTED: Final = 33.0
#: Share of the newest window in what is drafted: some six, which overlap, are remembered. Fewer decodes say nothing.
DRAFTED_SHARE: Final = 0.15
LEAST_DECODES: Final = 50
#: Share of what is known of decodes that is kept with each window: some ten of them are remembered.
DECODED_KEPT: Final = 0.9
#: Share of the newest window in the scatter of steps, and how many alike scatter.
SCATTER_SHARE: Final = 0.2
LEAST_ALIKE: Final = 2
#: Steps that take less together are no measurement, in seconds.
SHORTEST: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Mean tokens of recent requests: of the prompt, of its uncached part, of the output."""

    prompt: float
    uncached: float
    output: float


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Sums over recent windows: decodes, and the tokens, but for the first ones, of requests that finished in them.

    A window does not hold the whole of its requests: their quotient says what a decode makes only over many.
    """

    decodes: float = 0.0
    tokens: float = 0.0

    def after(self, load: Load, steps: StepWindow) -> Decoded:
        """With a window."""
        return Decoded(
            decodes=DECODED_KEPT * self.decodes + steps.total().decodes,
            tokens=DECODED_KEPT * self.tokens + max(0.0, load.generated_tokens - load.finished),
        )

    def made(self, drafted: float) -> float:
        """Tokens that a decode makes: no more than it has now with all of its drafts."""
        return min(drafted, max(1.0, self.tokens / self.decodes)) if self.decodes > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What recent steps held: prefill tokens per decode, attention per prefill token, decodes of a mean step.

    `context`: tokens of KV cache that a decode reads.
    `drafted`: tokens processed for a decode, a mean over windows, `newest`: in the newest; 1 without speculation.
    """

    ratio: float
    attention: float
    decodes: float
    context: float
    drafted: float
    newest: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is remembered of windows; None what none has shown yet.

    `lengths`, `decoded` and `variance` were last taken in at `at`: once per window,
    since windows overlap. `variance` is of the time of steps alike, as a share of their mean squared. `fullest`: what
    the fullest core has over the mean core, beyond what chance explains; 1 or more.
    """

    lengths: Lengths | None = None
    mix: Mix | None = None
    decoded: Decoded = Decoded()
    variance: float = 0.0
    fullest: float = 1.0
    at: float = float("-inf")

    def after(self, load: Load, steps: StepWindow | None, *, at: float, seconds: float, cores: int = 1) -> Seen:
        """With a window of so many cores that ended `at` and was so many seconds long."""
        mix = _mix(self.mix, steps) if steps is not None else self.mix
        if self.lengths is not None and at - self.at < seconds - 0.5:
            return replace(self, mix=mix)
        lengths = _lengths(self.lengths, load)
        taken = replace(self, lengths=lengths, mix=mix, fullest=_fullest(load, cores), at=at)
        if self.lengths is None or steps is None:
            return taken
        variance = self.variance + SCATTER_SHARE * (_variance(steps) - self.variance)
        return replace(taken, decoded=self.decoded.after(load, steps), variance=variance)

    def demand(self, load: Load, *, at: float, cores: int) -> Demand | None:
        """What the fullest core is asked for, None until lengths and mix are known.

        Objectives are of all requests, those in the fullest core too. `load`: of a window until `at`.
        """
        # Windows overlap, and are taken in once: what the newest shows of a change of mix must not wait for the next.
        lengths, mix = self.lengths if at == self.at else _lengths(self.lengths, load), self.mix
        if lengths is None or mix is None or cores < 1:
            return None
        made = self.decoded.made(min(mix.drafted, mix.newest))
        # Means over the cores would size one that does not exist.
        share = self.fullest / cores
        return Demand(
            arrivals=load.arrivals * share,
            prompt=lengths.prompt,
            uncached=lengths.uncached,
            output=lengths.output,
            ratio=lengths.uncached * made / lengths.output,
            attention=mix.attention,
            context=mix.context,
            decodes=mix.decodes * self.fullest,
            running=load.running * share,
            waiting=load.waiting * share,
            kv_tokens=load.kv_tokens,
            held=load.held_tokens / load.running if load.running > 0 else 0.0,
            drafted=mix.drafted,
            made=made,
            scatter=math.sqrt(self.variance),
        )

    def first_demand(self, load: Load, *, at: float, cores: int) -> Demand | None:
        """Before any request came to its end: prompts are as long as steps show, of answers nothing is known."""
        if self.mix is None:
            return None
        prompt = max(1.0, 2.0 * self.mix.attention)
        guess = replace(self, lengths=Lengths(prompt=prompt, uncached=prompt, output=1.0))
        return guess.demand(load, at=at, cores=cores)


def _lengths(old: Lengths | None, load: Load) -> Lengths | None:
    """Running means over finished requests; a window counts by its number of requests."""
    if load.finished < 1:
        return old
    new = Lengths(
        prompt=load.prompt_tokens / load.finished,
        uncached=max(1.0, (load.prompt_tokens - load.cached_tokens) / load.finished),
        output=max(1.0, load.generated_tokens / load.finished),
    )
    if old is None:
        return new
    share = min(1.0, max(0.1, load.finished / LENGTH_MEMORY))
    return Lengths(
        prompt=old.prompt + share * (new.prompt - old.prompt),
        uncached=old.uncached + share * (new.uncached - old.uncached),
        output=old.output + share * (new.output - old.output),
    )


def _drafted(old: Mix | None, window: StepWindow) -> tuple[float, float]:
    """Tokens processed for a decode, as a mean over windows and in the newest one.

    Steps of decodes alone tell. What prompts leave of the tokens of a mixed step is a small difference of large sums.
    """
    alone = window.total(StepKind.DECODE)
    if alone.decodes < LEAST_DECODES:
        return (1.0, 1.0) if old is None else (old.drafted, old.newest)
    tokens = max(1.0, min(MOST_DRAFTED, alone.tokens / alone.decodes))
    newest = tokens if tokens > LEAST_DRAFTED else 1.0
    return newest if old is None else old.drafted + DRAFTED_SHARE * (newest - old.drafted), newest


def _mix(old: Mix | None, window: StepWindow) -> Mix | None:
    total, mixed = window.total(), window.total(StepKind.MIXED)
    if total.steps < 1 or total.decodes <= 0:
        return old
    attention = mixed.prefill_attention / mixed.prefill_tokens if mixed.prefill_tokens > 0 else 0.0
    drafted, newest = _drafted(old, window)
    return Mix(
        ratio=total.prefill_tokens / total.decodes,
        attention=attention if mixed.prefill_tokens > 0 or old is None else old.attention,
        decodes=total.decodes / total.steps,
        context=total.kv_tokens / total.decodes,
        drafted=drafted,
        newest=newest,
    )


def _variance(window: StepWindow) -> float:
    """Variance of the time of steps of one cell, as a share of their mean squared, in the mean over the steps.

    That of a cell is 1 at most: one step that stood still says nothing of the others.
    """
    cells = [one for one in window.cells.values() if one.steps >= LEAST_ALIKE and one.seconds >= SHORTEST]
    scatter = [one.seconds_squared * one.steps / one.seconds**2 - 1.0 for one in cells]
    steps = sum(one.steps for one in cells)
    return sum(one.steps * min(1.0, max(0.0, each)) for one, each in zip(cells, scatter, strict=True)) / max(1.0, steps)


def _fullest(load: Load, cores: int) -> float:
    """How much more than the mean core the fullest has, as far as that is no chance.

    Of k cores that are alike the fullest gets √(2 ln k / n) more than the mean, to which n requests come. Beyond that
    it is believed, and from twice that on in full.
    """
    came = load.arrivals * UNEVEN_SECONDS
    if cores < 2 or came <= 0.0:
        return 1.0
    chance, excess = math.sqrt(2.0 * math.log(cores) * cores / came), min(float(cores), load.uneven) - 1.0
    return 1.0 + max(0.0, excess) * min(1.0, max(0.0, excess / chance - 1.0))
