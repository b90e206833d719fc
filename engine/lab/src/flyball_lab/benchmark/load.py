"""The line to the load generator: a process of the Python that has vLLM, told over standard input what to make."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from flyball_lab.benchmark.errors import GeneratorError, OptionError, why
from flyball_lab.benchmark.interrupts import held_back
from flyball_lab.benchmark.log import Log
from flyball_lab.benchmark.writing import write_all

GENERATOR: Final = Path(__file__).with_name("generator.py")
#: Importing vLLM on a busy machine.
START_SECONDS: Final = 300.0
PREPARE_SECONDS: Final = 300.0
END_SECONDS: Final = 10.0
#: For who is asked to end by a signal.
TERMINATE_SECONDS: Final = 2.0
#: A run's result is one line, with every gap between two tokens.
LINE_BYTES: Final = 256 * 2**20
#: How often whoever waits may do something else.
TICK_SECONDS: Final = 0.1

Tick = Callable[[], None]


class GeneratorProcess:
    """The generator's process; ends with this object's `close`, or when this process is gone."""

    def __init__(self, process: subprocess.Popen[bytes], log: Log) -> None:
        self._process = process
        self._log = log
        self._up = False
        self._read = bytearray()
        self._runs = 0
        self._selector = selectors.DefaultSelector()
        if process.stdout is None or process.stdin is None or process.stderr is None:
            raise GeneratorError("the generator's pipes were not opened")
        log.follow(process.stderr)
        self._answers, self._orders = process.stdout, process.stdin
        self._selector.register(self._answers, selectors.EVENT_READ)

    @classmethod
    def start(cls, python: str, log: Path, *, tick: Tick) -> Self:
        """Start it and wait until vLLM is imported. Raises OptionError if that Python has none; FileError."""
        accepted = "a Python interpreter that has vLLM"
        found = shutil.which(python)
        if found is None:
            raise OptionError("--python", f"{python!r} is no program", accepted)
        environment = {"TOKENIZERS_PARALLELISM": "false", **os.environ}
        said = Log(log)
        load: Self | None = None
        try:
            with held_back():
                # -P: this folder holds modules that are named like the standard library's.
                process = subprocess.Popen(
                    [found, "-P", str(GENERATOR)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this process, which then closes the line
                )
                load = cls(process, said)
            load._order({"hello": True})
            load._expect("up", seconds=START_SECONDS, tick=tick)
        except BaseException as error:
            if load is not None:
                load.close()
            else:
                said.close()
            if load is None and isinstance(error, OSError):
                raise OptionError("--python", f"{found}: {why(error)}", accepted) from error
            if isinstance(error, GeneratorError):
                raise OptionError(
                    "--python", f"{found} does not run vLLM's load generator: {error}", accepted
                ) from error
            raise
        load._up = True
        return load

    @property
    def session(self) -> int:
        """The session of all its processes."""
        return self._process.pid

    def run(self, arguments: Sequence[str], *, seconds: float, started: Tick, tick: Tick) -> Mapping[str, Any]:
        """Make one run of vLLM's benchmark and return its stream; as `run_streams`."""
        stream: dict[str, Any] = self.run_streams(
            {"all": list(arguments)}, seconds=seconds, started=started, tick=tick
        )["all"]
        return stream

    def run_streams(
        self, streams: Mapping[str, Any], *, seconds: float, started: Tick, tick: Tick
    ) -> Mapping[str, Any]:
        """Make one run of streams side by side, each as `generator.stream` takes it; return what it says, by name.

        `seconds` bounds it. `started` is called when it starts. After a run that `tick` ended by raising there is none.
        Raises GeneratorError.
        """
        self._runs += 1
        name = str(self._runs)
        self._order({"prepare": name, "streams": streams})
        self._expect("prepared", seconds=PREPARE_SECONDS, tick=tick)
        self._order({"start": name})
        self._expect("started", seconds=END_SECONDS, tick=tick)
        started()
        results: dict[str, Any] = self._expect("finished", seconds=seconds, tick=tick)["streams"]
        return results

    def close(self) -> None:
        """End it, and the requests it has under way."""
        self._selector.close()
        self._orders.close()
        # It reads no end of its orders while it imports vLLM, and has nothing under way then.
        if not (self._up and self._ends(END_SECONDS)) and not self._ends(TERMINATE_SECONDS, signal.SIGTERM):
            self._ends(None, signal.SIGKILL)
        self._answers.close()
        self._log.close()

    def _ends(self, seconds: float | None, by: signal.Signals | None = None) -> bool:
        """Whether it does within these seconds; the signal is for all its processes, which are a group."""
        if by is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, by)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _order(self, message: Mapping[str, Any]) -> None:
        try:
            write_all(self._orders, json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._gone() from error

    def _expect(self, event: str, *, seconds: float, tick: Tick) -> dict[str, Any]:
        line = self._line(event, seconds=seconds, tick=tick)
        try:
            message: dict[str, Any] = json.loads(line)
            told = message["event"]
        except (ValueError, KeyError, TypeError) as error:
            raise GeneratorError(f"{line[:100].decode(errors='replace')!r} is no answer of it") from error
        if told != event:
            raise GeneratorError(f"the load generator says {told!r} instead of {event!r}: {self._log.last()}")
        return message

    def _line(self, event: str, *, seconds: float, tick: Tick) -> bytes:
        end = time.monotonic() + seconds
        while (newline := self._read.find(b"\n")) < 0:
            if time.monotonic() > end:
                raise GeneratorError(f"the load generator has not {event} within {seconds:.0f} s (--timeout)")
            if self._selector.select(TICK_SECONDS):
                received = os.read(self._answers.fileno(), 1 << 16)
                if not received:
                    raise self._gone()
                self._read += received
                if len(self._read) > LINE_BYTES:
                    raise GeneratorError(f"a result of over {LINE_BYTES // 2**20} MB; ask for fewer --requests")
            tick()
        line = bytes(self._read[:newline])
        del self._read[: newline + 1]
        return line

    def _gone(self) -> GeneratorError:
        return GeneratorError(f"the load generator ended: {self._log.last()}")
