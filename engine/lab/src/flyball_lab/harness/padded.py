"""A padded engine before a model that only counts, and rows for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flyball_engine.batching.outcomes import RequestLedger
from flyball_engine.knobs import Dynamic
from flyball_lab.openai.reply import ended
from flyball_lab.padded.batch import Batch
from flyball_lab.padded.bodies import AnyBody, PaddedCompletion
from flyball_lab.padded.engine import PaddedConfig, PaddedEngine
from flyball_lab.padded.requests import Row, Sampling, Text

END = 0
VOCABULARY = 1000
CONTEXT = 512


def read(tokens: Sequence[int]) -> str:
    """Each token is a word; the end is none."""
    return "".join(f" {token}" for token in tokens if token != END)


class Counter:
    """A model that answers a prompt with the numbers after its last one; 999 is followed by the end.

    A step takes `seconds`; held back, it makes one only when it is let. `batches` are those it was given, each as its
    prompts' lengths.
    """

    version = "counter"
    max_model_len = CONTEXT
    vocabulary = VOCABULARY
    ends = frozenset({END})

    def __init__(self, *, held: bool = False, seconds: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.breaks = False
        self._steps = threading.Semaphore(0)
        self._held = held
        self._seconds = seconds

    def let(self, steps: int = 1) -> None:
        """Let it make so many steps."""
        self._steps.release(steps)

    def let_go(self) -> None:
        """Hold it back no more."""
        self._held = False
        self._steps.release()

    def of_text(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def of_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [token for message in messages for token in self.of_text(message["content"])]

    def text(self, tokens: Sequence[int]) -> str:
        return read(tokens)

    def run(self, batch: Batch) -> None:
        self.batches.append([row.prompt_tokens for row in batch.rows])
        last = [row.prompt[-1] for row in batch.rows]
        going = True
        while going:
            while self._held and not self._steps.acquire(timeout=0.01):
                if all(row.left for row in batch.rows):
                    break
            if self.breaks:
                raise MemoryError("too large")
            time.sleep(self._seconds)
            last = [(token + 1) % VOCABULARY for token in last]
            going = not all(batch.stepped(last))


def a_row(
    number: int = 1, *, prompt: int = 4, most: int = 8, arrival: float = 0.0, priority: int = 0, **sampling: Any
) -> Row:
    """A sequence whose prompt has so many tokens, the last of them 7."""
    ledger = RequestLedger()
    return Row(
        number=number,
        arrival=arrival,
        prompt=[7] * prompt,
        most=most,
        sampling=Sampling(**sampling),
        text=Text(read),
        counted=ledger.started(ledger.opened(arrival)),
        priority=priority,
    )


def a_wish(prompt: str | Sequence[int] = "7", tokens: int = 4, **more: Any) -> PaddedCompletion:
    """A completion of so many tokens."""
    fields = {"prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": tokens}
    return PaddedCompletion.model_validate(fields | more)


@asynccontextmanager
async def an_engine(
    folder: Path,
    model: Counter,
    *,
    batch: int = 4,
    delay: float = 0.0,
    rows: int = 8,
    queue: int = 64,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[PaddedEngine]:
    """An engine that is driven until the end."""
    config = PaddedConfig(max_num_seqs=rows, start=Dynamic(batch_size=batch, max_delay_seconds=delay), max_queue=queue)
    engine = PaddedEngine(model, config, folder, clock=clock)
    driving = asyncio.create_task(engine.drive())
    try:
        yield engine
    finally:
        driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await driving


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what nothing announces."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 – nothing tells of it
            await asyncio.sleep(0.005)


async def answered(engine: PaddedEngine, *bodies: AnyBody) -> list[list[Row]]:
    """All of these at once, to their ends."""
    rows = list(await asyncio.gather(*(engine.submit(body) for body in bodies)))
    await until(lambda: all(ended(row) for each in rows for row in each))
    return rows
