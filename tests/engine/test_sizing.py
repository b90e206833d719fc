"""The sizing against the installed vLLM: what its engines and its cache manager say a cache holds, and its flags."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.launcher import environment
from flyball_lab.repository import ROOT
from flyball_lab.sizing.config import read
from flyball_lab.sizing.devices import GIB, MIB
from flyball_lab.sizing.memory import cache_shape, capacity, layer_numbers
from flyball_lab.sizing.names import REMOVED, SETTINGS
from flyball_lab.sizing.request import KV_DTYPES
from flyball_lab.sizing.shape import Heads
from support.installed import NEWEST, Installed
from support.kv_shapes import SHAPES
from support.model_configs import PUBLISHED
from support.served import Served

pytestmark = pytest.mark.engine

Note = Callable[[str], None]

#: How far the sizing may be from what vLLM reports.
WITHIN = 0.05
LAYOUTS = (
    "Llama-3-8B",
    "Gemma-2-9B",
    "Gemma-3-27B",
    "gpt-oss-20b",
    "Mistral-7B",
    "DeepSeek-V3",
    "Phi-3-mini",
    "StarCoder",
)
#: Context and max_num_batched_tokens.
SETTINGS_TRIED = ((2048, 2048), (32_768, 8192), (8192, 512))
CACHE = 10 * GIB
#: Shapes whose layers are sized as those of another; a start each.
SIZED_AS_OTHERS = (
    "MHA (Llama 2)",
    "GQA (Qwen 3)",
    "MQA (StarCoder)",
    "windows in all layers (Mistral)",
    "windows in every other layer (Gemma 2)",
)


def case(name: str, context: int, tokens: int) -> dict[str, Any]:
    model = read(PUBLISHED[name][0])
    return {
        "layers": [layer.window for layer in model.layers],
        "numbers": layer_numbers(model, 1),
        "latent": not isinstance(model.attention, Heads),
        "context": context,
        "tokens": tokens,
        "bytes": CACHE,
    }


CASES = [(name, context, tokens) for name in LAYOUTS for context, tokens in SETTINGS_TRIED]


@pytest.fixture(scope="module")
def told(vllm_python: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM reports, of all at once: it takes longer to load than to answer. Of engines where it can run them."""
    asked_for = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    serves = os.environ.get("FLYBALL_VLLM_SERVES") != "no"
    shapes = {name: shape for name, shape in SHAPES.items() if serves and name in asked_for}
    engines = [
        {
            "config": {name: value for name, value in shape.config.items() if value is not None},
            "context": shape.context,
            "tokens": shape.tokens,
            "kv_dtype": shape.kv_dtype,
            "bytes": shape.megabytes * MIB,
        }
        for shape in shapes.values()
    ]
    home = tmp_path_factory.mktemp("home")
    variables = environment(
        home,
        python_path=[ROOT / "engine/src", ROOT / "tests"],
        VLLM_PLUGINS="",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        HF_HUB_OFFLINE="1",
    )
    asked = subprocess.run(
        [vllm_python, "-P", "-m", "support.kv_capacity"],
        input=json.dumps({"engines": engines, "layers": [case(*each) for each in CASES]}),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env=variables,
        cwd="/",
    )
    assert asked.returncode == 0, asked.stderr[-5000:]
    answer: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return answer | {"engines": dict(zip(shapes, answer["engines"], strict=True))}


def sized(
    config: object, *, dtype: str = "auto", kv_dtype: str = "auto", cache: int, context: int, tokens: int
) -> float:
    """Requests that the sizing says a cache holds."""
    model = read(config, dtype=dtype)
    held = cache_shape(model, tensor_parallel=1, kv_bytes=KV_DTYPES.get(kv_dtype, model.number_bytes))
    return capacity(held, cache_bytes=cache, context=context, batched_tokens=tokens)


def test_a_cache_holds_as_many_requests_as_vllm_says(told: dict[str, Any]) -> None:
    ours = [sized(PUBLISHED[name][0], cache=CACHE, context=context, tokens=tokens) for name, context, tokens in CASES]
    assert told["layers"] == pytest.approx(ours)


@pytest.mark.usefixtures("server_python")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in SIZED_AS_OTHERS else ()) for name in SHAPES]
)
def test_an_engine_reports_the_capacity_that_was_sized(
    name: str, told: dict[str, Any], installed: Installed, note_figure: Note
) -> None:
    shape, reported = SHAPES[name], told["engines"][name]
    if lacking := reported.get("lacking"):
        assert installed.support.vllm != NEWEST or (shape.kv_dtype == "fp8" and not told["fp8"]), lacking
        pytest.skip(lacking)
    ours = sized(
        shape.config,
        kv_dtype=shape.kv_dtype,
        cache=shape.megabytes * MIB,
        context=shape.context,
        tokens=shape.tokens,
    )
    note_figure(f"{reported['tokens']} tokens by vLLM, {int(ours * shape.context)} by the sizing")
    assert ours * shape.context == pytest.approx(reported["tokens"], rel=WITHIN)
    assert reported["groups"] == len(cache_shape(read(shape.config), tensor_parallel=1, kv_bytes=2).groups)


def test_a_server_reports_the_capacity_that_was_sized(served: Served, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    ours = sized(config, dtype="float32", cache=512 * MIB, context=4096, tokens=512)
    assert served.core().kv_cache_tokens == pytest.approx(ours * 4096, rel=WITHIN)


def test_the_table_of_names_is_right_about_this_vllm(installed: Installed) -> None:
    if installed.support.vllm != NEWEST:
        pytest.skip(f"the table is of vLLM {NEWEST}, this is {installed.support.vllm}")
    flags = set(installed.options)
    written = [flag for row in SETTINGS for flag in re.findall(r"--[a-z0-9-]+", row.vllm)]
    written += [flag for row in REMOVED for flag in re.findall(r"--[a-z0-9-]+", row.today)]
    assert len(written) > 15
    assert [flag for flag in written if flag not in flags] == []
    assert [row.name for row in REMOVED if row.name in flags] == []
