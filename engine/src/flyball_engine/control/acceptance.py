"""Whether a setpoint is accepted: the rules of order, identity and capability, and the status of each refusal.

Pure: imports only the contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from flyball_engine.contract import AnyKnob, Generation, Knob, Refusal, Setpoint

#: HTTP status of each refusal.
STATUS: Final[Mapping[Refusal, int]] = {
    Refusal.BAD_TOKEN: 401,
    Refusal.TOO_LARGE: 413,
    Refusal.INVALID: 422,
    Refusal.OTHER_SERVICE: 409,
    Refusal.STALE_EPOCH: 409,
    Refusal.STALE_GENERATION: 409,
    Refusal.CONFLICT: 409,
    Refusal.UNSUPPORTED: 422,
    Refusal.UNKNOWN: 504,
}


class SetpointRefused(Exception):  # noqa: N818 – a refusal is an answer, not a malfunction
    """A write that is not accepted, with its reason and a message for people."""

    def __init__(self, refusal: Refusal, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.message = message
        self.status = STATUS[refusal] if status is None else status


@dataclass(frozen=True)
class AcceptedSetpoint:
    """An accepted setpoint; `renewal` if it is the one already held, sent again."""

    renewal: bool


def judge(
    *,
    held: Setpoint | None,
    offered: Setpoint,
    service: str,
    unsupported: Mapping[AnyKnob, str],
    ungated: str | None = None,
) -> AcceptedSetpoint:
    """Accept `offered` or raise SetpointRefused. `held` is the newest setpoint accepted, `service` this engine's.

    `unsupported`: knobs that cannot be moved, `ungated`: why requests cannot be refused by a deadline.
    """
    if offered.service != service:
        raise SetpointRefused(
            Refusal.OTHER_SERVICE, f"this engine belongs to service {service!r}, not {offered.service!r}"
        )
    renewal = _in_order(held, offered)
    named = [f"{knob.value}: {unsupported[knob]}" for knob in offered.asks() if knob in unsupported]
    # A step is fitted into its time by its tokens.
    if offered.step is not None and Knob.MAX_NUM_SCHEDULED_TOKENS in unsupported:
        named.append(f"step: {unsupported[Knob.MAX_NUM_SCHEDULED_TOKENS]}")
    if offered.shed is not None and ungated is not None:
        named.append(f"shed: {ungated}")
    if named:
        raise SetpointRefused(Refusal.UNSUPPORTED, "; ".join(named))
    return AcceptedSetpoint(renewal=renewal)


def check_not_overtaken(offered: Setpoint, applied: Generation | None) -> None:
    """Raise SetpointRefused if a core applies a newer setpoint than the one offered."""
    if applied is not None and applied.order() > offered.order():
        _refuse_stale(applied, offered)


def _in_order(held: Setpoint | None, offered: Setpoint) -> bool:
    if held is None or offered.order() > held.order():
        return False
    if offered.order() < held.order():
        _refuse_stale(Generation(epoch=held.epoch, generation=held.generation), offered)
    if offered != held:
        raise SetpointRefused(Refusal.CONFLICT, f"epoch {held.epoch} generation {held.generation} was another setpoint")
    return True


def _refuse_stale(newer: Generation, offered: Setpoint) -> None:
    if offered.epoch < newer.epoch:
        raise SetpointRefused(
            Refusal.STALE_EPOCH, f"epoch {offered.epoch} is older than {newer.epoch}, a newer leader wrote here"
        )
    raise SetpointRefused(
        Refusal.STALE_GENERATION,
        f"generation {offered.generation} of epoch {offered.epoch} is older than {newer.generation}",
    )
