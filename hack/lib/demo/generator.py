"""Runs in the load pod: vLLM's own load generator, told over standard input which runs to make.

One process lives as long as the demo, because importing vLLM costs half a minute on the load pod's share of a core. Each
stream of a run is a forked child with its own event loop and random state, so that two streams of one run neither share
nor disturb each other's arrival times. A run is prepared (prompts made) before it is started, so that it starts on the
second. When standard input ends, whoever asked is gone: the children are ended and so is this process.

It is mounted from a ConfigMap into the engine image, so it may import nothing but the standard library and vLLM.

Lines in, JSON:   {"prepare": RUN, "streams": {NAME: [ARGUMENT, ...]}}   {"start": RUN}
Lines out, JSON:  {"event": "up" | "prepared" | "started" | "finished" | "failed", "run": RUN, ...}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from vllm.benchmarks import serve


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
    pipe.send({"duration": result["duration"], "requests": requests_of(result, expected, clock)})


class Run:
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

    def end(self) -> None:
        """End what still runs."""
        for child in self.children:
            child.terminate()
            child.join()
        for pipe in self.pipes:
            pipe.close()


def main() -> None:
    """Serve standard input until it ends. vLLM prints to standard output, so that is turned into standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    run: Run | None = None

    def tell(event: str, **more: Any) -> None:
        answers.write(json.dumps({"event": event, "run": run.name if run else "", "time": time.time(), **more}) + "\n")

    orders = sys.stdin.buffer.raw  # unbuffered: a line read ahead would never show in wait()
    tell("up")
    while True:
        waiting = [pipe for pipe in (run.pipes if run else {}) if run and run.pipes[pipe] not in run.results]
        ready = wait([orders.fileno(), *waiting])
        if orders.fileno() in ready:
            line = orders.readline()
            if not line:
                if run:
                    run.end()
                return
            order = json.loads(line)
            if "prepare" in order:
                if run:
                    run.end()
                run = Run(order["prepare"], order["streams"])
            elif run and order["start"] == run.name:
                run.start()
                tell("started")
        for pipe in waiting:
            if run and pipe in ready and pipe in run.pipes:
                event = run.receive(pipe)
                if event:
                    tell(event, **({"streams": run.results} if event == "finished" else {}))
                if event in ("finished", "failed"):
                    run.end()
                    run = None
                    break


if __name__ == "__main__":
    main()
