"""`hack/bench NAME`: runs a benchmark, prints its figures, and ends with one line of JSON."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from flyball_engine.figures import figure
from flyball_lab.benches.engine.engines import WarmEngines, Where, both, cpu_vllm
from flyball_lab.benches.figures import command_line, keep, of_today, tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.options import OBJECTIVES, PRESET, Options
from flyball_lab.pages.figures import Measured
from flyball_lab.repository import ROOT

Figures = dict[str, dict[str, float]]
#: What parts are given.
Given = WarmEngines | Where | Options

#: Where the modules below are.
BENCHES: Final = "flyball_lab.benches"
#: The parts of each benchmark, by the name their figures have in its JSON, and the module of each. Those of the first
#: need no engine, those of the second share two.
SIMULATED: Final[dict[str, dict[str, str]]] = {
    "engine": {"reflex": "engine.step_budget", "gate": "engine.gate"},
    "gpu": {},
    "law": {
        "open": "law.open",
        "gated": "law.gated",
        "order": "law.order",
        "robust": "law.robust",
        "ablate": "law.ablation",
        "trace": "law.trace",
    },
    "tick": {"tick": "tick.cost"},
    "reconcile": {"reconcile": "reconcile.cost"},
    "scaling": {"scaling": "scaling.compare", "trace": "scaling.trace"},
    "live": {},
    "padded": {},
}
REAL: Final[dict[str, dict[str, str]]] = {
    "engine": {
        "vllm-cost": "engine.cost",
        "vllm-retune": "engine.retune",
        "vllm-reflex": "engine.live_step_budget",
        "vllm-gate": "engine.live_gate",
        "vllm-order": "engine.live_order",
    },
    "gpu": {"vllm-cost": "engine.cost", "vllm-retune": "engine.retune", "exercise": "engine.exercise"},
    "law": {},
    "tick": {},
    "reconcile": {},
    "scaling": {},
    "live": {"open": "live.open", "gated": "live.gated"},
    "padded": {},
}
#: Services are told apart by their addresses, of which loopback has enough.
LARGEST_COUNT: Final = 10_000
#: These need vLLM's Python alone, or engines of their own.
BARE: Final[dict[str, dict[str, str]]] = {
    "engine": {"vllm-cost-0.5b": "engine.cost_larger", "vllm-hooks": "engine.hooks"},
    "gpu": {"vllm-hooks": "engine.hooks", "fuzz": "engine.fuzz"},
    "law": {},
    "tick": {},
    "reconcile": {},
    "scaling": {},
    "live": {},
    "padded": {"encoders": "padded.compare", "architectures": "padded.architectures"},
}
#: What a benchmark is told besides its parts, refuses before any run, and leaves as a report.
COMMANDS: Final = {"law": "law.command", "live": "live.command", "scaling": "scaling.trace"}
#: Options that mean something to some benchmarks alone.
MEANT_FOR: Final[dict[str, tuple[str, ...]]] = {
    "seeds": ("law",),
    "scenario": ("law",),
    "ablate": ("law",),
    "quick": ("law", "live"),
    "out": ("law", "live"),
    "trace": ("law", "scaling"),
    "rate": ("law",),
    "minutes": ("law",),
    "preset": ("law",),
    "model": ("gpu",),
    "services": ("tick", "reconcile"),
    "ticks": ("tick",),
    "python": ("gpu",),
}
#: Options that make figures what they are.
SHAPES_RUN: Final = (
    *("part", "quick", "seeds", "ablate", "trace", "rate", "minutes", "preset", "model"),
    *("services", "ticks"),
)
#: How its engines differ: vLLM's default of requests at once, and nobody looks on.
ENGINES: Final[dict[str, dict[str, Any]]] = {"live": {"slots": 256, "timed": False}}
#: Whose parts make models of their own, or none.
OWN_MODELS: Final = frozenset({"padded"})


def run() -> int:
    """Run the benchmark that the arguments name."""
    parser = _parser()
    asked = _arguments(parser)
    simulated, real, bare = SIMULATED[asked.name], REAL[asked.name], BARE[asked.name]
    parts = asked.part or _all_parts(asked, [*simulated, *real, *bare])
    if unknown := [part for part in parts if part not in simulated | real | bare]:
        accepted = ", ".join(simulated | real | bare)
        print(f"hack/bench {asked.name}: no part {', '.join(unknown)}; accepted: {accepted}", file=sys.stderr)
        return 2
    given = (_options(asked),) if asked.name in (*COMMANDS, "tick", "reconcile") else ()
    if asked.name in COMMANDS and (refused := _command(asked.name).refusal(*given, parts)):
        print(f"hack/bench {asked.name}: {refused}", file=sys.stderr)
        return 2
    # A SIGTERM ends it as Ctrl-C does: with what was measured, and with no engine left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gpu: str | None = None
    said: dict[str, Any] = {"bench": asked.name, "figures": {}} | ({"quick": True} if asked.quick else {})
    if asked.name == "law":
        said["seeds"] = list(_options(asked).played)
    with contextlib.suppress(KeyboardInterrupt):
        _run(said, [part for part in parts if part in simulated], simulated, *given)
        if wanted := [part for part in parts if part in real | bare]:
            where = Where(sys.executable, asked.model) if asked.name == "gpu" else cpu_vllm()
            said |= {"device": where.device, "vllm": where.vllm}
            if asked.name not in OWN_MODELS:
                said["model"] = str(where.model or "small model")
            gpu = where.gpu if asked.name == "gpu" else None
            if asked.name == "gpu" and gpu is None:
                print("no GPU: the same parts on the CPU", flush=True)
            if on_engines := [part for part in wanted if part in real]:
                with both(where, **ENGINES.get(asked.name, {})) as engines:
                    _run(said, on_engines, real, engines, *given)
            _run(said, [part for part in wanted if part in bare], bare, where)
            # The engines and the clients are two of it; more is other work on the machine.
            said["load average"] = os.getloadavg()
        code = _end(said, asked, 1 if "failed" in said else 0)
        if asked.figures:
            given_options = {option: getattr(asked, option) for option in SHAPES_RUN}
            command = command_line(f"hack/bench {asked.name}", given_options, parser.get_default)
            _keep(said, simulated | real | bare, of_today(command, gpu=gpu, note=_note(said)))
        return code
    return _end(said | {"interrupted": True}, asked, 130)


def _keep(said: dict[str, Any], modules: dict[str, str], measured: Measured) -> None:
    """Write the tables of all parts that did not fail."""
    for part, figures in said["figures"].items():
        module = importlib.import_module(f"{BENCHES}.{modules[part]}")
        for name, made in tables(said["bench"], part, module, figures):
            path = keep(name, made, measured)
            # Not on stdout, which ends with the line of JSON.
            print(f"figures: {path.relative_to(ROOT)}; hack/gen writes the page", file=sys.stderr, flush=True)


def _note(said: dict[str, Any]) -> str | None:
    """What else a reader of the figures must know."""
    seeds = said.get("seeds", [])
    if seeds:
        return "Seed 1" if len(seeds) == 1 else f"{len(seeds)} seeds"
    if "vllm" not in said:
        return None
    return f"vLLM {said['vllm']}" + (f", {Path(said['model']).name}" if "model" in said else "")


def _all_parts(asked: argparse.Namespace, parts: list[str]) -> list[str]:
    """A trace and the law's ablation are parts of their own: if asked for, that alone, else all others."""
    if "trace" not in parts:
        return parts
    if asked.ablate and asked.trace is None:
        return ["ablate"]
    return [part for part in parts if part != "ablate" and (part == "trace") == (asked.trace is not None)]


