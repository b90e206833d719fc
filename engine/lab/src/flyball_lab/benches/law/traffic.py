"""A recorded load as a scenario: which part of it, how fast, and against which objectives.

A trace was recorded on other hardware than it is played on, so its time is scaled. What an engine carries is reckoned
from the plant's coefficients by the trace's own mean lengths: the largest batch whose balanced step keeps the token
objective, as the law does it with what it has learnt.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from flyball_lab.benches.law.plays import known_model
from flyball_lab.benches.law.scenarios import RecordedCase
from flyball_lab.benches.options import OBJECTIVES, SHARE
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.workload import TraceError, read_trace


def recorded(path: Path, preset: str, *, rate: float | None = None, minutes: float | None = None) -> RecordedCase:
    """The first `minutes` of a trace, absent all of it, `rate` times as fast; absent, as `SHARE` has it.

    What the model's context is too short for is left out, as a server refuses it. Raises TraceError.
    """
    longest = PRESETS[preset].sizes.max_model_len
    until = float("inf") if minutes is None else 60.0 * minutes
    taken = [one for one in read_trace(path) if one.arrival <= until and one.prompt + one.output <= longest]
    if len(taken) < 2 or taken[-1].arrival == taken[0].arrival:
        stretch = "" if minutes is None else f" in its first {minutes:g} minutes"
        raise TraceError(f"{path} has too few requests{stretch}: two or more at different times are needed")
    ttft, tpot = OBJECTIVES[preset]
    speed = suited(taken, preset) if rate is None else rate
    first = taken[0].arrival
    rows = tuple(((one.arrival - first) / speed, one.prompt, one.output) for one in taken)
    stretch = "" if minutes is None else f", {minutes:g} min"
    return RecordedCase(
        name=f"{path.name}{stretch}, × {speed:.3g}, on {preset}",
        preset=preset,
        ttft=ttft,
        tpot=tpot,
        context=_context(taken),
        rows=rows,
    )


def suited(requests: Sequence[Request], preset: str) -> float:
    """How many times as fast requests must come for `SHARE` of what the preset carries."""
    recorded_rate = (len(requests) - 1) / (requests[-1].arrival - requests[0].arrival)
    return SHARE * capacity(requests, preset) / recorded_rate


def capacity(requests: Sequence[Request], preset: str) -> float:
    """Requests per second of these mean lengths that a preset carries within its objective for a token."""
    prompt = statistics.fmean(one.prompt for one in requests)
    output = statistics.fmean(one.output for one in requests)
    hardware, model = PRESETS[preset], known_model(PRESETS[preset], _context(requests))
    most = min(hardware.sizes.max_num_seqs, int(hardware.kv_tokens / (prompt + output)))
    rates = [0.0]
    for decodes in range(1, most + 1):
        prefill = decodes * prompt / output
        tokens, attention = decodes + prefill, prefill * prompt / 2
        seconds = model.step_seconds(tokens=tokens, decodes=decodes, prefills=True, attention=attention)
        if seconds <= OBJECTIVES[preset][1]:
            rates.append(decodes / output / seconds)
    return max(rates)


def _context(requests: Sequence[Request]) -> int:
    """Tokens that a decode reads in the mean: those of long answers are read more often."""
    tokens = sum(one.output for one in requests)
    return round(sum(one.output * (one.prompt + one.output / 2) for one in requests) / tokens)
