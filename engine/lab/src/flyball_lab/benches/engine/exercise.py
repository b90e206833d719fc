"""One exercise (`flyball-bench`) of the governed engine: from one stream to as many as it has slots."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from pathlib import Path
from sys import stderr
from tempfile import TemporaryDirectory
from typing import Any, Final

from flyball_lab.benches.engine.engines import WarmEngines
from flyball_lab.benchmark.main import main as flyball_bench
from flyball_lab.harness.vllm_server import make_model

WHAT: Final = (
    *("--concurrency=1,16,64", "--requests=2", "--workloads=uniform"),
    *("--input-tokens=32", "--output-tokens=48"),
)


def measure(engines: WarmEngines) -> dict[str, dict[str, float]]:
    """What was measured at each number of streams."""
    with TemporaryDirectory(prefix="flyball-exercise-") as name:
        folder, where = Path(name), engines.where
        model = where.model or make_model(where.python, folder / "model")
        arguments = [f"--url={engines.governed.server.url}", f"--python={where.python}", f"--tokenizer={model}"]
        with redirect_stdout(stderr):
            code = flyball_bench(["run", *arguments, *WHAT, f"--out={folder / 'out'}"])
        if code:
            raise RuntimeError(f"flyball-bench ended with {code}")
        lines = (folder / "out" / "results.jsonl").read_text().splitlines()
    said = [json.loads(line) for line in lines]
    return {f"{one['point']['concurrency']} streams": _figures(one) for one in said}


def _figures(said: dict[str, Any]) -> dict[str, float]:
    names = ("output_tokens_per_second", "completed", "failed")
    percentiles = {f"{name} {share}": said[name][share] for name in ("ttft", "tpot") for share in ("p50", "p99")}
    return {name: said[name] for name in names} | percentiles
