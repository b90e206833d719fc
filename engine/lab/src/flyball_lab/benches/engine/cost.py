"""What governing costs: time added to each step, and throughput beside stock vLLM in alternating runs.

A run is a fixed number of requests in a closed loop. Runs come in pairs, one on either engine, the first of a pair
alternating, and what is compared are the logarithms of their ratios, so that drift cancels. Beside the clock stands the
processor time that the engine's processes took per token: what the machine does besides hardly shows in it.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Sequence
from typing import Final

from flyball_engine.figures import figure
from flyball_lab.benches.engine.engines import WarmEngines, processes_of, say
from flyball_lab.benches.engine.load import Ask, closed
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.harness.vllm_server import VllmServer
from flyball_lab.pages.figures import Cell, table
from flyball_lab.quantiles import quantile

STREAMS, REQUESTS, PROMPT, OUTPUT = 16, 32, 64, 32
PAIR_SECONDS: Final = 600.0
LEAST_PAIRS: Final = 8
CONFIDENCE: Final = 0.95
#: The ratio must be known this well for its interval to tell 0.97 from 1.
HALF_WIDTH: Final = 0.015
#: How keys begin of which the rest tells how many steps, or pairs of runs.
ADDED: Final = "time added to each of "
THROUGHPUT: Final = "throughput over stock vLLM's"
#: What is asked, by row of the page.
ASKED: Final = {
    "added to a step, p50": "1 %",
    "added to a step, p99": "1 %",
    THROUGHPUT: "contains 1.00, above 0.97",
}


def measure(engines: WarmEngines) -> dict[str, dict[str, float]]:
    """Microseconds added per step; the ratios of throughput and of processor time, governed over stock."""
    mark = engines.governed.mark()
    with engines.apart():
        by_clock, by_processor = _pairs(engines)
    steps = engines.governed.steps(mark)
    median = statistics.median(step.seconds for step in steps)
    return {
        f"{ADDED}{len(steps)} steps": _added([step.added for step in steps], median),
        "of it on the processor": _added([step.worked for step in steps], median),
        "of that, where no prompt is processed": _added([step.worked for step in steps if not step.mixed], median),
        f"{THROUGHPUT}, {len(by_clock)} pairs of runs": interval(by_clock),
        f"tokens per processor second over stock vLLM's, {len(by_clock)} pairs of runs": interval(by_processor),
    }


def tables(figures: Figures) -> Tables:
    """Each cost with its share of the median step; each ratio with its interval."""
    rows: list[tuple[Cell, ...]] = []
    for title, values in figures.items():
        whose, _, pairs = title.partition(", ")
        if "ratio" in values:
            shown = f"{values['ratio']:.3f}, {values['from']:.3f}-{values['to']:.3f} ({pairs.removesuffix(' of runs')})"
            rows.append((whose, shown, ASKED.get(whose)))
            continue
        if title.startswith(ADDED):
            steps = title.removeprefix(ADDED)
            rows.append(("steps, their median", f"{steps}, {values['median step µs'] / 1e3:.1f} ms", None))
        name = "added to a step" if title.startswith(ADDED) else title
        for share in ("p50", "p99"):
            row, part = f"{name}, {share}", values[f"{share} over the median step in %"]
            rows.append((row, f"{figure(values[f'{share} µs'])} µs, {figure(part, 2)} %", ASKED.get(row)))
    return {"": table(("measured", "value", "asked"), rows)}


def _added(seconds: Sequence[float], median: float) -> dict[str, float]:
    return {
        "p50 µs": 1e6 * quantile(seconds, 0.5),
        "p99 µs": 1e6 * quantile(seconds, 0.99),
        "mean µs": 1e6 * statistics.fmean(seconds),
        "median step µs": 1e6 * median,
        "p50 over the median step in %": 100 * quantile(seconds, 0.5) / median,
        "p99 over the median step in %": 100 * quantile(seconds, 0.99) / median,
    }


def _pairs(engines: WarmEngines) -> tuple[list[float], list[float]]:
    by_clock: list[float] = []
    by_processor: list[float] = []
    until = time.monotonic() + PAIR_SECONDS
    while len(by_clock) < LEAST_PAIRS or time.monotonic() < until:
        servers = [engines.governed.server, engines.stock]
        if len(by_clock) % 2:
            servers.reverse()
        runs = {server.url: _run(engines, server) for server in servers}
        (seconds, processor), (stock_seconds, stock_processor) = (
            runs[engines.governed.server.url],
            runs[engines.stock.url],
        )
        by_clock.append(math.log(stock_seconds / seconds))
        by_processor.append(math.log(stock_processor / processor))
        if len(by_clock) % 10 == 0:
            say(f"{len(by_clock)} pairs of runs")
    return by_clock, by_processor


def _run(engines: WarmEngines, server: VllmServer) -> tuple[float, float]:
    """Seconds, and processor seconds of the server's processes, for the same tokens each time."""
    asks = [Ask(engines.prompts.of(PROMPT), OUTPUT) for _ in range(REQUESTS)]
    processor = processor_seconds(server.process.pid)
    sent = engines.clients.send(closed(server.url, asks, streams=STREAMS))
    if any(result.tokens != OUTPUT for result in sent.results):
        raise RuntimeError(f"a request did not get its tokens: {server.tail()}")
    return sent.seconds, processor_seconds(server.process.pid) - processor


def processor_seconds(session: int) -> float:
    """Processor time of all processes in a session, in seconds, with that of children which ended before them."""
    ticks = 0
    for process in processes_of(session):
        with contextlib.suppress(OSError):  # it ended
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def interval(logarithms: Sequence[float]) -> dict[str, float]:
    """The mean ratio with its confidence interval, and the pairs that would make it narrow enough."""
    mean, scatter, pairs = statistics.fmean(logarithms), statistics.stdev(logarithms), len(logarithms)
    width = student((1 + CONFIDENCE) / 2, pairs - 1) * scatter / math.sqrt(pairs)
    return {
        "ratio": math.exp(mean),
        "from": math.exp(mean - width),
        "to": math.exp(mean + width),
        "scatter of a pair": scatter,
        f"pairs for an interval of ±{HALF_WIDTH:g}": math.ceil(pairs * (width / HALF_WIDTH) ** 2),
    }


def student(share: float, freedom: int) -> float:
    """The quantile of Student's t, to three digits from 7 degrees of freedom on (expansion in 1/freedom)."""
    z = statistics.NormalDist().inv_cdf(share)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
