"""Batch limits of a status in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final = {
    "maxNumActiveSeqs": "requests at once",
    "maxNumScheduledTokens": "tokens in a step",
    "longPrefillTokenThreshold": "tokens of one prompt in a step",
    "stepBudget": "time of a step",
    "firstTokenDeadline": "the deadline after which requests are refused",
    "onTimeDeadline": "the deadline by which requests are ordered",
    "queuedTokens": "prompt tokens that may wait",
}

#: What moves before the model of a step's time is trusted, for a sentence on limits that stay.
OVERLOAD_EXCEPTION: Final = "the time of a step, the order and the deadline follow an overload"


def limits_in_words(setpoint: Mapping[str, Any]) -> str:
    """The limits of a setpoint as the API spells it, for a sentence; what nobody has set yet is said so."""
    parts = []
    if (requests := setpoint.get("maxNumActiveSeqs")) is not None:
        parts.append(f"{requests} requests at once")
    if (tokens := setpoint.get("maxNumScheduledTokens")) is not None:
        parts.append(f"{tokens} tokens in a step")
    if budget := setpoint.get("stepBudget"):
        parts.append(f"steps of {budget}")
    return ", ".join(parts) or "none set yet, pods run at the upper bounds"


def change_in_words(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What changed between two setpoints, for a sentence."""
    parts = [
        f"{words} from {before.get(field, 'none')} to {after.get(field, 'none')}"
        for field, words in _WORDS.items()
        if before.get(field) != after.get(field)
    ]
    return ", ".join(parts) or "no limit"
