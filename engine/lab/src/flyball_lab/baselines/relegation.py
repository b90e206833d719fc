"""Late ones last: first come, first served, but who cannot be in time any more is served behind all others.

Nobody is given up for others: a long prompt that can be in time by itself keeps its place, though many behind it are
late by that.
"""

from __future__ import annotations

from math import inf

from flyball_engine.batching.judgement import JUDGED_IN_A_STEP
from flyball_engine.batching.on_time import OnTimeOrder
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_lab.simulator.prompt_order import PromptOrder
from flyball_lab.simulator.requests import Request


class Relegation(PromptOrder):
    """In place of a core's order of prompts; deadlines are as long for all, so theirs is the order of arrival."""

    def new_order(self, *, late_share: float) -> OnTimeOrder[Request]:
        """One that judges each request by itself."""
        return _Relegated(late_share=late_share)


class _Relegated(OnTimeOrder[Request]):
    def judge(self, rate: PrefillRate, now: float, most: int = JUDGED_IN_A_STEP) -> None:  # noqa: ARG002
        """All of them, whatever it costs."""
        late = [
            pending
            for pending in self.in_order()
            if pending.on_time and now + rate.seconds(pending.tokens, pending.attention) > pending.deadline
        ]
        for pending in late:
            self.add(
                pending.request,
                arrived=pending.arrived,
                deadline=inf,
                tokens=pending.tokens,
                attention=pending.attention,
            )
