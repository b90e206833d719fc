"""vLLM's own load generator, told over standard input which runs to make.

One process lives as long as who asks, because importing vLLM costs half a minute on a share of a core. A stream of a
run is a forked child with its own event loop and random state, so that two streams of one run neither share nor
disturb each other's arrival times. A run is prepared (prompts made) before it is started, so that it starts on the
second. When standard input ends, whoever asked is gone: the children are ended and so is this process.

It runs where vLLM is and we may not be: by the Python that `flyball-bench --python` and `hack/bench` name, and in the
pod of `hack/demo`, mounted from a ConfigMap into the engine image. So it may import nothing but the standard library,
vLLM, and aiohttp, whose session vLLM's request function takes.

Lines in, JSON:   {"hello": true}   {"prepare": RUN, "streams": {NAME: STREAM, ...}}   {"start": RUN}
Lines out, JSON:  {"event": "up" | "prepared" | "started" | "finished" | "failed", "run": RUN, ...}

A STREAM is a list of the arguments of vLLM's `serve` benchmark, or an object with listed requests, see `RequestStream`.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from io import RawIOBase
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TextIO

SERVE: Final = "vllm.benchmarks.serve"
REQUEST_FUNCTIONS: Final = "vllm.benchmarks.lib.endpoint_request_func"
#: The most that a listed request may take.
REQUEST_SECONDS: Final = 600.0
READ_BYTES: Final = 1 << 16
#: Of prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG: Final = 1


def requests_of(result: dict[str, Any], expected: list[int], clock: float) -> list[dict[str, Any]]:
    """One record per request of a result: wall-clock start, latencies in seconds, tokens asked and received."""
    rows = zip(
        result["start_times"],
        result["ttfts"],
        result["itls"],
        result["input_lens"],
        result["output_lens"],
        result["errors"],
        expected,
        strict=True,
    )
    return [
        {
            "start": round(start + clock, 3),
            "ttft": round(ttft, 4),
            "gaps": [round(gap, 4) for gap in gaps],
            "prompt_tokens": prompt,
            "output_tokens": output,
            "expected_tokens": asked,
            "error": error[-300:],
        }
        for start, ttft, gaps, prompt, output, error, asked in rows
    ]


def stream(pipe: Connection, order: list[str] | dict[str, Any]) -> None:
    """Child: prepare one stream, wait for the word, make the run, send its requests back.

    It ends with its parent, however that ends: nobody would hear of what it goes on sending.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pipe.send(_benchmark(pipe, order) if isinstance(order, list) else _listed(pipe, order))


def _benchmark(pipe: Connection, arguments: list[str]) -> dict[str, Any]:
    """A run of vLLM's `serve` benchmark."""
    serve: Any = importlib.import_module(SERVE)
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    options = parser.parse_args(arguments)
    benchmark = serve.benchmark
    expected: list[int] = []
    clock = 0.0

    async def start_on_word(*, input_requests: list[Any], **others: Any) -> dict[str, Any]:
        nonlocal clock
        pipe.send("prepared")
        pipe.recv()
        clock = time.time() - time.perf_counter()
        expected.extend(request.expected_output_len for request in input_requests)
        result: dict[str, Any] = await benchmark(input_requests=input_requests, **others)
        return result

    serve.benchmark = start_on_word
    result = asyncio.run(serve.main_async(options))
    return {
        "duration": result["duration"],
        "tokens_per_draft": result.get("spec_decode_acceptance_length"),
        "requests": requests_of(result, expected, clock),
    }


def _listed(pipe: Connection, order: dict[str, Any]) -> dict[str, Any]:
    """A run of the requests that the order lists."""
    requests = RequestStream(**order)
    pipe.send("prepared")
    pipe.recv()
    began = time.perf_counter()
    results = asyncio.run(requests.send())
    return {"duration": time.perf_counter() - began, "requests": results}


