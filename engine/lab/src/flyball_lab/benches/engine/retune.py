"""How long a setpoint takes under 32 streams, and whether the next step obeys.

A core applies a setpoint between two steps, so an acknowledgement waits for the step in flight. The read-back tells the
longest step since the setpoint before was applied, which that step is among; what is over it is ours, the API server's
and the control port's. A core's clock and the bench's are the same machine's monotonic one. The streams have a process
of their own: in ours, who waits for an acknowledgement would wait for the interpreter's lock as well. And who waits is
served first by the processors, where that is allowed: it reads a clock and would else stand behind the streams' tokens.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Final

from flyball_lab.benches.engine.engines import SLOTS, TOKENS, WarmEngines, say
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.harness.streams import StreamLoad, StreamTotals
from flyball_lab.harness.vllm_server import MODEL_NAME
from flyball_lab.pages.figures import Cell, table
from flyball_lab.quantiles import quantile

#: The slowest in a hundred are to be told from the very slowest.
PUSHES: Final = 500
STREAMS, PROMPT, OUTPUT = 32, 200, 32
#: In turn: few tokens per step, and no limit but the ceiling. Half the streams may run at once in the first.
FEW: Final = {"max_num_scheduled_tokens": 48, "max_num_active_seqs": STREAMS // 2}
MANY: Final = {"max_num_scheduled_tokens": TOKENS, "max_num_active_seqs": SLOTS}
PAUSE_SECONDS: Final = 0.15


def measure(engines: WarmEngines) -> dict[str, dict[str, float]]:
    """Seconds from a push to its acknowledgement, over the longest step it may have waited for; steps that disobey."""
    governed = engines.governed
    taken: list[float] = []
    over: list[float] = []
    limited: list[tuple[float, float]] = []
    free: list[tuple[float, float]] = []
    with _streams(governed.server.url), _served_first() as first:
        mark, since, limits = governed.mark(), 0.0, MANY
        for push in range(PUSHES):
            began = time.monotonic()
            if push:
                (limited if limits is FEW else free).append((since, began))
            limits = MANY if limits is FEW else FEW
            answer = governed.put(limits=limits)
            since = time.monotonic()
            taken.append(since - began)
            over.append(taken[-1] - answer.cores[0].longest_step_seconds)
            time.sleep(PAUSE_SECONDS)
            if push % 100 == 99:
                say(f"{push + 1} setpoints")
    governed.put()
    steps = [(step.began, step.tokens) for step in governed.steps(mark)]

    def most(spans: list[tuple[float, float]]) -> list[int]:
        """Tokens of the steps that began within these times."""
        return [tokens for began, tokens in steps if any(first <= began <= last for first, last in spans)]

    few, many, limit = most(limited), most(free), FEW["max_num_scheduled_tokens"]
    return {
        f"{PUSHES} setpoints under {STREAMS} streams, ms": {
            "p50": 1e3 * statistics.median(taken),
            "p99": 1e3 * quantile(taken, 0.99),
            "over the longest step, p50": 1e3 * statistics.median(over),
            "over the longest step, p99": 1e3 * quantile(over, 0.99),
            "over the longest step, most": 1e3 * max(over),
            "who waits is served first": float(first),
        },
        f"steps begun after an acknowledged limit of {limit} tokens": {
            "steps": len(few),
            "over the limit": sum(tokens > limit for tokens in few),
            "most tokens": max(few, default=0),
            "most tokens without the limit": max(many, default=0),
        },
    }


def tables(figures: Figures) -> Tables:
    """Milliseconds to an acknowledgement, and steps beside the limit."""
    times, (limited, obeyed) = next(iter(figures.values())), list(figures.items())[1]
    over = "/".join(f"{times[f'over the longest step, {share}']:.0f}" for share in ("p50", "p99", "most"))
    rows: list[tuple[Cell, ...]] = [
        ("acknowledged after, ms: p50/p99", f"{times['p50']:.0f}/{times['p99']:.0f}", None),
        ("over the longest step, ms: p50/p99/slowest", over, "p99 20"),
        (limited, f"{obeyed['over the limit']:g} of {obeyed['steps']:g} disobey", "0"),
        ("largest step without the limit, tokens", f"{obeyed['most tokens without the limit']:g}", None),
    ]
    return {"": table(("measured", "value", "asked"), rows)}


@contextmanager
def _served_first() -> Iterator[bool]:
    """Have this thread run as soon as it can; whether that is allowed."""
    policy, given = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, policy, given)


@contextmanager
def _streams(url: str) -> Iterator[None]:
    """Load for as long as the block lasts, which begins when the first request has ended; none may be lost."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_stream, args=(url, theirs), name="streams")
    child.start()
    theirs.close()
    try:
        ours.recv()
        yield
        ours.send("enough")
        totals: StreamTotals = ours.recv()
        totals.expect_nothing_lost()
    finally:
        ours.close()
        child.join()


def _stream(url: str, asked: Connection) -> None:
    """Child: says when the first request has ended; loads until it is told to stop, or nobody is there to tell."""
    load = StreamLoad(url=url, model=MODEL_NAME, concurrency=STREAMS, prompt_tokens=PROMPT, max_tokens=OUTPUT)
    with load.running() as totals:
        while not totals.finished and not asked.poll(0.1):
            pass
        asked.send("loaded")
        try:
            asked.recv()
        except EOFError:
            return
    asked.send(totals)
