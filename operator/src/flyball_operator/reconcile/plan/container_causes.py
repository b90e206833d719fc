"""Why containers do not run, from their status: what they wait for, or how they ended.

Secrets are not read: the kubelet says which one is missing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from signal import Signals
from typing import Any, Final

from flyball_engine.launching import EXIT_REFUSED
from flyball_operator.api import names
from flyball_operator.reconcile.plan.cause import Cause, CauseReason, cause

#: Exit code of a container that SIGTERM ended.
_TERMINATED: Final = 143
#: Exit codes beyond it are signals.
_SIGNALLED: Final = 128
#: Of exit code 0. The kubelet keeps no last lines of a container that ends well, so the reason is in the log alone.
_ENDED_WELL: Final = "vLLM ends so when its engine core died, or was told to; kubectl logs --previous says why"

#: An exception as Python ends a traceback with it, behind the prefix that vLLM gives each process's lines.
_EXCEPTION: Final = re.compile(r"(?:^|[)\]] +)((?:\w+\.)*\w*(?:Error|Exception): .+)")

#: A pull that failed because the registry, or the way to it, is away: in the words of container runtimes and of Go.
_REGISTRY_AWAY: Final = re.compile(
    r"connection refused|connection reset|connection timed out|i/o timeout|deadline exceeded|handshake timeout"
    r"|Client\.Timeout|no route to host|network is unreachable|no such host|server misbehaving|name resolution"
    r"|unexpected EOF|: EOF|toomanyrequests|429 Too Many|pull QPS exceeded|unexpected [^:]*status.*: 5\d\d\b"
    r"|\b5\d\d (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out)",
    re.IGNORECASE,
)

_WAITING: Final[Mapping[str, CauseReason]] = {
    "ErrImagePull": CauseReason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": CauseReason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": CauseReason.IMAGE_PULL_FAILED,
    "InvalidImageName": CauseReason.INVALID_IMAGE_NAME,
    "ImageInspectError": CauseReason.IMAGE_PULL_FAILED,
    "RegistryUnavailable": CauseReason.REGISTRY_UNAVAILABLE,
    "CreateContainerConfigError": CauseReason.CONFIG_MISSING,
    "CreateContainerError": CauseReason.CONTAINER_NOT_STARTED,
    "RunContainerError": CauseReason.CONTAINER_NOT_STARTED,
}


def of_container(container: Mapping[str, Any], where: str, *, may_end: bool, pull_error: str) -> Iterator[Cause]:
    """Causes in one container's status. `may_end`: with 0, as init containers do.

    `pull_error`: why its image could not be pulled, where an event says so; a status may say no more than "back-off".
    """
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason = _WAITING.get(waiting.get("reason", ""))
    message = waiting.get("message") or waiting.get("reason", "")
    if reason is CauseReason.IMAGE_PULL_FAILED:
        message = pull_error or message
        reason = CauseReason.REGISTRY_UNAVAILABLE if _REGISTRY_AWAY.search(message) else reason
    if reason is not None:
        yield cause(reason, where, message)
    last = container.get("lastState") or {}
    ended = state.get("terminated") or last.get("terminated")
    if ended and (ended.get("exitCode") or not may_end):
        ours = container.get("name") in (names.CONTAINER_ENGINE, names.CONTAINER_PLUGIN)
        yield _of_end(ended, where, int(container.get("restartCount", 0)), ours=ours)


def _of_end(ended: Mapping[str, Any], where: str, restarts: int, *, ours: bool) -> Cause:
    """`ours`: of the engine or the plugin, whose exit codes have a meaning."""
    code, message = int(ended.get("exitCode", 0)), ended.get("message") or ""
    facts = _facts(ended, code, restarts)
    if code == EXIT_REFUSED and ours:
        return cause(CauseReason.ARGUMENT_REFUSED, where, message or facts)
    if ended.get("reason") == "OOMKilled":
        return cause(CauseReason.OUT_OF_MEMORY, where, f"killed at its memory limit; {facts}")
    if not ours:
        words = _last_words(message) or ended.get("reason", "no reason")
        return cause(CauseReason.CONTAINER_FAILED, where, f"{facts}: {words}")
    if code == _TERMINATED:
        # Not of its own: its last lines, if any, are about something else.
        why = "ended by the kubelet, as one that was not ready within spec.rollout.startupTimeout"
        return cause(CauseReason.NOT_READY_IN_TIME, where, f"{why}; {facts}")
    words = _last_words(message) or (ended.get("reason", "no reason") if code else _ENDED_WELL)
    return cause(CauseReason.ENGINE_FAILED, where, f"{facts}: {words}")


def _facts(ended: Mapping[str, Any], code: int, restarts: int) -> str:
    """When a container ended, how often it was started again, and its exit code, of a signal with its name."""
    moment = f"ended at {ended['finishedAt']}, " if ended.get("finishedAt") else ""
    number = code - _SIGNALLED
    signalled = f" ({Signals(number).name})" if number in set(Signals) else ""
    return f"{moment}{restarts} {'restart' if restarts == 1 else 'restarts'}, exit code {code}{signalled}"


def _last_words(message: str) -> str:
    """The exception a log ends with, and what follows it, without the traceback before; all of it if there is none."""
    lines = message.splitlines()
    for position in reversed(range(len(lines))):
        if found := _EXCEPTION.search(lines[position]):
            return "\n".join((found[1], *lines[position + 1 :]))
    return message