def _options(asked: argparse.Namespace) -> Options:
    return Options(
        quick=asked.quick,
        seeds=asked.seeds,
        ablate=tuple(asked.ablate),
        out=asked.out,
        trace=asked.trace,
        rate=asked.rate,
        minutes=asked.minutes,
        scenarios=tuple(asked.scenario),
        preset=asked.preset,
        services=tuple(asked.services),
        ticks=asked.ticks,
    )


def _command(name: str) -> Any:
    """Imported when it is needed: a Python with vLLM has not all that it imports."""
    return importlib.import_module(f"{BENCHES}.{COMMANDS[name]}")


def _end(said: dict[str, Any], asked: argparse.Namespace, code: int) -> int:
    if asked.out is not None and asked.name in COMMANDS:
        print(f"report: {_command(asked.name).write_report(asked.out, said)}", flush=True)
    print(json.dumps(said))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hack/bench", description=__doc__)
    parser.add_argument(
        "name",
        choices=REAL,
        help="engine: the reflex and the gate on the simulated engine, then cost, retunes, reflex, gate, order "
        "and hooks on real vLLM on the CPU; "
        "gpu: cost, retunes, hooks, a fuzz and an exercise on the vLLM of --python, on its GPU "
        "if it has one; law: the law against other rules and the best limits in hindsight, on the simulated engine, "
        "and orders of prompts under setpoints that never move; "
        "tick: what a tick of the operator's tuner costs over a real Prometheus, 3 minutes for each number of "
        "services; reconcile: what the operator costs on the local cluster, where kwok plays the nodes, an hour for "
        "1000 services; scaling: rules for the number of replicas on a fleet of simulated engines, 3 minutes, "
        "with --trace 7; "
        "live: the operator's tuner on real vLLM on the CPU against vLLM's defaults and other limits that "
        "never move, under a load that shifts, in some 50 minutes; "
        "padded: an encoder under vLLM and in padded batches, and which model classes vLLM lacks",
    )
    parser.add_argument("--part", nargs="+", help="only these parts")
    parser.add_argument("--seeds", type=int, choices=(1, 2, 3), help="law: so many; without it three, quick one")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="law: one seed and a coarse grid, in some minutes; live: one repetition, few limits and short phases, "
        "in some six",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="law, live: keep results and a report there, and go on from them"
    )
    parser.add_argument(
        "--scenario",
        nargs="+",
        default=(),
        metavar="NAME",
        help="law: of the parts open, gated and ablate these scenarios alone",
    )
    parser.add_argument(
        "--ablate",
        nargs="+",
        default=[],
        metavar="CONSTANT",
        help="law: what each of these constants of the law buys, or all of them: switched off, halved, half as much "
        "again",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="law, scaling: a recorded load, with the columns of Azure's"
    )
    parser.add_argument(
        "--rate", type=_positive, help="law: play the trace so many times as fast; without it, 80 %% of what is carried"
    )
    parser.add_argument("--minutes", type=_positive, help="law: only the first minutes of the trace, as recorded")
    parser.add_argument("--preset", choices=OBJECTIVES, default=PRESET, help="law: what the trace is played on")
    parser.add_argument("--model", type=Path, help="gpu: folder of a model; without it the small one of the CPU image")
    parser.add_argument(
        "--services",
        nargs="+",
        type=_count,
        default=[1, 100, 1000],
        help="tick, reconcile: how many there are; 1 100 1000",
    )
    parser.add_argument("--ticks", type=_count, default=20, help="tick: how many are measured; 20")
    parser.add_argument("--python", help="gpu: the Python that has vLLM 0.26 or newer; without it, python3")
    parser.add_argument(
        "--figures",
        action="store_true",
        help="keep the tables of each part that ends in docs/figures, from where hack/gen takes them to the pages",
    )
    return parser


