"""What one engine core is asked for, out of what windows show: lengths, the mix of steps, and how much comes.

Chance must not look like a change, so means are taken over many windows. Pure; seconds and tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import TypedDict

from flyball_engine.contract import StepKind
from flyball_operator.tuning.control_input import Workload
from flyball_operator.tuning.observe.signals import (
    CLOCK_SET_BACK,
    DraftSums,
    PromptSums,
    RequestLoad,
    StepWindow,
    Sums,
)
from flyball_operator.tuning.speculation import DraftShare
from flyball_operator.tuning.tunables import TUNABLES


@dataclass(frozen=True, kw_only=True)
class Recent:
    """Sums over recent windows, of which each counts `kept_per_window` times as much as the next.

    `requests` that finished, with the tokens of their prompts, of the `cached` parts of these, and of their answers
    (`output`); all `steps`, and those of decodes `alone`. A window does not hold the whole of its requests, so
    quotients mean something only over many. `computed`: what steps computed of prompts, None where engines do not
    tell. `samples`: windows at whose end it is known of what running requests hold which share took memory.
    `share_sum`: the sum of these shares. `drafts`: what became of them, by position.
    """

    requests: float = 0.0
    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    steps: Sums = field(default_factory=Sums)
    alone: Sums = field(default_factory=Sums)
    computed: PromptSums | None = None
    samples: float = 0.0
    share_sum: float = 0.0
    drafts: tuple[DraftSums, ...] = ()

    @property
    def token_weighted_prompt(self) -> float | None:
        """Computed tokens of the prompt that a prefill token is in on average; None where engines do not tell."""
        if self.computed is None or min(self.computed.tokens, self.computed.squares) <= 0.0:
            return None
        return self.computed.squares / self.computed.tokens

    @property
    def kv_share(self) -> float | None:
        """Share of what running requests hold that takes memory; None where that is not known."""
        return self.share_sum / self.samples if self.samples > 0.0 else None

    def after(self, load: RequestLoad, steps: StepWindow | None) -> Recent:
        """With a window; one in which nothing happened changes nothing."""
        total, alone = (steps.total(), steps.total(StepKind.DECODE)) if steps is not None else (Sums(), Sums())
        if load.finished <= 0.0 and total.decodes <= 0.0:
            return self
        # No window counts for more than all before it, so that absurd figures are soon forgotten.
        pairs = ((self.requests, load.finished), (self.steps.decodes, total.decodes))
        part = min([1.0, *(old / new for old, new in pairs if old > 0.0 and new > 0.0)])
        samples, share_sum = self._shares_after(load)
        return Recent(
            requests=TUNABLES.kept_per_window * self.requests + part * load.finished,
            prompt=TUNABLES.kept_per_window * self.prompt + part * load.prompt_tokens,
            cached=TUNABLES.kept_per_window * self.cached + part * load.cached_tokens,
            output=TUNABLES.kept_per_window * self.output + part * load.generated_tokens,
            steps=self.steps.times(TUNABLES.kept_per_window).plus(total.times(part)),
            alone=self.alone.times(TUNABLES.kept_per_window).plus(alone.times(part)),
            computed=self._computed_after(steps, part),
            samples=samples,
            share_sum=share_sum,
            drafts=_drafts_after(self.drafts, steps.drafts if steps is not None else ()),
        )

    def _shares_after(self, load: RequestLoad) -> tuple[float, float]:
        """`samples` and `share_sum` with a window; nothing of them where it is not known what takes memory."""
        if load.used_tokens is None:
            return 0.0, 0.0
        samples, share_sum = TUNABLES.kept_per_window * self.samples, TUNABLES.kept_per_window * self.share_sum
        if min(load.held_tokens, load.used_tokens) <= 0.0:
            return samples, share_sum
        # More than all are blocks that are not full, and what is kept for others.
        return samples + 1.0, share_sum + min(1.0, load.used_tokens / load.held_tokens)

    def _computed_after(self, steps: StepWindow | None, part: float) -> PromptSums | None:
        """With a window. One of engines that do not tell, where others did before, leaves nothing to go by."""
        if steps is None:
            return self.computed
        kept, new = self.computed, steps.prompts
        if new is None:
            return None
        if kept is None:
            return PromptSums(tokens=part * new.tokens, squares=part * new.squares)
        return PromptSums(
            tokens=TUNABLES.kept_per_window * kept.tokens + part * new.tokens,
            squares=TUNABLES.kept_per_window * kept.squares + part * new.squares,
        )


class _Means(TypedDict):
    """What of a `Workload` is the same until the next window."""

    prompt: float
    uncached: float
    output: float
    ratio: float
    attention: float
    context: float
    decodes: float
    drafted: float
    made: float
    token_weighted_prompt: float | None
    kv_share: float | None


@dataclass(frozen=True, kw_only=True)
class WorkloadEstimator:
    """What is remembered of windows.

    `recent` was last added to `at`: once per window, since windows overlap. `drafted`: tokens processed for a decode in
    the newest one, `latest`: decodes of a mean step of the fullest core in it. `fullest`: what the fullest core has
    over the mean core, less what chance explains; 1 or more. `prefill_only`: answers end with their first token.
    """

    recent: Recent = Recent()
    drafted: float = 1.0
    latest: float = 0.0
    prefill_only: bool = False
    fullest: float = 1.0
    at: float = float("-inf")

    @property
    def lengths(self) -> bool:
        """Whether a request finished, so that lengths are known."""
        return self.recent.requests > 0.0

    @property
    def known(self) -> bool:
        """Whether lengths and the mix of steps are known, so that there is a workload."""
        return self._means is not None

    @cached_property
    def drafts(self) -> tuple[DraftShare, ...]:
        """What drafts bring, by position, as far as that is known."""
        return _draft_shares(self.recent.drafts)

    def after(
        self,
        load: RequestLoad,
        steps: StepWindow | None,
        *,
        at: float,
        seconds: float,
        cores: int = 1,
        stages: int = 1,
        prefill_only: bool = False,
    ) -> WorkloadEstimator:
        """With a window of so many cores that ended `at` and was so many seconds long.

        `prefill_only`: answers end with their first token. `stages` of the engine's pipeline. With several it is not
        known what takes memory: of what requests hold the engine tells for one step, but what is used is of all steps
        in flight.
        """
        if stages > 1:
            load = replace(load, used_tokens=None)
        alone = steps.total(StepKind.DECODE) if steps is not None else Sums()
        seen = self if prefill_only is self.prefill_only else replace(self, prefill_only=prefill_only)
        if alone.decodes > 0.0:
            seen = replace(seen, drafted=_drafted(alone))
        # Only depths are chosen by it: for services without drafts a tick need not add all steps up once more.
        speculates = steps is not None and bool(steps.drafts or self.recent.drafts)
        if steps is not None and speculates and (total := steps.total()).steps > 0.0:
            seen = replace(seen, latest=total.decodes / total.steps * self.fullest)
        # Far before the last one is no overlap: a clock was set back.
        if self.lengths and -CLOCK_SET_BACK < at - self.at < seconds - 0.5:
            return seen
        # Until one request finished every tick is looked at, and none added to another.
        recent = (self.recent if self.lengths else Recent()).after(load, steps)
        return replace(seen, recent=recent, fullest=_fullest(load, cores), at=at)

    def workload(self, load: RequestLoad, *, cores: int) -> Workload | None:
        """What the fullest core is asked for, None until lengths and steps are known.

        Objectives are of all requests, those in the fullest core too.
        """
        means = self._means
        if means is None or cores < 1:
            return None
        # Means over the cores would size one that does not exist.
        share = self.fullest / cores
        return Workload(arrivals=load.arrivals * share, waiting=load.waiting * share, kv_tokens=load.kv_tokens, **means)

    @cached_property
    def _means(self) -> _Means | None:
        """What of the workload is the same until the next window; None until it is known.

        Reckoned once: every tick asks for it, some several times.
        """
        recent, steps, requests = self.recent, self.recent.steps, self.recent.requests
        # Without a decode nothing is known of what makes the tokens behind the first.
        if requests <= 0.0 or steps.steps <= 0.0 or (steps.decodes <= 0.0 and not self.prefill_only):
            return None
        uncached, output = max(1.0, (recent.prompt - recent.cached) / requests), max(1.0, recent.output / requests)
        drafted = _drafted(recent.alone)
        # A decode makes the tokens of answers but for the first. Where drafts cease it makes one token at once.
        made = 1.0
        if steps.decodes > 0.0:
            made = min(drafted, self.drafted, max(1.0, (recent.output - requests) / steps.decodes))
        return _Means(
            prompt=recent.prompt / requests,
            uncached=uncached,
            output=output,
            ratio=uncached * made / output,
            attention=steps.prefill_attention / max(1.0, steps.prefill_tokens),
            context=steps.kv_tokens / steps.decodes if steps.decodes > 0.0 else 0.0,
            decodes=steps.decodes / steps.steps * self.fullest,
            drafted=drafted,
            made=made,
            token_weighted_prompt=recent.token_weighted_prompt,
            kv_share=recent.kv_share,
        )

    def first_workload(self, load: RequestLoad, *, cores: int) -> Workload | None:
        """Before any request came to its end: prompts are as long as steps show, of answers nothing is known."""
        steps, computed = self.recent.steps, self.recent.token_weighted_prompt
        if steps.decodes <= 0.0:
            return None
        position = steps.prefill_attention / max(1.0, steps.prefill_tokens)
        # What a token's position is beyond the middle of what is computed, the prefix cache had.
        cached = 0.0 if computed is None else max(0.0, position - computed / 2)
        first = replace(self.recent, requests=1.0, prompt=max(1.0, 2.0 * position - cached), cached=cached)
        return replace(self, recent=first).workload(load, cores=cores)


def _drafted(alone: Sums) -> float:
    """Tokens processed for a decode, 1 without speculation.

    Steps of decodes alone tell. What prompts leave of a mixed step's tokens is a small difference of large sums.
    """
    return max(1.0, alone.tokens / alone.decodes) if alone.decodes > 0.0 else 1.0


def _drafts_after(before: tuple[DraftSums, ...], new: tuple[DraftSums, ...]) -> tuple[DraftSums, ...]:
    """What became of drafts, with a window. A position that was not offered in it stays as it was seen last.

    The past counts as much as nine windows like the new one. Where only a step now and then drafts so deep, windows
    have few decodes. Then more of them count: as many as it takes to believe what they say.
    """
    found = []
    for old, now in zip_longest(before, new, fillvalue=DraftSums(0.0, 0.0, 0.0)):
        if now.offered <= 0.0:
            found.append(old)
            continue
        most = max(2.0 * TUNABLES.least_drafts, now.offered / (1.0 - TUNABLES.kept_per_window))
        kept = min(1.0, max(0.0, most - now.offered) / old.offered) if old.offered > 0.0 else 0.0
        found.append(DraftSums(*(kept * past + figure for past, figure in zip(old, now, strict=True))))
    return tuple(found)


def _draft_shares(drafts: tuple[DraftSums, ...]) -> tuple[DraftShare, ...]:
    shares = []
    drafted = accepted = 1.0
    for one in drafts:
        if one.offered < TUNABLES.least_drafts:
            break
        # No position has more than the one before it, but in windows that saw others.
        drafted = min(drafted, one.drafted / one.offered)
        accepted = min(accepted, drafted, one.accepted / one.offered)
        shares.append(DraftShare(drafted, accepted))
    return tuple(shares)


def _fullest(load: RequestLoad, cores: int) -> float:
    """How much more than the mean core the fullest has, less what chance explains; 1 or more.

    Of k cores that are alike the fullest gets √(2 ln k / n) more than the mean, to which n requests come.
    """
    came = load.arrivals * TUNABLES.compared_seconds
    if cores < 2 or came <= 0.0:
        return 1.0
    return max(1.0, min(float(cores), load.uneven) - math.sqrt(2.0 * math.log(cores) * cores / came))
