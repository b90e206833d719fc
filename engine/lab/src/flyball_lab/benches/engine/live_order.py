"""A real vLLM beyond its capacity: in vLLM's order, in the on-time order where all wait, and with the late refused.

Capacity is the largest rate of Poisson arrivals, of those tried, of which stock vLLM keeps 95 % within both objectives;
the search lies around what it answers per second when it never idles. Lengths of prompts are log-normal, so that a few
are many times the median. What is governed has a budget for each step, by a model that was learnt as the operator does,
and nobody decides meanwhile. All policies meet the same requests in each repetition. Who is refused kept nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from flyball_engine.contract import OnTime, Shed, StepBudget
from flyball_lab.benches.engine.engines import WarmEngines, say
from flyball_lab.benches.engine.identified import identify
from flyball_lab.benches.engine.load import Ask, RequestResult, carried, closed, open_loop, poisson
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.law.plays import model_spec
from flyball_lab.harness.waiting import eventually
from flyball_lab.pages.figures import Cell, Column, table
from flyball_lab.quantiles import quantile

#: The objectives, in seconds: first token, and mean time per output token.
TTFT, TPOT = 3.0, 0.4
#: Prompts: median, deviation of the logarithm, and most; answers: fewest and most tokens.
PROMPT: Final = (270, 0.9, 1800)
OUTPUT: Final = (8, 24)
KEPT: Final = 0.95
OVERLOAD: Final = 1.4
#: Streams and requests that keep the engine busy. As many warm it before: kernels are made for each size of step that
#: was not met yet, which takes many times as long as the step.
BUSY: Final = (16, 120)
#: Seconds that the arrivals of these would take: nobody waits for them.
NEVER_IDLE: Final = 1.0
SECONDS: Final = 30.0
REPETITIONS: Final = 3
#: A step's time: a chunk of a few hundred tokens, and a tenth of what a gap between tokens may be.
BUDGET: Final = TPOT / 2
DRAIN_SECONDS: Final = 120.0
#: Columns of the page, by the figures that they show: percentages, and ratios.
_SHARES: Final = {
    "kept both": "keep both",
    "least of the repetitions": "worst load",
    "of those let in": "of those let in",
    "refused": "refused",
}
_RATIOS: Final = {
    "kept over stock vLLM's": "goodput over stock, mean of loads",
    "goodput over capacity": "goodput over capacity",
}


@dataclass(frozen=True)
class Fared:
    """What became of one load under one policy."""

    requests: int
    kept: int
    refused: int
    firsts: Sequence[float]

    @classmethod
    def of(cls, asks: Sequence[Ask], answers: Sequence[RequestResult]) -> Fared:
        """By the answers, as the clients saw them."""
        return cls(
            requests=len(answers),
            kept=sum(_kept(ask, answer) for ask, answer in zip(asks, answers, strict=True)),
            refused=sum(answer.refused for answer in answers),
            firsts=[answer.first if answer.first is not None else math.inf for answer in answers],
        )

    @property
    def share(self) -> float:
        """Of all requests, those that kept both objectives."""
        return self.kept / max(1, self.requests)

    @property
    def share_let_in(self) -> float:
        """Of those that were not refused, those that kept both."""
        return self.kept / max(1, self.requests - self.refused)

    def first(self, share: float) -> float:
        """Seconds to the first token; infinite for those that had none when the clients left."""
        return quantile(self.firsts, share)


def measure(engines: WarmEngines) -> dict[str, dict[str, float]]:
    """Shares within both objectives, goodput over stock vLLM's, and waits."""
    model = identify(engines).model
    with engines.apart():
        step = StepBudget(seconds=BUDGET, model=model_spec(model))
        ordered = {"step": step, "on_time": OnTime(first_token_deadline_seconds=TTFT)}
        policies: dict[str, dict[str, Any] | None] = {
            "stock vLLM": None,
            "vLLM's order, steps in a budget": {"step": step},
            "on-time order, all wait": ordered,
            "on-time order, the late refused": ordered | {"shed": Shed(ttft_deadline_seconds=TTFT)},
        }
        capacity, figures = _capacity(engines)
        fared: dict[str, list[Fared]] = {name: [] for name in policies}
        for repetition in range(REPETITIONS):
            for name, policy in policies.items():
                asks = _asks(engines, Random(repetition), OVERLOAD * capacity, SECONDS)
                fared[name].append(_play(engines, policy, asks))
                one = fared[name][-1]
                say(f"{name}: {one.share:.3f} of {one.requests} kept both, {one.refused} refused")
        engines.governed.put()
    stock = [one.kept for one in fared["stock vLLM"]]
    return {"capacity": figures} | {
        f"{name}, at {OVERLOAD:g} x capacity": _figures(ones, stock, capacity) for name, ones in fared.items()
    }


