"""A vLLM plugin for `hack/bench` alone: times what Flyball adds to each step, and writes every step to a file.

The governed scheduler is a subclass of vLLM's. Two further classes go around it, one below and one above: what a method
takes above less what it takes below is Flyball's own time, whatever it consists of. A step lasts as `StepStatistics`
says: from its schedule, or the update before it if that ended later, to its own update.

Imported by vLLM's processes, and by the bench for the format of the file, `FLYBALL_BENCH_STEPS`.
"""

from __future__ import annotations

import functools
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "FLYBALL_BENCH_STEPS"
_FORMAT: Final = struct.Struct("<5d2q")
_METHODS: Final = ("schedule", "add_request", "update_from_output", "finish_requests")


@dataclass(frozen=True)
class TimedStep:
    """One step that processed tokens.

    `began`: monotonic seconds at which it was scheduled; `ended` at which its outputs were processed. `seconds`: its
    duration. `added`: seconds that Flyball took in it, and between it and the one before; `worked`: those of them in
    which it had the processor. `tokens` it processed for so many `requests`.
    """

    began: float
    ended: float
    seconds: float
    added: float
    worked: float
    tokens: int
    requests: int

    @property
    def mixed(self) -> bool:
        """Whether it processed a prompt, too: a decode is one token without speculation."""
        return self.tokens > self.requests


def read_steps(path: Path, *, since: int = 0) -> list[TimedStep]:
    """The steps in a file from the byte `since` on; the last one may still be on its way."""
    with path.open("rb") as file:
        file.seek(since)
        data = file.read()
    whole = len(data) - len(data) % _FORMAT.size
    return [TimedStep(*fields) for fields in _FORMAT.iter_unpack(data[:whole])]


class _Account:
    """What the upper class took, less what the lower one took, by the clock and on the processor."""

    def __init__(self) -> None:
        self.clock = self.processor = 0.0

    def add(self, clock: float, processor: float) -> None:
        """So much more; of the lower class it is negative."""
        self.clock += clock
        self.processor += processor

    def close(self) -> tuple[float, float]:
        """What there is, and begin anew."""
        closed = self.clock, self.processor
        self.clock = self.processor = 0.0
        return closed


class _StepLog:
    """Where the two classes of one scheduler keep their times."""

    def __init__(self, path: Path) -> None:
        self.ours = _Account()
        # For as long as the process lives; a step is one write of its own.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._began: dict[int, float] = {}
        self._last_end = 0.0

    def scheduled(self, output: Any, began: float) -> None:
        """A step was planned."""
        if output.total_num_scheduled_tokens:
            self._began[id(output)] = began

    def updated(self, output: Any) -> None:
        """Its outputs were processed."""
        now, began = time.monotonic(), self._began.pop(id(output), None)
        if began is None:
            return
        added, worked = self.ours.close()
        seconds = now - max(began, self._last_end)
        tokens, requests = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
        os.write(self._file, _FORMAT.pack(began, now, seconds, added, worked, tokens, requests))
        self._last_end = time.monotonic()


def around(base: type[Any], *, above: bool, logs: Callable[[Any], _StepLog]) -> type[Any]:
    """A subclass whose methods are the base's, timed."""
    timed = _timed_above if above else _timed_below
    return type(base.__name__, (base,), {name: timed(getattr(base, name), name, logs) for name in _METHODS})


def _timed_above(method: Callable[..., Any], name: str, logs: Callable[[Any], _StepLog]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        log, at, began, worked = logs(self), time.monotonic(), time.perf_counter(), time.thread_time()
        result = method(self, *args, **kwargs)
        log.ours.add(time.perf_counter() - began, time.thread_time() - worked)
        if name == "schedule":
            log.scheduled(result, at)
        elif name == "update_from_output":
            log.updated(args[0] if args else kwargs["scheduler_output"])
        return result

    return call


def _timed_below(method: Callable[..., Any], _: str, logs: Callable[[Any], _StepLog]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # First and last are the clocks: what this does beside them would count as Flyball's.
        began, worked = time.perf_counter(), time.thread_time()
        ours = logs(self).ours
        result = method(self, *args, **kwargs)
        ours.add(began - time.perf_counter(), worked - time.thread_time())
        return result

    return call


def register() -> None:
    """Entry point `vllm.general_plugins`: have Flyball's plugin make its class between two timed ones."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    from flyball_engine.vllm import plugin  # noqa: PLC0415 – the bench itself needs the format alone

    governed: Any = vars(plugin)["governed_class"]
    if hasattr(governed, "flyball_bench"):
        return
    logs = StepLogs(Path(path))

    @functools.cache
    def timed_class(base: type[Any]) -> type[Any]:
        return around(governed(around(base, above=False, logs=logs)), above=True, logs=logs)

    timed_class.flyball_bench = True  # type: ignore[attr-defined] # a mark: vLLM registers several times
    plugin.governed_class = timed_class  # the plugin looks it up when vLLM asks for a class


class StepLogs:
    """One log per scheduler; a process has one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._logs: dict[int, _StepLog] = {}

    def __call__(self, scheduler: Any) -> _StepLog:
        """The log of a scheduler."""
        log = self._logs.get(id(scheduler))
        if log is None:
            log = self._logs[id(scheduler)] = _StepLog(self._path)
        return log
