"""What KV cache vLLM reports: of engine cores of many models, and of layers alone.

    python -m support.kv_capacity  ←  {"engines": [{"config": {…}, …}, …], "layers": […]} on standard input
                                   →  {"engines": [{"tokens": …, …}, …], "layers": [concurrency, …], "fp8": true}

Run by the Python of the vLLM environment. Of an engine core everything is vLLM's own: it makes the model (with made-up
weights), asks its layers what they cache, lays the cache out, allocates it, and says what it holds. All are children of
one process: loading vLLM takes longer than a small engine core.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace as Simple
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from support.model_classes import look_up_here

try:
    from vllm.v1.core import kv_cache_planning as planning  # since 0.33
except ImportError:
    planning = kv_cache_utils


def schedule_asynchronously() -> None:
    """As on GPUs: two steps are in flight, and windows keep their blocks as long. The CPU platform switches it off."""
    kind = type(current_platform)
    original = kind.check_and_update_config.__func__

    def asynchronous(cls: Any, config: Any) -> None:
        original(cls, config)
        config.scheduler_config.async_scheduling = True

    kind.check_and_update_config = classmethod(asynchronous)


def fp8_cached() -> bool:
    """Whether vLLM has an FP8 cache on this processor: what it asks before it says that it has none."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return bool(torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported())


def capacity(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What vLLM reports of one model's cache, or what it lacks on a CPU."""
    (folder / "config.json").write_text(json.dumps(case["config"]))
    (architecture,) = case["config"]["architectures"]
    look_up_here(architecture)
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        dtype="bfloat16",
        kv_cache_dtype=case["kv_dtype"],
        kv_cache_memory_bytes=case["bytes"],
        max_model_len=case["context"],
        max_num_batched_tokens=case["tokens"],
        max_num_seqs=8,
        distributed_executor_backend="uni",
    ).create_engine_config()
    try:
        core = EngineCore(config, Executor.get_class(config), log_stats=False)
    except NotImplementedError as error:
        return {"lacking": str(error)}
    try:
        cache = core.scheduler.kv_cache_config
        tokens, _ = get_kv_cache_capacity(config, cache)
        return {"tokens": tokens, "groups": len(cache.kv_cache_groups)}
    finally:
        core.shutdown()


def apart(case: dict[str, Any]) -> dict[str, Any]:
    """The same, in a child: some versions crash on a model that their CPU kernels do not know (0.26, heads of 80)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            with tempfile.TemporaryDirectory() as folder, os.fdopen(write, "w") as answer:
                json.dump(capacity(case, Path(folder)), answer)
        except BaseException:  # noqa: BLE001 – a child must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return {"lacking": f"vLLM ended by {signal.Signals(-code).name}"}
    assert code == 0, "see above"
    told: dict[str, Any] = json.loads(said)
    return told


def concurrency(case: dict[str, Any]) -> float:
    """Requests that vLLM's cache manager says a cache holds, of layers as given: larger models than can be started."""
    shape: dict[str, Any] = {"block_size": 16, "dtype": torch.bfloat16, "num_kv_heads": 1}
    if "dcp_sharded" in FullAttentionSpec.__dataclass_fields__:
        shape["dcp_sharded"] = False
    shape["head_size"] = case["numbers"] if case["latent"] else case["numbers"] // 2
    full = MLAAttentionSpec if case["latent"] else FullAttentionSpec
    specs = {
        str(layer): full(**shape) if window is None else SlidingWindowSpec(sliding_window=window, **shape)
        for layer, window in enumerate(case["layers"])
    }
    if planning.is_kv_cache_spec_uniform(specs):
        groups = planning._get_kv_cache_groups_uniform_spec(specs)
    else:
        groups = planning._get_kv_cache_groups_uniform_page_size(specs)
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
    return float(kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, cache))


def main() -> None:
    """Answer both questions; what vLLM prints goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    logging.disable(logging.INFO)
    schedule_asynchronously()
    asked = json.load(sys.stdin)
    told: dict[str, Any] = {
        "layers": [concurrency(case) for case in asked["layers"]],
        "engines": [],
        "fp8": fp8_cached(),
    }
    told["engines"] = [apart(case) for case in asked["engines"]]
    print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