def tables(figures: Figures) -> Tables:
    """By policy what became of the overload."""
    rows: list[Sequence[Cell]] = []
    for title, values in figures.items():
        if "kept both" in values:
            waits = "/".join(f"{values[f'first token {share} s']:.1f}" for share in ("p50", "p90"))
            shares = [100 * values[key] for key in _SHARES]
            rows.append([title.rpartition(", at ")[0], *shares, waits, *(values[key] for key in _RATIOS)])
    rate = OVERLOAD * figures["capacity"]["requests per s"]
    columns: list[str | Column] = [f"at {rate:.1f} requests/s, {OVERLOAD:g} times capacity"]
    columns += [Column(title=f"{title}, %", decimals=1) for title in _SHARES.values()]
    columns += ["first token p50/p90, s", *(Column(title=title, decimals=2) for title in _RATIOS.values())]
    return {"": table(columns, rows)}


def _capacity(engines: WarmEngines) -> tuple[float, dict[str, float]]:
    """What stock vLLM carries, by the very loads that are played then: two of half a minute differ by half."""
    streams, number = BUSY
    for _ in ("warm", "measured"):
        asks = _asks(engines, Random(99), number / NEVER_IDLE, NEVER_IDLE)
        busy = engines.clients.never_idle(engines.stock.url, asks, streams=streams)

    def kept_at(rate: float) -> float:
        loads = (_asks(engines, Random(repetition), rate, SECONDS) for repetition in range(REPETITIONS))
        fared = [_play(engines, None, asks) for asks in loads]
        return sum(one.kept for one in fared) / sum(one.requests for one in fared)

    capacity, tried = carried(busy, kept_at, least=KEPT, kept="kept both")
    return capacity, {"requests per s": capacity, "requests per s that never idle": busy} | tried


def _asks(engines: WarmEngines, random: Random, rate: float, seconds: float) -> list[Ask]:
    """Poisson arrivals; times and lengths are the same for the same random numbers, and no prompt was seen before."""
    median, deviation, longest = PROMPT
    lengths = (max(8, min(longest, round(median * random.lognormvariate(0.0, deviation)))) for _ in iter(int, 1))
    return [
        Ask(engines.prompts.of(length), random.randint(*OUTPUT), at)
        for at, length in zip(poisson(random, rate=rate, seconds=seconds), lengths, strict=False)
    ]


def _play(engines: WarmEngines, policy: dict[str, Any] | None, asks: Sequence[Ask]) -> Fared:
    """One load; it ends when nothing of it runs any more."""
    url = engines.stock.url
    if policy is not None:
        engines.governed.put(**policy)
        url = engines.governed.server.url
    results = engines.clients.send(open_loop(url, asks, patience=TTFT + OUTPUT[1] * TPOT)).results
    if policy is not None:
        eventually(lambda: not any(_unfinished(engines)), expecting="an idle engine", within=DRAIN_SECONDS)
    else:
        engines.clients.send(closed(url, [Ask(engines.prompts.of(8), 1)], streams=1))
    return Fared.of(asks, results)


def _unfinished(engines: WarmEngines) -> Iterator[int]:
    return (core.running + core.waiting for core in engines.governed.control.read().cores)


def _kept(ask: Ask, answer: RequestResult) -> bool:
    if answer.first is None or answer.ended is None or answer.first > TTFT:
        return False
    return (answer.ended - answer.first) / max(1, ask.output - 1) <= TPOT


def _figures(ones: Sequence[Fared], stock: Sequence[int], capacity: float) -> dict[str, float]:
    shares = [one.share for one in ones]
    return {
        "kept both": statistics.fmean(shares),
        "least of the repetitions": min(shares),
        "of those let in": statistics.fmean(one.share_let_in for one in ones),
        "refused": statistics.fmean(one.refused / max(1, one.requests) for one in ones),
        "kept over stock vLLM's": statistics.fmean(
            one.kept / max(1, kept) for one, kept in zip(ones, stock, strict=True)
        ),
        "goodput over capacity": statistics.fmean(one.kept for one in ones) / SECONDS / capacity,
        "first token p50 s": statistics.fmean(one.first(0.5) for one in ones),
        "first token p90 s": statistics.fmean(one.first(0.9) for one in ones),
    }
