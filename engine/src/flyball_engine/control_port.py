"""The control port's protocol, for its clients: what is sent, and what an answer says. Pure.

The operator, `flyball-bench` and the demo reach the port in ways of their own. Answers come from pods and are
untrusted. Fields that only a newer plugin knows are passed over.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from flyball_engine.contract import Batching, ErrorBody, Generation, QueueLimits, ReadBack, Setpoint
from flyball_engine.signing import Signer

#: Parts of a setpoint that say nothing as they are.
_SILENT: Final = {"batching": Batching(), "queue": QueueLimits()}


def body_of(setpoint: Setpoint) -> bytes:
    """A setpoint as it is signed and sent.

    An engine may be older than who writes to it, and refuses fields it does not know: only what says something is sent.
    """
    unused: dict[str, Any] = {name: True for name, silent in _SILENT.items() if getattr(setpoint, name) == silent}
    if setpoint.step is not None and not setpoint.step.model.d:
        unused["step"] = {"model": {"d"}}
    if classless := {at: {"of_class"} for at, one in enumerate(setpoint.objectives) if not one.of_class}:
        unused["objectives"] = classless
    return setpoint.model_dump_json(exclude_none=True, exclude=unused).encode()


class ForeignAnswerError(Exception):
    """What answered does not speak the contract."""


def signed(setpoint: Setpoint, signer: Signer, *, now: float) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a write, at `now` in Unix seconds."""
    body = body_of(setpoint)
    return body, headers_of(body, signer, service=setpoint.service, now=now)


def headers_of(body: bytes, signer: Signer, *, service: str, now: float) -> dict[str, str]:
    """Headers of a write of any body to an engine of `service`, at `now` in Unix seconds."""
    token = signer.token(body, service=service, now=now)
    return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}


def answer_of(status: int, body: bytes) -> ReadBack | ErrorBody:
    """A read-back, or the refusal. Raises ForeignAnswerError."""
    if status == 200:
        return read_back_of(body)
    try:
        return ErrorBody.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise ForeignAnswerError(f"HTTP {status} without a reason of the contract") from error


def read_back_of(body: bytes | str) -> ReadBack:
    """A read-back. Raises ForeignAnswerError."""
    try:
        return ReadBack.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ForeignAnswerError(
            f"no read-back: {error.error_count()} fields are wrong, first: {field}: {first['msg']}"
        ) from error


def unconfirmed(read_back: ReadBack, wanted: Generation) -> str | None:
    """Which cores do not apply exactly this generation, in words; None if all do."""
    if read_back.confirmed(wanted):
        return None
    if not read_back.cores:
        return "no engine core answers, so none has confirmed the setpoint"
    late = sorted({*read_back.unknown, *(core.engine for core in read_back.cores if core.applied != wanted)})
    which = f"engine core {late[0]} has" if len(late) == 1 else f"engine cores {', '.join(map(str, late))} have"
    return f"{which} not confirmed the setpoint"
