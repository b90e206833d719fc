"""An encoder under vLLM's pooling runner and in sorted padded batches: inputs per second, latencies, padding.

All have the same weights, one thread for the model, as many tokens a step or batch, and no front end. Each repetition
plays the same inputs to all, one after another, the order reversed each time, so that drift cancels. First all inputs
are due at once, where many are of like length. Then they come at random times, at a share of what the slowest engine
answers when all are due at once.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from flyball_lab.benches.engine.bare import command, environment, printed
from flyball_lab.benches.engine.engines import Where, say
from flyball_lab.benches.engine.load import poisson
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.padded.encoder import EncoderLoad, EncoderProcess, EncoderRun, started
from flyball_lab.harness import cpu_image
from flyball_lab.pages.figures import Cell, Column, table
from flyball_lab.quantiles import quantile

PADDED: Final = "padded batches"
#: The modules that run them, and their arguments.
ENGINES: Final[Mapping[str, tuple[str, ...]]] = {
    "vLLM, its own class": ("vllm_encoder", "--model-impl=vllm"),
    "vLLM, Transformers' class": ("vllm_encoder", "--model-impl=transformers"),
    PADDED: ("padded_encoder",),
}
#: Tokens of an input: median, deviation of the logarithm, fewest and most.
LENGTHS: Final = (110, 0.8, 20, 512)
#: Tokens of a step of vLLM; of a padded batch, with its padding.
BUDGET: Final = 2048
#: Inputs that are due at once.
INPUTS: Final = 96
REPETITIONS: Final = 3
SHARE: Final = 0.7
SECONDS: Final = 12.0
#: Inputs that each embeds before: they show that all compute the same.
WARM_UP: Final = 16
#: How much a number of one engine's vectors, which have length 1, may differ from the other's.
TOLERANCE: Final = 1e-3
#: Token ids of inputs: none of them means anything to the model.
IDS: Final = (1000, 30000)
#: How titles of figures begin.
AT_ONCE: Final = "all at once: "
AT_RANDOM: Final = "at random times: "


@dataclass(frozen=True)
class Played:
    """A load, and what came of it on one engine."""

    load: EncoderLoad
    run: EncoderRun

    @property
    def per_second(self) -> float:
        """Inputs."""
        return len(self.load.prompts) / self.run.seconds


def measure(where: Where) -> dict[str, dict[str, float]]:
    """What each engine made of both loads."""
    random = Random(1788)
    with TemporaryDirectory(prefix="flyball-padded-") as name, _engines(where, Path(name)) as engines:
        expect_alike(_vectors(engines, random))
        at_once = _repeated(engines, lambda: _prompts(random, [0.0] * INPUTS))
        slowest = min(statistics.fmean(one.per_second for one in played) for played in at_once.values())
        rate = SHARE * slowest
        say(f"at random times: {rate:.1f} inputs/s")
        at_random = _repeated(engines, lambda: _prompts(random, list(poisson(random, rate=rate, seconds=SECONDS))))
    return figures_of(at_once, at_random, rate=rate)


def figures_of(
    at_once: Mapping[str, Sequence[Played]], at_random: Mapping[str, Sequence[Played]], *, rate: float
) -> dict[str, dict[str, float]]:
    """By engine under each load. What is compared are the runs of one repetition."""
    figures = {}
    for engine, played in at_once.items():
        ratios = [one.per_second / other.per_second for one, other in zip(played, at_once[PADDED], strict=True)]
        figures[AT_ONCE + engine] = {
            "inputs/s": statistics.fmean(one.per_second for one in played),
            "over padded": math.exp(statistics.fmean(map(math.log, ratios))),
            "from": min(ratios),
            "to": max(ratios),
            **_shared(played),
        }
    for engine, played in at_random.items():
        figures[AT_RANDOM + engine] = {"inputs/s": rate, **_shared(played)}
    return figures


def tables(figures: Figures) -> Tables:
    """A table for each load."""
    (rate,) = {values["inputs/s"] for title, values in figures.items() if title.startswith(AT_RANDOM)}
    shared = (Column(title="p50, s", digits=2), Column(title="p99, s", digits=2), Column(title="padding, %", digits=2))
    throughput: list[tuple[Cell, ...]] = []
    latencies: list[tuple[Cell, ...]] = []
    for title, values in figures.items():
        last = (values["p50 s"], values["p99 s"], values["padding %"])
        if title.startswith(AT_ONCE):
            ratio = f"{values['over padded']:.2f} ({values['from']:.2f}-{values['to']:.2f})"
            throughput.append((title.removeprefix(AT_ONCE), values["inputs/s"], ratio, *last))
        else:
            latencies.append((title.removeprefix(AT_RANDOM), *last))
    heads = (Column(title="inputs/s", digits=3), "over padded batches", *shared)
    return {
        "": table((f"{INPUTS} inputs at once", *heads), throughput),
        "open": table((f"{rate:.1f} inputs/s at random times", *shared), latencies),
    }


def expect_alike(vectors: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Raises RuntimeError unless all engines made the same vectors, and different ones of different inputs."""
    ours = vectors[PADDED]
    nearest = min(_apart(one, other) for place, one in enumerate(ours) for other in ours[:place])
    if nearest <= 10 * TOLERANCE:
        raise RuntimeError(f"vectors of different inputs are only {nearest:.2g} apart: it cannot be told who is right")
    for engine, theirs in vectors.items():
        farthest = max(map(_apart, theirs, ours))
        if farthest > TOLERANCE:
            raise RuntimeError(f"{engine}: its vectors are up to {farthest:.2g} from those of {PADDED}")


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _shared(played: Sequence[Played]) -> dict[str, float]:
    latencies = [latency for one in played for latency in one.run.latencies]
    computed = sum(one.run.computed for one in played)
    return {
        "p50 s": quantile(latencies, 0.5),
        "p99 s": quantile(latencies, 0.99),
        "padding %": 100 * (1 - sum(one.load.tokens for one in played) / computed),
        "inputs": len(latencies),
    }


