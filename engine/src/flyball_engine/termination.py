"""The termination message of a container: what Kubernetes shows of a container that ended, and the operator reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flyball_engine.contract import Env

TERMINATION_LOG: Final = "/dev/termination-log"
#: Kubernetes keeps this much of a termination message.
TERMINATION_BYTES: Final = 4096


def write_termination_message(message: str, variables: Mapping[str, str]) -> str | None:
    """Leave the message where Kubernetes looks for it. Returns why it could not be written, None if it was.

    Nothing is written outside a pod, where /dev is no place for files of ours.
    """
    log = variables.get(Env.TERMINATION_LOG) or TERMINATION_LOG
    if log == TERMINATION_LOG and not Path(log).exists():
        return None
    try:
        Path(log).write_bytes(message.encode()[:TERMINATION_BYTES])
    except OSError as error:
        return f"cannot write {log}: {error}"
    return None
