"""What vLLM compiles is kept for the next start, where its folder is a volume's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flyball_lab.harness.vllm_server import SMALL, started

pytestmark = pytest.mark.alone


@pytest.mark.long
def test_a_second_start_compiles_nothing_that_the_first_has_kept(
    server_python: str,
    plugin: Path,
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    note_figure: Callable[[str], None],
) -> None:
    """As `spec.model.cache.keepsCompiled` has it: pods differ in all but the folder."""
    kept = tmp_path_factory.mktemp("volume") / "compiled+chat"
    kept.mkdir()
    size = [argument for argument in SMALL if argument != "--enforce-eager"]
    made = []
    for start in ("first", "second"):
        folder = tmp_path_factory.mktemp(start)
        with started(
            server_python,
            folder,
            model=model,
            plugin=plugin,
            size=size,
            # The image has no compiler, and does not compile; one for GPUs does both.
            PATH=os.environ["PATH"],
            TORCHDYNAMO_DISABLE="0",
            VLLM_CACHE_ROOT=str(kept),
        ) as server:
            server.expect_ready()
            took = re.search(r"init engine .* took ([\d.]+) s", server.log.read_text(errors="replace"))
        assert took, server.tail()
        note_figure(f"{start} start: the engine is warm after {took[1]} s")
        made.append({path: path.stat().st_mtime_ns for path in kept.rglob("*.so")})
    assert made[0], "the first compiles"
    assert made[1] == made[0]
