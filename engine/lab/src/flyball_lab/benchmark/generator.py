"""vLLM's own load generator, told over standard input which runs to make.

One process lives as long as who asks, because importing vLLM costs half a minute on a share of a core. A stream of a
run is a forked child with its own event loop and random state, so that two streams of one run neither share nor
disturb each other's arrival times. A run is prepared (prompts made) before it is started, so that it starts on the
second. When standard input ends, whoever asked is gone: the children are ended and so is this process.

It runs where vLLM is and we may not be: by the Python that `flyball-bench --python` names, and in the pod of
`hack/demo`, mounted from a ConfigMap into the engine image. So it may import nothing but the standard library and
vLLM.

Lines in, JSON:   {"hello": true}   {"prepare": RUN, "streams": {NAME: [ARGUMENT, ...]}}   {"start": RUN}
Lines out, JSON:  {"event": "up" | "prepared" | "started" | "finished" | "failed", "run": RUN, ...}
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import multiprocessing
import os
import time
from io import RawIOBase
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TextIO

SERVE: Final = "vllm.benchmarks.serve"


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


def stream(pipe: Connection, arguments: list[str]) -> None:
    """Child: prepare one stream, wait for the word, make the run, send its requests back."""
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
    pipe.send(
        {
            "duration": result["duration"],
            "tokens_per_draft": result.get("spec_decode_acceptance_length"),
            "requests": requests_of(result, expected, clock),
        }
    )


class GeneratorRun:
    """The children of one run."""

    def __init__(self, name: str, streams: dict[str, list[str]]) -> None:
        self.name = name
        self.pipes: dict[Connection, str] = {}
        self.prepared: set[str] = set()
        self.results: dict[str, Any] = {}
        self.children = [self._fork(stream_name, arguments) for stream_name, arguments in streams.items()]

    def _fork(self, name: str, arguments: list[str]) -> multiprocessing.process.BaseProcess:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=stream, args=(theirs, arguments), name=name, daemon=True)
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
                line = self._orders.readline()
                if not line:
                    self._end()
                    return
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
