"""The sizing against the installed vLLM: how many requests its own cache manager says a cache holds, and its flags."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from flyball_engine.sizing.config import read
from flyball_engine.sizing.devices import GIB
from flyball_engine.sizing.memory import cache_shape, capacity, layer_numbers
from flyball_engine.sizing.names import REMOVED, SETTINGS
from flyball_engine.sizing.shape import Heads
from support.installed import NEWEST, Installed
from support.launcher import environment
from support.model_configs import PUBLISHED

pytestmark = pytest.mark.engine

SHAPES = (
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

#: Reads [{layers, numbers, latent, context, tokens, bytes}], prints the concurrency of each.
_ASK = """
import json, sys
from types import SimpleNamespace as Simple
import torch
from vllm.v1.core import kv_cache_utils as utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

def concurrency(case):
    shape = dict(block_size=16, dtype=torch.bfloat16, num_kv_heads=1)
    if "dcp_sharded" in FullAttentionSpec.__dataclass_fields__:
        shape["dcp_sharded"] = False
    shape["head_size"] = case["numbers"] if case["latent"] else case["numbers"] // 2
    full = MLAAttentionSpec if case["latent"] else FullAttentionSpec
    specs = {
        str(layer): full(**shape) if window is None else SlidingWindowSpec(sliding_window=window, **shape)
        for layer, window in enumerate(case["layers"])
    }
    if utils.is_kv_cache_spec_uniform(specs):
        groups = utils._get_kv_cache_groups_uniform_spec(specs)
    else:
        groups = utils._get_kv_cache_groups_uniform_page_size(specs)
    page = specs["0"].page_size_bytes
    held = [
        Simple(kv_cache_spec=group.kv_cache_spec, layer_names=group.layer_names, host_resident=False)
        for group in groups
    ]
    blocks = case["bytes"] // (page * max(len(group.layer_names) for group in groups))
    config = Simple(
        model_config=Simple(max_model_len=case["context"]),
        parallel_config=Simple(decode_context_parallel_size=1),
        scheduler_config=Simple(max_num_batched_tokens=case["tokens"]),
        max_in_flight_tokens=2 * case["tokens"],
    )
    cache = Simple(num_blocks=blocks, kv_cache_groups=held, hisparse_host_num_blocks=None)
    return utils.get_max_concurrency_for_kv_cache_config(config, cache)

print(json.dumps([concurrency(case) for case in json.load(sys.stdin)]))
"""


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


CASES = [(name, context, tokens) for name in SHAPES for context, tokens in SETTINGS_TRIED]


@pytest.fixture(scope="module")
def told(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    out = subprocess.run(
        [vllm_python, "-c", _ASK],
        input=json.dumps([case(*each) for each in CASES]),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env=environment(tmp_path_factory.mktemp("home")),
    )
    answer: list[float] = json.loads(out.stdout.splitlines()[-1])
    return answer


def test_a_cache_holds_as_many_requests_as_vllm_says(told: list[float]) -> None:
    ours = [
        capacity(
            cache_shape(read(PUBLISHED[name][0]), tensor_parallel=1, kv_bytes=2),
            cache_bytes=CACHE,
            context=context,
            batched_tokens=tokens,
        )
        for name, context, tokens in CASES
    ]
    assert told == pytest.approx(ours)


def test_the_table_of_names_is_right_about_this_vllm(installed: Installed) -> None:
    if installed.support.vllm != NEWEST:
        pytest.skip(f"the table is of vLLM {NEWEST}, this is {installed.support.vllm}")
    flags = set(installed.options)
    written = [flag for row in SETTINGS for flag in re.findall(r"--[a-z0-9-]+", row.vllm)]
    written += [flag for row in REMOVED for flag in re.findall(r"--[a-z0-9-]+", row.today)]
    assert len(written) > 15
    assert [flag for flag in written if flag not in flags] == []
    assert [row.name for row in REMOVED if row.name in flags] == []
