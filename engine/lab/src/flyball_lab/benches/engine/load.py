"""Load on an OpenAI endpoint, as its clients see it: so many streams at once, or arrivals at times of their own.

vLLM's load generator sends the requests, in a process of its own (`flyball_lab.benchmark.load`).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from flyball_lab.benchmark.errors import GeneratorError
from flyball_lab.benchmark.load import GeneratorProcess
from flyball_lab.harness.vllm_server import MODEL_NAME

#: Where the search for a capacity begins, as shares of what an engine answers that never idles: bursts take part of it,
#: and a short run that nobody waits long in may exceed it. So many rates are tried: within a tenth of the largest.
SEARCHED: Final = (0.25, 1.3)
TRIALS: Final = 4
#: Requests per second of which a closed loop is given enough for its time: several times what the small model answers.
MOST_PER_SECOND: Final = 100


@dataclass(frozen=True)
class Ask:
    """A request: its prompt's token ids, how many tokens it wants, and when it arrives, in seconds from the start."""

    prompt: Sequence[int]
    output: int
    at: float = 0.0


@dataclass(frozen=True)
class RequestResult:
    """What became of it. `first`, `ended`: seconds since it was sent, None: that never came.

    `status`: HTTP's; 0: no answer, -1: an error before one. `tokens`: those it got, if it came to its end.
    """

    status: int = 0
    first: float | None = None
    ended: float | None = None
    tokens: int = 0

    @property
    def refused(self) -> bool:
        """Whether it was turned away at once."""
        return self.status == 503

    def in_time(self, deadline: float) -> bool:
        """Whether its first token came within so many seconds."""
        return self.first is not None and self.first <= deadline


@dataclass(frozen=True)
class Load:
    """Requests to the endpoint at `url`: `streams` at once, none sent after `seconds`; or, without it, as they arrive.

    Clients of an open loop leave `patience` seconds after the last arrival.
    """

    url: str
    asks: Sequence[Ask]
    streams: int | None = None
    seconds: float = math.inf
    patience: float = 0.0

    def order(self) -> dict[str, Any]:
        """What the generator is told."""
        return {
            "url": self.url,
            "model": MODEL_NAME,
            "requests": [(ask.prompt, ask.output, ask.at) for ask in self.asks],
            "streams": self.streams,
            "seconds": None if math.isinf(self.seconds) else self.seconds,
            "patience": self.patience,
        }


@dataclass(frozen=True)
class SentLoad:
    """The results of the requests that were sent, in their order, and after how many seconds the last had ended."""

    results: Sequence[RequestResult]
    seconds: float

    @classmethod
    def of(cls, load: Load, stream: dict[str, Any]) -> SentLoad:
        """What the generator says of a load. Raises RuntimeError if a closed loop had too few requests for its time."""
        results = [
            RequestResult(one["status"], one["ttft"], one["latency"], one["output_tokens"])
            for one in stream["requests"]
        ]
        if stream["duration"] < load.seconds < math.inf:
            if not any(one.status > 0 for one in results):
                raise RuntimeError(f"{load.url} answered none of {len(results)} requests")
            raise RuntimeError(f"{len(results)} requests were too few for {load.seconds:g} s: raise MOST_PER_SECOND")
        return cls(results, stream["duration"])


@dataclass
class Prompts:
    """Prompts of random tokens, no two of them alike unless they share a prefix."""

    random: Random
    shared: list[int] = field(default_factory=list)

    def of(self, tokens: int) -> list[int]:
        """The shared prefix, and so many tokens of its own."""
        return [*self.shared, *(self.random.randrange(100, 8000) for _ in range(tokens))]


def poisson(random: Random, *, rate: float, seconds: float) -> Iterator[float]:
    """Arrivals at so many per second."""
    at = random.expovariate(rate)
    while at < seconds:
        yield at
        at += random.expovariate(rate)


def closed(url: str, asks: Iterable[Ask], *, streams: int, seconds: float = math.inf) -> Load:
    """These, so many at a time, each when one before it has ended; none that would begin after `seconds`.

    With finite `seconds`, `asks` may be endless.
    """
    most = None if math.isinf(seconds) else math.ceil(MOST_PER_SECOND * seconds)
    return Load(url, list(itertools.islice(asks, most)), streams=streams, seconds=seconds)


def open_loop(url: str, asks: Sequence[Ask], *, patience: float) -> Load:
    """Each when it arrives, whatever became of the others; clients leave `patience` seconds after the last."""
    return Load(url, asks, patience=patience)


class Clients:
    """Send loads, one call at a time. Every method raises GeneratorError if the generator is gone."""

    def __init__(self, generator: GeneratorProcess) -> None:
        self._generator = generator
        #: The session of the processes that send.
        self.session = generator.session

    def send(self, load: Load) -> SentLoad:
        """Send one load, and wait until it has ended."""
        return self.send_all(load)[0]

    def send_all(self, *loads: Load, tick: Callable[[], None] = lambda: None) -> list[SentLoad]:
        """Send several at once. What `tick` raises, which is called often, ends the wait, and no other load follows."""
        streams = {str(number): load.order() for number, load in enumerate(loads)}
        # Unbounded: each request has a limit of its own, and the end of the process is noticed.
        told = self._generator.run_streams(streams, seconds=math.inf, started=lambda: None, tick=tick)
        return [SentLoad.of(load, told[name]) for name, load in zip(streams, loads, strict=True)]

    async def send_beside(self, load: Load) -> SentLoad:
        """As `send`, in an event loop that does other things meanwhile; no other load follows if it is cancelled."""
        cancelled = threading.Event()

        def tick() -> None:
            if cancelled.is_set():
                raise GeneratorError("nobody waits for this load any more")

        try:
            return (await asyncio.to_thread(self.send_all, load, tick=tick))[0]
        finally:
            # The thread ends with it: whoever runs the event loop waits for all threads.
            cancelled.set()

    def never_idle(self, url: str, asks: Sequence[Ask], *, streams: int) -> float:
        """Requests per second of an engine that never idles."""
        return len(asks) / self.send(closed(url, asks, streams=streams)).seconds


@contextmanager
def clients(python: str, folder: Path) -> Iterator[Clients]:
    """Start vLLM's load generator by this Python, its log in the folder; it ends with the block.

    Raises OptionError if that Python has no vLLM.
    """
    with closing(GeneratorProcess.start(python, folder / "generator.log", tick=lambda: None)) as generator:
        yield Clients(generator)


def carried(
    busy: float, kept_at: Callable[[float], float], *, least: float, kept: str
) -> tuple[float, dict[str, float]]:
    """The largest rate at which so much is kept, to within a tenth, and what was kept at each that was tried.

    `busy`: requests per second of an engine that never idles; the search halves what lies around it. `kept_at`: the
    share of requests at a rate. `kept`: that, in words. Raises RuntimeError if so much is kept at none.
    """
    low, high = (share * busy for share in SEARCHED)
    tried: dict[str, float] = {}
    most: float | None = None
    for _ in range(TRIALS):
        rate = math.sqrt(low * high)
        tried[f"{kept} at {rate:.2f}/s"] = found = kept_at(rate)
        print(f"  stock vLLM at {rate:.2f}/s: {found:.3f} {kept}", file=sys.stderr, flush=True)
        if found >= least:
            most = low = rate
        else:
            high = rate
    if most is None:
        raise RuntimeError(f"stock vLLM kept its objectives at no rate that was tried: {tried}")
    return most, tried
