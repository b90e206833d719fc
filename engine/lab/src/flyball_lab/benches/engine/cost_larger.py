"""The same cost where a step takes as long as a larger model's: half a billion weights instead of twenty million.

What our hooks take hangs on requests and not on the model; a step hangs on the model. The weights are whatever vLLM's
dummy loader makes of the shapes, which cost what real ones do.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from flyball_lab.benches.engine import cost
from flyball_lab.benches.engine.cost import tables
from flyball_lab.benches.engine.engines import Where, both
from flyball_lab.harness.vllm_server import SMALL, make_model

__all__ = ["measure", "tables"]

#: Shapes of Qwen2.5-0.5B (its `config.json`); the vocabulary stays the small model's.
SHAPES: Final[dict[str, Any]] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def measure(where: Where) -> dict[str, dict[str, float]]:
    """What `cost` tells, of two engines of its own."""
    with TemporaryDirectory(prefix="flyball-bench-model-") as name:
        model = _larger(make_model(where.python, Path(name) / "small"), Path(name) / "larger")
        with both(Where(where.python, model), size=(*SMALL, "--load-format=dummy")) as engines:
            return cost.measure(engines)


def _larger(small: Path, folder: Path) -> Path:
    """A model of these shapes in a folder, without weights."""
    shutil.copytree(small, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | SHAPES), encoding="utf-8")
    return folder