def _arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    asked = parser.parse_args()
    for option, names in MEANT_FOR.items():
        if asked.name not in names and getattr(asked, option) != parser.get_default(option):
            parser.error(f"--{option} is no option of {asked.name}, but of: {', '.join(names)}")
    if asked.figures and (asked.scenario or set(asked.ablate) - {"all"}):
        parser.error("--figures keeps whole tables: leave out --scenario, and constants after --ablate but all")
    return asked


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= LARGEST_COUNT:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {LARGEST_COUNT}")
    return int(text)


def _run(
    said: dict[str, Any], parts: Sequence[str], modules: dict[str, str], *given: WarmEngines | Where | Options
) -> None:
    for part in parts:
        try:
            with _timed(part) as took:
                figures: Figures = importlib.import_module(f"{BENCHES}.{modules[part]}").measure(*given)
        except InterruptedPart as interrupted:
            said["figures"][part] = interrupted.figures
            _tell(part, took[0], interrupted.figures)
            raise
        except Exception as error:  # noqa: BLE001 – what the other parts measure is not to be lost with this one
            said.setdefault("failed", {})[part] = f"{type(error).__name__}: {error}"
            print(f"{part}: failed: {error}", file=sys.stderr, flush=True)
            continue
        said["figures"][part] = figures
        _tell(part, took[0], figures)


def _tell(part: str, took: float, figures: Figures) -> None:
    print(f"\n{part} ({took:.0f} s)")
    for title, values in figures.items():
        print(f"  {title}: " + ", ".join(f"{key} {figure(value, 4)}" for key, value in values.items()), flush=True)


@contextmanager
def _timed(part: str) -> Iterator[list[float]]:
    print(f"{part}: measuring", file=sys.stderr, flush=True)
    took, began = [0.0], time.monotonic()
    try:
        yield took
    finally:
        took[0] = time.monotonic() - began
