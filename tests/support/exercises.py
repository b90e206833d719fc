"""Measured points of an exercise, made up; and `flyball-bench` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from flyball_engine.contract import StrategyType
from flyball_lab.benchmark.measurements import Measurement, Utilisation
from flyball_lab.benchmark.points import EngineSetting, Point, PromptMix, WorkloadName
from flyball_lab.benchmark.requests import Percentiles
from flyball_lab.harness.terminal import hear_interrupts
from flyball_lab.repository import ROOT

#: A generator where there is no vLLM.
STAND_IN = ROOT / "tests/support/stand_in"
UNIFORM = PromptMix(name=WorkloadName.UNIFORM, input_tokens=64, output_tokens=32, spread=0.0)
#: Requests that arrive at a rate.
ARRIVING = UNIFORM.model_copy(update={"burstiness": 0.5})
MIXED = PromptMix(name=WorkloadName.MIXED, input_tokens=64, output_tokens=32, spread=0.9)


def a_point(
    load: float = 1,
    *,
    strategy: StrategyType | None = None,
    workload: PromptMix = UNIFORM,
    label: str = "",
    endpoint: str = "http://127.0.0.1:8000",
) -> Point:
    """With `load` clients; under a workload of an open loop, at that rate."""
    open_loop = workload.open_loop
    return Point(
        endpoint=endpoint,
        model="chat",
        label=label,
        workload=workload,
        setting=EngineSetting(strategy=strategy),
        concurrency=None if open_loop else round(load),
        rate=load if open_loop else None,
        requests=round(4 * load),
    )


def a_measurement(
    point: Point,
    *,
    output: float = 100.0,
    e2e: float | None = 1.0,
    ttft: float = 0.1,
    failed: int = 0,
    share: float | None = 0.5,
    at: str = "2026-11-21T12:00:00+00:00",
) -> Measurement:
    """`output` tokens/s and `e2e` seconds (median); a share of None could not be observed."""
    slots = 64 if share is not None else None
    return Measurement(
        point=point,
        measured_at=at,
        engine="vllm <1>",
        seconds=10.0,
        completed=point.requests - failed,
        failed=failed,
        truncated=0,
        errors={"refused & gone": failed} if failed else {},
        requests_per_second=output / 32,
        output_tokens_per_second=output,
        total_tokens_per_second=3 * output,
        ttft=Percentiles(p50=ttft, p99=ttft),
        tpot=Percentiles(p50=0.01, p99=0.02),
        e2e=Percentiles(p50=e2e, p99=e2e),
        utilisation=Utilisation(running=64 * (share or 0.5), waiting=0.0, slots=slots, share=share, samples=9),
    )


def a_sweep(
    points: Mapping[int, tuple[float, float]] | Mapping[float, tuple[float, float]], **of_points: object
) -> list[Measurement]:
    """By load: output tokens/s and median latency."""
    return [
        a_measurement(a_point(load, **of_points), output=output, e2e=latency)  # type: ignore[arg-type]  # passed on
        for load, (output, latency) in points.items()
    ]


@dataclass
class Ended:
    """How a run of `flyball-bench` ended."""

    code: int
    out: str
    err: str

    def expect(self, code: int, *said: str) -> Self:
        """It ended like this, having said all of these."""
        assert self.code == code, self.err
        for text in said:
            assert text in self.out + self.err, self.err
        return self


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C."""
    process.send_signal(signal.SIGINT)


def flyball_bench(
    *arguments: str, at: str | None = None, do: Callable[[subprocess.Popen[str]], None] = interrupt
) -> Ended:
    """Run it to its end, with the stand-in; `at`: `do` something as soon as this is in a line of what it says."""
    path = os.pathsep.join(map(str, (ROOT / "engine/src", ROOT / "engine/lab/src", STAND_IN)))
    process = subprocess.Popen(
        [sys.executable, "-m", "flyball_lab.benchmark", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=hear_interrupts,  # noqa: PLW1509 – no thread of ours runs yet
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []

    def listen() -> None:
        for line in process.stderr or ():
            said.append(line)
            if at is not None and at in line:
                do(process)

    listener = threading.Thread(target=listen)
    listener.start()
    out = process.stdout.read()
    code = process.wait(120)
    listener.join()
    process.stdout.close()
    process.stderr.close()
    return Ended(code, out, "".join(said))