@contextlib.contextmanager
def _engines(where: Where, folder: Path) -> Iterator[dict[str, EncoderProcess]]:
    """All of them, ready; they end with the block."""
    model = folder / "model"
    printed(where, folder, "make_encoder", str(model))
    variables = {
        **environment(folder),
        **cpu_image.variables(),
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
    }
    say(f"starting {len(ENGINES)} engines, vLLM {where.vllm}, on {where.device}")
    with contextlib.ExitStack() as stack:
        engines = {}
        for number, (engine, (module, *arguments)) in enumerate(ENGINES.items()):
            line = command(where, module, str(model), f"--budget={BUDGET}", *arguments)
            engines[engine] = stack.enter_context(started(line, variables, folder / f"{number}.log"))
        for process in engines.values():
            process.expect_ready()
        yield engines


def _vectors(engines: Mapping[str, EncoderProcess], random: Random) -> dict[str, Sequence[Sequence[float]]]:
    load = _prompts(random, [0.0] * WARM_UP, vectors=True)
    return {engine: process.play(load).vectors for engine, process in engines.items()}


def _repeated(engines: Mapping[str, EncoderProcess], load_of: Callable[[], EncoderLoad]) -> dict[str, list[Played]]:
    played: dict[str, list[Played]] = {engine: [] for engine in engines}
    for repetition in range(REPETITIONS):
        load, order = load_of(), list(engines)
        if repetition % 2:
            order.reverse()
        for engine in order:
            played[engine].append(Played(load, engines[engine].play(load)))
        say(", ".join(f"{engine}: {found[-1].per_second:.1f} inputs/s" for engine, found in played.items()))
    return played


def _prompts(random: Random, at: Sequence[float], *, vectors: bool = False) -> EncoderLoad:
    median, deviation, least, most = LENGTHS
    lengths = [min(most, max(least, round(median * random.lognormvariate(0, deviation)))) for _ in at]
    prompts = [[random.randrange(*IDS) for _ in range(length)] for length in lengths]
    return EncoderLoad(prompts=prompts, at=at, vectors=vectors)
