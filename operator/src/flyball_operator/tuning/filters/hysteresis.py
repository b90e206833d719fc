"""What stands between the law's wish and the engine: hysteresis and a pace. Every refusal has a reason.

Each change is a setpoint that every pod must confirm, so what noise asks for is not sent. Pure; times in seconds.
"""

from __future__ import annotations

from enum import StrEnum

from flyball_engine.contract import Limits
from flyball_operator.tuning.control_input import ControlOutput
from flyball_operator.tuning.spec import Envelope
from flyball_operator.tuning.tunables import TUNABLES


class HoldReason(StrEnum):
    """Why the limits stay as they are."""

    NOT_OBSERVED = "NotObserved"
    """Signals are missing, stale or partial."""
    IDLE = "Idle"
    """No requests: there is nothing to decide on."""
    LEARNING = "Learning"
    """The step-time model is not trusted yet."""
    GOOD_ENOUGH = "GoodEnough"
    """The change would be within the hysteresis."""
    CHANGED_OFTEN = "ChangedOften"
    """It changed a moment ago, and this change may wait."""
    ROLLED_BACK = "RolledBack"
    """A change was undone; nothing moves until the hold ends."""


def restrain(current: Limits, output: ControlOutput, envelope: Envelope) -> tuple[Limits, HoldReason | None]:
    """The limits that the law wants where they are worth a change; a reason if they are the current ones."""
    seqs, tokens = _given(current, envelope)
    new_seqs = seqs if _near(output.seqs, seqs, TUNABLES.seqs_hysteresis) else output.seqs
    new_tokens = tokens if _near(output.tokens, tokens, TUNABLES.tokens_hysteresis) else output.tokens
    if (new_seqs, new_tokens) == (seqs, tokens):
        return current, HoldReason.GOOD_ENOUGH
    return replace_limits(current, seqs=new_seqs, tokens=new_tokens), None


def clipped(current: Limits, envelope: Envelope) -> Limits:
    """The limits moved inside the envelope."""
    seqs, tokens = _given(current, envelope)
    return replace_limits(current, seqs=envelope.seqs.clip(seqs), tokens=envelope.tokens.clip(tokens))


def replace_limits(limits: Limits, *, seqs: int, tokens: int) -> Limits:
    """The same limits with another S and C."""
    return limits.model_copy(update={"max_num_active_seqs": seqs, "max_num_scheduled_tokens": tokens})


def _given(limits: Limits, envelope: Envelope) -> tuple[int, int]:
    return (
        limits.max_num_active_seqs or envelope.seqs.most,
        limits.max_num_scheduled_tokens or envelope.tokens.most,
    )


def _near(new: float, old: float, share: float) -> bool:
    return abs(new - old) <= share * old
