"""How long mixed steps of a real vLLM take over the budget they were to take: with the reflex, and under fixed limits.

The model is identified on this engine first, which has the same cores to itself then as it has later. What no model can
foretell is how much steps of the very same composition differ on this machine, so that is measured in the same run:
decode-only steps by the number of decodes, the 95th percentile over the median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Final

from flyball_engine.contract import StepBudget
from flyball_lab.benches.engine.engines import WarmEngines, say
from flyball_lab.benches.engine.identified import identify
from flyball_lab.benches.engine.load import Ask, closed, open_loop, poisson
from flyball_lab.benches.engine.timed_steps import TimedStep
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.law.plays import model_spec
from flyball_lab.pages.figures import Column, table
from flyball_lab.quantiles import quantile
from flyball_operator.tuning.estimate.step_time import Fit

SECONDS: Final = 40.0
#: Decodes that run on and on, and prompts that come in between.
STREAMS, STREAM_PROMPT, STREAM_OUTPUT = 8, 40, 160
PROMPTS: Final = (800, 2500)
PROMPT_OUTPUT: Final = 4
#: Prompt tokens that arrive, over what the engine could process if it did nothing else.
LOAD: Final = 0.4
#: The budget is the time of a step of this many prompt tokens beside the decodes.
BUDGET_TOKENS: Final = 256
FIXED: Final = (512, 2048, 8192)
#: Steps of one composition that are enough to speak of their spread.
LEAST_ALIKE: Final = 40
#: What is not a policy among the figures.
MODEL: Final = "the model"
#: The most that p95 over the spread may be.
ASKED: Final = 1.15


def measure(engines: WarmEngines) -> dict[str, dict[str, float]]:
    """Seconds of mixed steps over the budget, at percentiles; beside them the spread of steps that are alike."""
    # Identified apart, too; that ends before this begins, since who leaves gives all processors back.
    fit = identify(engines)
    with engines.apart():
        return _measure(engines, fit)


def _measure(engines: WarmEngines, fit: Fit) -> dict[str, dict[str, float]]:
    model = fit.model
    budget = model.step_seconds(
        tokens=STREAMS + BUDGET_TOKENS, decodes=STREAMS, prefills=True, attention=BUDGET_TOKENS * sum(PROMPTS) / 4
    )
    chunk = budget - model.step_seconds(tokens=STREAMS, decodes=STREAMS, prefills=False, attention=0.0)
    rate = LOAD * BUDGET_TOKENS / (chunk * sum(PROMPTS) / 2)
    figures: dict[str, dict[str, float]] = {MODEL: _told(fit, budget, rate)}
    policies: dict[str, dict[str, Any]] = {"reflex": {"step": StepBudget(seconds=budget, model=model_spec(fit.model))}}
    policies |= {f"{tokens} tokens": {"limits": {"max_num_scheduled_tokens": tokens}} for tokens in FIXED}
    for name, policy in policies.items():
        engines.governed.put(**policy)
        figures[name] = _figures(_under_load(engines, rate), budget)
        say(f"{name}: {figures[name]}")
    engines.governed.put()
    return figures


def tables(figures: Figures) -> Tables:
    """By policy its mixed steps over the budget."""
    rows = [
        (
            name,
            int(values["mixed steps"]),
            "/".join(f"{values[share]:.2f}" for share in ("p50", "p95", "p99")),
            f"{values['spread of steps alike']:.2f}",
            f"{values['p95 over that spread']:.2f}" + (f" (asked: {ASKED:g})" if name == "reflex" else ""),
        )
        for name, values in figures.items()
        if name != MODEL
    ]
    budget = f"mixed steps over the budget of {figures[MODEL]['budget ms']:.0f} ms"
    return {"": table((budget, Column(title="steps", decimals=0), "p50/p95/p99", "spread", "p95 over spread"), rows)}


def _told(fit: Fit, budget: float, rate: float) -> dict[str, float]:
    return {
        "median error %": 100 * fit.error,
        "t0 ms": 1e3 * fit.model.t0,
        "ms per 100 tokens": 1e5 * fit.model.c2,
        "trusted": float(fit.trusted),
        "budget ms": 1e3 * budget,
        "long prompts per s": rate,
    }


def _under_load(engines: WarmEngines, rate: float) -> list[TimedStep]:
    """The steps of one stretch of load; its beginning, without prompts, left to warm up."""
    url, random = engines.governed.server.url, engines.random
    lengths = [(at, random.randint(*PROMPTS)) for at in poisson(random, rate=rate, seconds=SECONDS)]
    long = [Ask(engines.prompts.of(length), PROMPT_OUTPUT, at) for at, length in lengths]
    short = (Ask(engines.prompts.of(STREAM_PROMPT), STREAM_OUTPUT) for _ in iter(int, 1))
    loads = closed(url, short, streams=STREAMS, seconds=SECONDS), open_loop(url, long, patience=5.0)
    mark = engines.governed.mark()
    engines.clients.send_all(*loads)
    return engines.governed.steps(mark)


def _figures(steps: Sequence[TimedStep], budget: float) -> dict[str, float]:
    mixed = [step.seconds for step in steps if step.mixed]
    alike: dict[int, list[float]] = {}
    for step in steps:
        if not step.mixed:
            alike.setdefault(step.requests, []).append(step.seconds)
    # The composition that was seen most often speaks for all.
    most = max(alike.values(), key=len, default=[])
    spread = quantile(most, 0.95) / statistics.median(most) if len(most) >= LEAST_ALIKE else math.nan
    p95 = quantile(mixed, 0.95) / budget
    return {
        "mixed steps": len(mixed),
        "p50": quantile(mixed, 0.5) / budget,
        "p95": p95,
        "p99": quantile(mixed, 0.99) / budget,
        "spread of steps alike": spread,
        "p95 over that spread": p95 / spread,
    }
