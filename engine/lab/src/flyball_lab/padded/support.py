"""What a padded engine has no way to do, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flyball_engine.contract import AnyKnob, BatchingKnob, Knob, OrderKnob, QueueKnob

_WHOLE_PROMPTS: Final = "a padded batch processes all its prompts whole, in one step"
_QUEUE: Final = "the padded engine's queue is bounded in sequences, as it was started (--max-queue)"

#: Knobs that cannot be moved.
UNSUPPORTED: Final[Mapping[AnyKnob, str]] = {
    Knob.MAX_NUM_SCHEDULED_TOKENS: _WHOLE_PROMPTS,
    Knob.LONG_PREFILL_TOKEN_THRESHOLD: _WHOLE_PROMPTS,
    Knob.NUM_SPECULATIVE_TOKENS: "the padded engine drafts no tokens",
    BatchingKnob.CONTINUOUS: "a padded batch runs to the end of its last row before others begin",
    BatchingKnob.NO_EVICT: "the padded engine's KV cache grows with the batch, and nothing is evicted",
    BatchingKnob.MAX_CONCURRENT_PREFILLS: _WHOLE_PROMPTS,
    QueueKnob.MAX_NUM_QUEUED_REQS: _QUEUE,
    QueueKnob.MAX_NUM_QUEUED_TOKENS: _QUEUE,
    OrderKnob.ON_TIME: _WHOLE_PROMPTS,
    OrderKnob.CLASSES: "the padded engine reads no class of requests",
}
#: Why requests cannot be refused by a deadline.
UNGATED: Final = "the padded engine has no limit on the tokens of a step, which the prediction of a first token needs"
