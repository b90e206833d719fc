"""The simulated engine from the command line: played in virtual time, or served in real time."""

from __future__ import annotations

import argparse
import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from flyball_engine.arguments import real, whole
from flyball_engine.batching.batch_metrics import BatchCounts
from flyball_engine.contract import API_PORT, Env, Limits, Metric, ObjectiveSpec, Setpoint
from flyball_engine.control.server import PortError
from flyball_engine.figures import percent
from flyball_lab.openai.ports import INTERRUPTED, add_drain_timeout, check_ports
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Request
from flyball_lab.simulator.server import ServerConfig, serve_forever
from flyball_lab.simulator.virtual import SimulationResult, build, retune, run
from flyball_lab.simulator.workload import ArrivalPhase, TraceError, read_trace, workload

#: The most that the contract takes of an objective, in seconds.
_DAY: Final = 86_400.0
_ENVIRONMENT: Final = (Env.CONTROL_PORT, Env.SERVICE_UID, Env.PUBLIC_KEY, Env.PUBLIC_KEYS_FILE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        parsed.command(parsed)
    except (TraceError, PortError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flyball_lab.simulator",
        description="A simulated engine: vLLM's scheduling over a step-time law.",
    )
    commands = parser.add_subparsers(required=True)
    virtual = commands.add_parser("run", help="a run in virtual time, and how much faster than real time it was")
    virtual.add_argument("--preset", choices=sorted(PRESETS), default="h100-8b")
    virtual.add_argument("--lengths", choices=sorted(SHAPES), default="conversation")
    virtual.add_argument("--rate", type=_above_0, default=20.0, metavar="R", help="requests per second (default 20)")
    virtual.add_argument("--variation", type=_above_0, default=1.0, metavar="CV", help="of the gaps; 1 is Poisson")
    virtual.add_argument("--seconds", type=_above_0, default=600.0, metavar="S", help="simulated (default 600)")
    virtual.add_argument("--trace", type=Path, metavar="CSV", help="instead: TIMESTAMP,ContextTokens,GeneratedTokens")
    virtual.add_argument("--patience", type=_above_0, default=float("inf"), metavar="S", help="clients wait so long")
    virtual.add_argument("--active", type=whole(1), metavar="N", help="max_num_active_seqs")
    virtual.add_argument("--tokens", type=whole(1), metavar="N", help="max_num_scheduled_tokens")
    virtual.add_argument("--threshold", type=whole(0), metavar="N", help="long_prefill_token_threshold")
    virtual.add_argument("--ttft", type=_threshold, default=0.5, metavar="S", help="objective (default 0.5)")
    virtual.add_argument("--tpot", type=_threshold, default=0.03, metavar="S", help="objective (default 0.03)")
    virtual.add_argument("--seed", type=int, default=1)
    virtual.set_defaults(command=_run)
    real = commands.add_parser("serve", help="an engine behind the OpenAI API and the control port, in real time")
    real.add_argument("--preset", choices=sorted(PRESETS), default="h100-8b")
    real.add_argument("--host", default="127.0.0.1", help="of both ports; %(default)s")
    real.add_argument("--port", type=whole(1, 65_535), default=API_PORT, help="of the API; %(default)s")
    real.add_argument("--model", default="simulated", metavar="NAME", help="it is served by; %(default)s")
    real.add_argument("--start-seconds", type=_at_least_0, metavar="S", help="until the ports open; the preset's")
    real.add_argument("--seed", type=int, default=1)
    add_drain_timeout(real, 2)
    real.epilog = f"The control port, its service and its key come from {', '.join(_ENVIRONMENT)}, as in a pod."
    real.set_defaults(command=_serve)
    return parser


_above_0: Final = real(lambda value: 0 < value < math.inf, "a number above 0")
_at_least_0: Final = real(lambda value: 0 <= value < math.inf, "a number of at least 0")
_threshold: Final = real(lambda value: 0 < value <= _DAY, "a number above 0 and at most 86400")


def _serve(parsed: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.INFO)
    check_ports(parsed.host, parsed.port, os.environ)
    preset = PRESETS[parsed.preset]
    serve_forever(
        ServerConfig(
            preset=preset,
            host=parsed.host,
            port=parsed.port,
            model=parsed.model,
            start_seconds=preset.start_seconds if parsed.start_seconds is None else parsed.start_seconds,
            seed=parsed.seed,
            drain_seconds=parsed.drain_timeout,
        )
    )


def _run(parsed: argparse.Namespace) -> None:
    preset = PRESETS[parsed.preset]
    requests = _requests(parsed)
    setpoint = Setpoint(
        service="simulated",
        epoch=1,
        generation=1,
        limits=Limits(
            max_num_active_seqs=parsed.active,
            max_num_scheduled_tokens=parsed.tokens,
            long_prefill_token_threshold=parsed.threshold,
        ),
        objectives=(
            ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=parsed.ttft),
            ObjectiveSpec(metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold_seconds=parsed.tpot),
        ),
        expires_seconds=7 * 86_400.0,
    )
    core = build(preset, seed=parsed.seed)
    began = time.process_time()
    played = run(core, requests, until=parsed.seconds, events=[retune(0.0, setpoint)])
    print(_report(played, processor=time.process_time() - began))


def _requests(parsed: argparse.Namespace) -> list[Request]:
    if parsed.trace is not None:
        return [one for one in read_trace(parsed.trace, patience=parsed.patience) if one.arrival <= parsed.seconds]
    phase = ArrivalPhase(
        seconds=parsed.seconds,
        rate=parsed.rate,
        shape=SHAPES[parsed.lengths],
        variation=parsed.variation,
        patience=parsed.patience,
    )
    return workload([phase], Random(parsed.seed + 1))


def _report(played: SimulationResult, *, processor: float) -> str:
    counts = played.counts
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.requests.items() if count)
    good = sum(count for (_, outcome), count in counts.all_objectives.items() if outcome == "met")
    lines = [
        f"requests   {len(played.requests)} in {played.seconds:g} s: {outcomes or 'none ended'}",
        f"goodput    {good / played.seconds:.2f} requests/s met all objectives",
        *(
            f"           {count} {outcome} {objective}"
            for (objective, outcome), count in sorted(counts.objectives.items())
        ),
        f"tokens     {counts.generated_tokens / played.seconds:.0f}/s generated",
        f"steps      {sum(sums.steps for sums in played.steps)}, {played.preemptions} preemptions",
        *_batches(played.batches),
        f"speed      {played.seconds / processor:.0f} times real time on one core ({processor:.2f} s)",
    ]
    return "\n".join(lines)


def _batches(counts: BatchCounts) -> list[str]:
    """See docs/batch-metrics.md."""
    if counts.mean_batch is None:
        return []
    slots, budget = _percent(counts.slot_utilisation), _percent(counts.token_utilisation)
    efficiency, padding = _percent(counts.batch_efficiency), _percent(counts.padding_ratio)
    return [
        f"batches    {counts.mean_batch:.1f} requests a step, {slots} of slots used, {budget} of prompt steps' tokens",
        f"if padded  {efficiency} of the rows would make a token, {padding} of all tokens would be padding",
    ]


def _percent(share: float | None) -> str:
    return "none" if share is None else percent(share)
