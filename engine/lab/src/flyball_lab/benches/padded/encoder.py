"""An encoder under load, in a process of its own: `EncoderProcess` writes a load as a line of JSON, `serve` answers.

No HTTP on either side: what is compared are the engines, and a front end would cost both the same. Latency counts from
the time at which an input was due, whatever the process did then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol, TextIO

from flyball_lab.benches.padded.batches import computed_tokens, next_batch

Vector = Sequence[float]
#: The first line of a process that is ready.
READY: Final = "ready"


class Encoder(Protocol):
    """Makes vectors of prompts. `computed`: tokens so far, padding among them."""

    computed: int

    async def embed(self, prompt: Sequence[int]) -> Vector:
        """The vector of a prompt, given by its token ids."""


@dataclass(frozen=True, kw_only=True)
class EncoderLoad:
    """Prompts by their token ids, and when each is due, in seconds from the start. `vectors`: whether they are told."""

    prompts: Sequence[Sequence[int]]
    at: Sequence[float]
    vectors: bool = False

    @property
    def tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))


@dataclass(frozen=True, kw_only=True)
class EncoderRun:
    """What came of a load: seconds to the last vector, and to each from when it was due; tokens that were computed."""

    seconds: float
    latencies: Sequence[float]
    computed: int
    vectors: Sequence[Vector] = ()


class SortedBatches:
    """An encoder that runs padded batches of those that wait, one after another, on a thread."""

    def __init__(self, run: Callable[[Sequence[Sequence[int]]], Sequence[Vector]], *, budget: int) -> None:
        self.computed = 0
        self._run = run
        self._budget = budget
        self._waiting: list[tuple[Sequence[int], asyncio.Future[Vector]]] = []
        self._arrived = asyncio.Event()

    async def embed(self, prompt: Sequence[int]) -> Vector:
        """The vector of a prompt; raises what its batch raised."""
        vector: asyncio.Future[Vector] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, vector))
        self._arrived.set()
        return await vector

    async def run_batches(self) -> None:
        """Run them until it is cancelled."""
        while True:
            await self._arrived.wait()
            await self._run_next()

    async def _run_next(self) -> None:
        places = next_batch([len(prompt) for prompt, _ in self._waiting], budget=self._budget)
        members = [self._waiting[place] for place in places]
        for place in sorted(places, reverse=True):
            del self._waiting[place]
        if not self._waiting:
            self._arrived.clear()
        prompts = [prompt for prompt, _ in members]
        try:
            vectors = await asyncio.to_thread(self._run, prompts)
        except Exception as error:  # noqa: BLE001 – it is told to those who wait for it
            for _, vector in members:
                vector.set_exception(error)
            return
        self.computed += computed_tokens([len(prompt) for prompt in prompts])
        for (_, vector), found in zip(members, vectors, strict=True):
            vector.set_result(found)


async def play(encoder: Encoder, load: EncoderLoad) -> EncoderRun:
    """Have each prompt embedded when it is due, whatever became of the others."""
    before, began = encoder.computed, time.monotonic()

    async def one(prompt: Sequence[int], at: float) -> tuple[float, Vector]:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        vector = await encoder.embed(prompt)
        return time.monotonic() - began - at, vector

    answers = await asyncio.gather(*(one(prompt, at) for prompt, at in zip(load.prompts, load.at, strict=True)))
    return EncoderRun(
        seconds=time.monotonic() - began,
        latencies=[latency for latency, _ in answers],
        computed=encoder.computed - before,
        vectors=[vector for _, vector in answers] if load.vectors else [],
    )


def own_output() -> TextIO:
    """Standard output for our lines alone: whatever others print from now on goes to standard error."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


async def serve(encoder: Encoder, output: TextIO) -> None:
    """Say that it is ready, then play what each line of standard input says, until there is none."""
    print(READY, file=output, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        run = await play(encoder, EncoderLoad(**json.loads(line)))
        print(json.dumps(asdict(run)), file=output, flush=True)


class EncoderProcess:
    """The other side of `serve`. Every method raises RuntimeError, with the end of the log, if the process ended."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def expect_ready(self) -> None:
        """Wait until it says so."""
        said = self._line()
        if said != READY:
            raise RuntimeError(f"expected {READY!r}, got {said!r}: {self._tail()}")

    def play(self, load: EncoderLoad) -> EncoderRun:
        """Have it play a load."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # whoever reads its answer learns why
            self._process.stdin.write(json.dumps(asdict(load)) + "\n")
            self._process.stdin.flush()
        return EncoderRun(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line.rstrip("\n")
        raise RuntimeError(f"an encoder's process ended with {self._process.wait(timeout=60)}: {self._tail()}")

    def _tail(self, lines: int = 40) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[EncoderProcess]:
    """Start one, with what it prints in `log`; it ends with the block, and all that it started."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield EncoderProcess(process, log)
        finally:
            # Its engine core may be there when it is gone.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # what it never read
                process.stdin.close()
