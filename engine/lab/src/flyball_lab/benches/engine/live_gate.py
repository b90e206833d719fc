"""A real vLLM at twice its capacity: with the gate, with `max_num_queued_tokens` set by hand, and as it is.

Capacity is the largest rate of Poisson arrivals, of those tried, of which stock vLLM answers 95 % with their first
token in time; the search lies around what it answers per second when it never idles. The limit by hand is what vLLM's
documentation says: the objective times the prefill throughput, here that at capacity. Who is refused is not in time.
Warm: requests whose long prefix the cache holds, at a rate that would be far beyond capacity if it did not, and with a
deadline of half the time that a cold prompt of that length takes alone; beside them such cold ones, one by one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from flyball_engine.contract import OnTime, QueueLimits, Shed, StepBudget
from flyball_lab.benches.engine.engines import WarmEngines, say
from flyball_lab.benches.engine.identified import identify
from flyball_lab.benches.engine.load import Ask, Prompts, RequestResult, carried, closed, open_loop, poisson
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.law.plays import model_spec
from flyball_lab.pages.figures import Column, table
from flyball_operator.tuning.estimate.step_time import Fit

#: The objective, in seconds, and the request: most of its cost is its prompt.
TTFT: Final = 2.0
PROMPT, OUTPUT = 400, 12
KEPT: Final = 0.95
#: Streams and requests that keep the engine busy.
BUSY: Final = (24, 60)
CAPACITY_SECONDS: Final = 12.0
SECONDS: Final = 20.0
#: Time to the queue's steady state, whose requests are not counted.
WARM_UP: Final = 5.0
BUDGET: Final = 0.2
WARM_PREFIX, WARM_OWN, WARM_OUTPUT = 2048, 16, 4
WARM_SECONDS: Final = 15.0
#: Cold prompts, one after the other.
COLD: Final = 5
#: What is asked of the gate: the percentage in time of those let in, and goodput over capacity.
ASKED: Final = (95, 0.85)


def measure(engines: WarmEngines) -> dict[str, dict[str, float]]:
    """Of those let in, the share with their first token in time; requests in time per second over capacity."""
    fit = identify(engines)
    with engines.apart():
        return _measure(engines, fit)


def _measure(engines: WarmEngines, fit: Fit) -> dict[str, dict[str, float]]:
    step = StepBudget(seconds=BUDGET, model=model_spec(fit.model))
    shed, order = Shed(ttft_deadline_seconds=TTFT), OnTime(first_token_deadline_seconds=TTFT)
    streams, requests = BUSY
    busy = engines.clients.never_idle(
        engines.stock.url, [Ask(engines.prompts.of(PROMPT), OUTPUT) for _ in range(requests)], streams=streams
    )
    capacity, tried = carried(
        busy,
        lambda rate: _share(_at(engines, engines.stock.url, rate, CAPACITY_SECONDS, engines.prompts)),
        least=KEPT,
        kept="in time",
    )
    rate = 2 * capacity
    by_hand = QueueLimits(max_num_queued_tokens=round(TTFT * capacity * PROMPT))
    figures = {"capacity": {"requests per s": capacity} | tried}
    for name, url, policy in (
        ("stock vLLM", engines.stock.url, None),
        ("gate", engines.governed.server.url, {"step": step, "shed": shed, "on_time": order}),
        (f"{by_hand.max_num_queued_tokens} queued tokens by hand", engines.governed.server.url, {"queue": by_hand}),
    ):
        if policy is not None:
            engines.governed.put(**policy)
        figures[f"{name}, at {rate:.2f}/s"] = _outcome(_at(engines, url, rate, SECONDS, engines.prompts), capacity)
        say(f"{name}: {list(figures.values())[-1]}")
        engines.governed.put()
    figures["warm prefixes"] = _warm(engines, busy / 2, step)
    return figures


def tables(figures: Figures) -> Tables:
    """What became of twice the capacity, and of requests whose prefix is cached."""
    rows = []
    for title, values in figures.items():
        name = title.partition(", at ")[0]
        if "goodput over capacity" in values:
            asked = [f" (asked: {one:g})" if name == "gate" else "" for one in ASKED]
            counts = f"{values['refused']:g} of {values['requests']:g}"
            in_time = f"{100 * values['admitted in time']:.0f} %{asked[0]}"
            rows.append((name, counts, in_time, f"{values['goodput over capacity']:.2f}{asked[1]}"))
    twice = 2 * figures["capacity"]["requests per s"]
    heads = (f"{twice:.1f} requests/s, twice the capacity, {SECONDS:g} s", "refused", "of those let in, in time")
    found = {"": table((*heads, "goodput over capacity"), rows)}
    warm = [(key, value) for key, value in figures["warm prefixes"].items()]
    return found | {"warm": table(("warm prefixes", Column(title="", digits=3)), warm)}


def _at(engines: WarmEngines, url: str, rate: float, seconds: float, prompts: Prompts) -> list[RequestResult]:
    """What became of the requests at this rate; those of the warm-up are left out."""
    arrivals = list(poisson(engines.random, rate=rate, seconds=seconds + WARM_UP))
    asks = [Ask(prompts.of(PROMPT), OUTPUT, at) for at in arrivals]
    results = engines.clients.send(open_loop(url, asks, patience=2 * TTFT)).results
    return [result for at, result in zip(arrivals, results, strict=True) if at >= WARM_UP]


def _share(answers: Sequence[RequestResult]) -> float:
    return sum(answer.in_time(TTFT) for answer in answers) / max(1, len(answers))


def _outcome(answers: Sequence[RequestResult], capacity: float) -> dict[str, float]:
    admitted = [answer for answer in answers if not answer.refused]
    return {
        "requests": len(answers),
        "refused": len(answers) - len(admitted),
        "admitted in time": _share(admitted),
        "goodput over capacity": sum(answer.in_time(TTFT) for answer in answers) / SECONDS / capacity,
    }


def _warm(engines: WarmEngines, rate: float, step: StepBudget) -> dict[str, float]:
    """Refusals where the prefix is cached, at half the rate at which prompts a fifth as long keep the engine busy."""
    random, governed, send = engines.random, engines.governed, engines.clients.send
    url, shared = governed.server.url, Prompts(random, shared=Prompts(random).of(WARM_PREFIX))
    governed.put()
    cold = send(closed(url, _alone(engines), streams=1)).results
    deadline = statistics.median(answer.first or TTFT for answer in cold) / 2
    warming = [Ask(shared.of(WARM_OWN), WARM_OUTPUT, index / 2) for index in range(10)]
    send(open_loop(url, warming, patience=20.0))
    governed.put(
        step=step, shed=Shed(ttft_deadline_seconds=deadline), on_time=OnTime(first_token_deadline_seconds=deadline)
    )
    asks = [Ask(shared.of(WARM_OWN), WARM_OUTPUT, at) for at in poisson(random, rate=rate, seconds=WARM_SECONDS)]
    warm = send(open_loop(url, asks, patience=2 * TTFT)).results
    refused_cold = send(closed(url, _alone(engines), streams=1)).results
    governed.put()
    return {
        "deadline s": deadline,
        "requests": len(warm),
        "refused": sum(answer.refused for answer in warm),
        "in time": sum(answer.in_time(deadline) for answer in warm) / max(1, len(warm)),
        "cold requests": len(refused_cold),
        "cold refused": sum(answer.refused for answer in refused_cold),
        "prompt tokens per s over those of a busy engine": (WARM_PREFIX + WARM_OWN) / (2 * PROMPT),
    }


def _alone(engines: WarmEngines) -> list[Ask]:
    """A few prompts as long as the warm ones, that nobody has seen."""
    return [Ask(engines.prompts.of(WARM_PREFIX + WARM_OWN), 1) for _ in range(COLD)]
