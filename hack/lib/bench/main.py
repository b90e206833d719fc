"""`hack/bench NAME`: runs a benchmark, prints its figures, and ends with one line of JSON."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.engines import Engines, Where, both, cpu_vllm

Figures = dict[str, dict[str, float]]

#: The parts of each benchmark, by the name their figures have in its JSON, and the module of each. Those of the first
#: need no engine, those of the second share two.
SIMULATED: Final[dict[str, dict[str, str]]] = {
    "engine": {"reflex": "reflex", "gate": "gate"},
    "gpu": {},
    "law": {"open": "law_open", "gated": "law_gated"},
}
REAL: Final[dict[str, dict[str, str]]] = {
    "engine": {
        "vllm-cost": "cost",
        "vllm-retune": "retune",
        "vllm-reflex": "live_reflex",
        "vllm-gate": "live_gate",
    },
    "gpu": {"vllm-cost": "cost", "vllm-retune": "retune", "exercise": "exercise"},
    "law": {},
}
#: These need vLLM's Python alone.
BARE: Final[dict[str, dict[str, str]]] = {"engine": {}, "gpu": {"fuzz": "fuzz"}, "law": {}}


def run() -> int:
    """Run the benchmark that the arguments name."""
    asked = _arguments()
    simulated, real, bare = SIMULATED[asked.name], REAL[asked.name], BARE[asked.name]
    parts = asked.part or [*simulated, *real, *bare]
    if unknown := [part for part in parts if part not in simulated | real | bare]:
        accepted = ", ".join(simulated | real | bare)
        print(f"hack/bench {asked.name}: no part {', '.join(unknown)}; accepted: {accepted}", file=sys.stderr)
        return 2
    # A SIGTERM ends it as Ctrl-C does: with what was measured, and with no engine left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    said: dict[str, Any] = {"bench": asked.name, "figures": {}}
    with contextlib.suppress(KeyboardInterrupt):
        given = (asked.quick,) if asked.name == "law" else ()
        _run(said, [part for part in parts if part in simulated], simulated, *given)
        if wanted := [part for part in parts if part in real | bare]:
            where = Where(sys.executable, asked.model) if asked.name == "gpu" else cpu_vllm()
            said |= {"device": where.device, "vllm": where.vllm, "model": str(where.model or "small model")}
            if asked.name == "gpu" and where.gpu is None:
                print("no GPU: the same parts on the CPU", flush=True)
            if on_engines := [part for part in wanted if part in real]:
                with both(where) as engines:
                    _run(said, on_engines, real, engines)
            _run(said, [part for part in wanted if part in bare], bare, where)
            # The engines and the clients are two of it; more is other work on the machine.
            said["load average"] = os.getloadavg()
        print(json.dumps(said))
        return 1 if "failed" in said else 0
    print(json.dumps(said | {"interrupted": True}))
    return 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hack/bench", description=__doc__)
    parser.add_argument(
        "name",
        choices=REAL,
        help="engine: the reflex and the gate on the simulated engine, then cost, retunes, reflex and gate on real "
        "vLLM on the CPU; gpu: cost, retunes, a fuzz and an exercise on the vLLM of --python, on its GPU if it has "
        "one; law: the law against fixed limits and the best of them in hindsight, on the simulated engine",
    )
    parser.add_argument("--part", nargs="+", help="only these parts")
    parser.add_argument("--quick", action="store_true", help="law: one seed and a coarse grid, in about a minute")
    parser.add_argument("--model", type=Path, help="gpu: folder of a model; without it the small one of the CPU image")
    parser.add_argument("--python", help="gpu: the Python that has vLLM 0.26 or newer; without it, python3")
    return parser.parse_args()


def _run(said: dict[str, Any], parts: Sequence[str], modules: dict[str, str], *given: Engines | Where | bool) -> None:
    for part in parts:
        try:
            with _timed(part) as took:
                figures: Figures = importlib.import_module(f"bench.{modules[part]}").measure(*given)
        except Exception as error:  # noqa: BLE001 – what the other parts measure is not to be lost with this one
            said.setdefault("failed", {})[part] = f"{type(error).__name__}: {error}"
            print(f"{part}: failed: {error}", file=sys.stderr, flush=True)
            continue
        said["figures"][part] = figures
        print(f"\n{part} ({took[0]:.0f} s)")
        for title, values in figures.items():
            print(f"  {title}: " + ", ".join(f"{key} {value:.4g}" for key, value in values.items()), flush=True)


@contextmanager
def _timed(part: str) -> Iterator[list[float]]:
    print(f"{part}: measuring", file=sys.stderr, flush=True)
    took, began = [0.0], time.monotonic()
    yield took
    took[0] = time.monotonic() - began