class RequestStream:
    """Listed requests to one endpoint, each `[prompt's token ids, output tokens, arrival in seconds from the start]`.

    `streams`: so many at once, each sent when one before it has ended, none after `seconds`. None: each when it
    arrives, and clients leave `patience` seconds after the last arrival.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        requests: list[tuple[list[int], int, float]],
        streams: int | None,
        seconds: float | None,
        patience: float,
    ) -> None:
        self._url, self._model = f"{url}/v1/completions", model
        self._requests = requests
        self._streams = streams
        self._seconds = math.inf if seconds is None else seconds
        self._patience = patience
        self._functions: Any = importlib.import_module(REQUEST_FUNCTIONS)
        self._aiohttp: Any = importlib.import_module("aiohttp")
        self._results: dict[int, dict[str, Any]] = {}

    async def send(self) -> list[dict[str, Any]]:
        """Send them. The results of those that were sent, in their order, as `_send` notes them."""
        began = time.perf_counter()
        left = iter(enumerate(self._requests))
        async with self._aiohttp.TCPConnector(limit=0) as connector:
            if self._streams is not None:
                clients = [self._client(connector, left, began + self._seconds) for _ in range(self._streams)]
            else:
                leave = began + max((at for _, _, at in self._requests), default=0.0) + self._patience
                clients = [self._arrival(connector, number, began, leave) for number, _ in left]
            await asyncio.gather(*clients)
        return [self._results[number] for number in sorted(self._results)]

    async def _client(self, connector: Any, left: Iterator[tuple[int, Any]], until: float) -> None:
        while time.perf_counter() < until and (following := next(left, None)) is not None:
            await self._send(connector, following[0], time.perf_counter() + REQUEST_SECONDS)

    async def _arrival(self, connector: Any, number: int, began: float, leave: float) -> None:
        await asyncio.sleep(max(0.0, began + self._requests[number][2] - time.perf_counter()))
        await self._send(connector, number, leave)

    async def _send(self, connector: Any, number: int, leave: float) -> None:
        """Send one, and note HTTP's status (0: no answer, -1: an error before one), latencies in seconds and tokens.

        The client leaves by the session's timeout: vLLM's function then returns what came until then.
        """
        prompt, output, _ = self._requests[number]
        noted = self._results[number] = {"status": 0}

        async def note_status(_session: Any, _context: Any, end: Any) -> None:
            noted["status"] = end.response.status

        # vLLM's function tells of a refusal no more than HTTP's reason phrase.
        trace = self._aiohttp.TraceConfig()
        trace.on_request_end.append(note_status)
        # Timeouts above `ceil_threshold` would be rounded up to whole seconds; 0 would be none.
        total = max(0.001, leave - time.perf_counter())
        timeout = self._aiohttp.ClientTimeout(total=total, ceil_threshold=math.inf)
        request = self._functions.RequestFuncInput(
            prompt=prompt,
            api_url=self._url,
            prompt_len=len(prompt),
            output_len=output,
            model=self._model,
            ignore_eos=True,
        )
        async with self._aiohttp.ClientSession(
            connector=connector, connector_owner=False, timeout=timeout, trace_configs=[trace]
        ) as session:
            seen = await self._functions.async_request_openai_completions(request, session)
        if not seen.success and not noted["status"] and time.perf_counter() < leave:
            noted["status"] = -1
        noted["ttft"] = seen.ttft or None
        # Without a count of tokens the answer did not come to its end.
        noted["output_tokens"] = (seen.success and seen.output_tokens) or 0
        noted["latency"] = seen.latency if noted["output_tokens"] else None


class GeneratorRun:
    """The children of one run."""

    def __init__(self, name: str, streams: dict[str, list[str] | dict[str, Any]]) -> None:
        self.name = name
        self.pipes: dict[Connection, str] = {}
        self.prepared: set[str] = set()
        self.results: dict[str, Any] = {}
        self.children = [self._fork(stream_name, order) for stream_name, order in streams.items()]

    def _fork(self, name: str, order: list[str] | dict[str, Any]) -> multiprocessing.process.BaseProcess:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=stream, args=(theirs, order), name=name, daemon=True)
        child.start()
        theirs.close()
        self.pipes[ours] = name
        return child

    def start(self) -> None:
        """Let every stream go."""
        for pipe in self.pipes:
            pipe.send("go")

    def receive(self, pipe: Connection) -> str | None:
        """Take one message of a child; the event that it completes for the whole run, if any."""
        try:
            message = pipe.recv()
        except EOFError:
            return "failed"
        if message == "prepared":
            self.prepared.add(self.pipes[pipe])
            return "prepared" if len(self.prepared) == len(self.children) else None
        self.results[self.pipes[pipe]] = message
        return "finished" if len(self.results) == len(self.children) else None

    def awaited(self) -> list[Connection]:
        """Pipes of the children that have not sent their result."""
        return [pipe for pipe, name in self.pipes.items() if name not in self.results]

    def end(self) -> None:
        """End what still runs."""
        for child in self.children:
            child.terminate()
            child.join()
        for pipe in self.pipes:
            pipe.close()


class GeneratorServer:
    """Takes orders from `orders`, a file descriptor, and answers on `answers`; one run at a time."""

    def __init__(self, orders: RawIOBase, answers: TextIO) -> None:
        self._orders = orders
        self._answers = answers
        self._unread = b""
        self._run: GeneratorRun | None = None

    def serve(self) -> None:
        """Until the orders end."""
        while True:
            awaited = self._run.awaited() if self._run else []
            ready = wait([self._orders.fileno(), *awaited])
            for pipe in awaited:
                if pipe in ready and self._run:
                    self._hear(self._run, pipe)
            if self._orders.fileno() in ready:
                # Not by the line: of an unbuffered file that reads single bytes, and listed requests take megabytes.
                received = self._orders.read(READ_BYTES)
                if not received:
                    self._end()
                    return
                self._unread += received
                if b"\n" in received:
                    *lines, self._unread = self._unread.split(b"\n")
                    for line in lines:
                        self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        if "hello" in order:
            self._tell("up")
        elif "prepare" in order:
            self._end()
            self._run = GeneratorRun(order["prepare"], order["streams"])
        elif self._run and order["start"] == self._run.name:
            self._run.start()
            self._tell("started")

    def _hear(self, run: GeneratorRun, pipe: Connection) -> None:
        event = run.receive(pipe)
        if event == "prepared":
            self._tell(event)
        elif event == "finished":
            self._tell(event, streams=run.results)
            self._end()
        elif event == "failed":
            self._tell(event)
            self._end()

    def _tell(self, event: str, **more: Any) -> None:
        name = self._run.name if self._run else ""
        self._answers.write(json.dumps({"event": event, "run": name, "time": time.time(), **more}) + "\n")

    def _end(self) -> None:
        if self._run:
            self._run.end()
        self._run = None


def main() -> None:
    """Serve standard input until it ends. vLLM prints to standard output, so that is turned into standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    # Once, before there are children; behind the line above, because it prints while it is imported (0.26).
    importlib.import_module(SERVE)
    # Unbuffered: a line read ahead would never show in wait().
    with open(0, "rb", buffering=0, closefd=False) as orders:
        GeneratorServer(orders, answers).serve()


if __name__ == "__main__":
    main()
