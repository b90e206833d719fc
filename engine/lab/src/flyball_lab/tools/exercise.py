"""`hack/exercise`: the exercise on real vLLM on the CPU; `docs/exercise.md` quotes what it prints.

The engine has one core and the load generator the other. Each part starts an engine of its own and keeps its points
in a folder of its own, so a part that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from flyball_lab.benchmark.main import main as bench
from flyball_lab.harness.padded_server import padded
from flyball_lab.harness.vllm_server import VllmServer, make_model, make_plugin, started

#: Short enough for half a minute a point on one core, and mostly decoding, which is what batching is about.
SHORT: Final = ("--input-tokens=32", "--output-tokens=32", "--requests=3")
#: Longer answers: nearly all of the work is decoding.
ANSWERS: Final = ("--input-tokens=64", "--output-tokens=96", "--requests=3")
#: Long prompts and short answers: what chunks are for, and, where prompts begin alike, the prefix cache.
LONG: Final = ("--input-tokens=512", "--output-tokens=32", "--requests=2", "--workloads=mixed")
ALIKE: Final = (
    "--input-tokens=64",
    "--shared-prefix-tokens=448",
    "--output-tokens=32",
    "--requests=2",
    "--workloads=uniform",
)
#: One port for each run, since points are known by their endpoint.
PORT: Final = 18300
BATCHES: Final = "--concurrency=1,16,64"
SLOTS: Final = ("--max-num-seqs=64",)
DRAFTS: Final = '--speculative-config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'


@dataclass(frozen=True)
class ExercisePart:
    """One engine and what is measured on it: the engine's arguments, and those of `flyball-bench run`."""

    engine: tuple[str, ...]
    bench: tuple[str, ...]
    kind: str = "vLLM"


PARTS: Final = {
    "uniform": ExercisePart(SLOTS, (*ANSWERS, BATCHES, "--workloads=uniform", "--strategies=all")),
    "mixed": ExercisePart(SLOTS, (*SHORT, BATCHES, "--workloads=mixed", "--strategies=all")),
    "queue": ExercisePart(
        SLOTS, (*SHORT, "--concurrency=64", "--workloads=mixed", "--strategies=all", "--batch-size=16")
    ),
    "chunks": ExercisePart(
        (*SLOTS, "--max-num-batched-tokens=256"), (*LONG, BATCHES, "--label=chunked prefill, 256 tokens a step")
    ),
    "whole": ExercisePart(
        (*SLOTS, "--max-num-batched-tokens=4096", "--no-enable-chunked-prefill"),
        (*LONG, BATCHES, "--label=no chunked prefill"),
    ),
    "prefix": ExercisePart((*SLOTS, "--enable-prefix-caching"), (*ALIKE, BATCHES, "--label=prefix caching")),
    "no-prefix": ExercisePart((*SLOTS, "--no-enable-prefix-caching"), (*ALIKE, BATCHES, "--label=no prefix caching")),
    "padded": ExercisePart(
        SLOTS,
        (*SHORT, BATCHES, "--workloads=mixed", "--strategies=Static,Dynamic,Bucketed", "--label=padded engine"),
        kind="the padded engine",
    ),
    "plain": ExercisePart(SLOTS, (*SHORT, BATCHES, "--workloads=uniform", "--label=no speculation")),
    "ngram": ExercisePart((*SLOTS, DRAFTS), (*SHORT, BATCHES, "--workloads=uniform", "--label=ngram, 3 drafts")),
}


def run() -> int:
    """Measure the parts that are named, then report all there are."""
    parser = argparse.ArgumentParser(prog="hack/exercise", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them, some 20 minutes")
    parser.add_argument("--out", type=Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; accepted: {', '.join(PARTS)}")
    # The engine's process is ended on the way out.
    signal.signal(signal.SIGTERM, _terminate)
    for name in options.parts or PARTS:
        if code := measure(name, options.out):
            return code
    done = [str(options.out / name) for name in PARTS if (options.out / name / "results.jsonl").exists()]
    return bench(["report", *done, f"--out={options.out}"])


def measure(name: str, out: Path) -> int:
    """One part; the exit code of `flyball-bench`."""
    part, python = PARTS[name], os.environ["FLYBALL_VLLM_PYTHON"]
    cores = sorted(os.sched_getaffinity(0))
    print(f"exercise: {name}: starting {part.kind} with {' '.join(part.engine)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        model = make_model(python, folder / "model")
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[:1])
        server = stack.enter_context(_engine(part, python, folder, model))
        os.sched_setaffinity(0, cores[-1:])
        server.expect_ready()
        key = folder / "key.pem"
        key.write_bytes(server.signer.private_pem)
        where = [f"--url={server.url}", f"--control={server.control_url}", f"--signing-key={key}"]
        how = [f"--python={python}", f"--tokenizer={model}", f"--out={out / name}"]
        return bench(["run", *where, *how, *part.bench])


def _engine(part: ExercisePart, python: str, folder: Path, model: Path) -> AbstractContextManager[VllmServer]:
    if part.kind == "vLLM":
        plugin = make_plugin(folder / "plugin")
        return started(python, folder, model=model, plugin=plugin, owned=part.engine, port=PORT)
    return padded(python, folder, model=model, options=part.engine, port=PORT)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run())
