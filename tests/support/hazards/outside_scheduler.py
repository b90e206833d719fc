"""What changes live limits meet beside the scheduler: plugins, processes, metrics, caches, as naive and as ours."""

from __future__ import annotations

import asyncio
import copy
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vllm import plugins
from vllm.config import SchedulerConfig, VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats, SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from flyball_engine.contract import Env, Knob
from flyball_engine.control.acceptance import SetpointRefused
from flyball_engine.control.tokens import verifier_of
from flyball_engine.launch.environment import Place, changes
from flyball_engine.vllm import plugin
from flyball_engine.vllm.entry import OUR_PLUGINS
from flyball_engine.vllm.plugin import governed_class
from flyball_lab.harness.engine import SERVICE, SetpointSigner
from support.hazards.core import Core

_AUTHENTICATION = (
    "vllm.entrypoints.serve.middleware.authenticate",
    "vllm.entrypoints.openai.server_utils",
    "vllm.entrypoints.serve.utils.server_utils",
)


def a_scheduler_of_the_wrong_kind(model: str) -> dict[str, Any]:
    """A subclass of the synchronous scheduler in an engine with two steps in flight."""
    naive, ours = (Core(model, governed=governed, asynchronous=True) for governed in (False, True))
    naive.scheduler.__class__ = Scheduler
    shown = {}
    for name, core in (("naive", naive), ("ours", ours)):
        core.fill(4)
        steps = [core.schedule(), core.schedule()]
        shown[name] = {"kind": type(core.scheduler).__name__, "served": [len(step) for step in steps]}
    return shown


def a_name_that_nobody_reads(model: str) -> dict[str, Any]:
    """Before 0.31 vLLM has no active limit: to set one is to set nothing."""
    naive, ours = (Core(model, governed=governed, ratchet=True) for governed in (False, True))
    naive.scheduler.__dict__["max_num_active_reqs"] = 4
    ours.retune(max_num_active_seqs=4)
    for core in (naive, ours):
        for _ in range(16):
            core.add()
        core.steps(3)
    return {name: {"running": len(core.scheduler.running)} for name, core in (("naive", naive), ("ours", ours))}


def memory_that_stays_taken(model: str) -> dict[str, Any]:
    """Limits are lowered to have memory back."""
    core = Core(model, governed=True)
    before = core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    core.retune(max_num_active_seqs=1, max_num_scheduled_tokens=16)
    state = core.report().state
    return {
        "naive": {"blocks": [before, core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks]},
        "ours": {"limit": state.effective.max_num_active_seqs, "ceiling": state.ceilings.max_num_seqs},
    }


def ranks_that_draft_differently(model: str) -> dict[str, Any]:
    """Two data-parallel ranks, one of which has heard of another depth already."""

    def of_two(scheduler: Any) -> None:
        scheduler.parallel_config = copy.copy(scheduler.parallel_config)
        scheduler.parallel_config.data_parallel_size = 2

    ranks = [Core(model, governed=False, drafts=True) for _ in range(2)]
    ranks[0].scheduler.dynamic_sd_lookup = [min(one, 2) for one in ranks[0].scheduler.dynamic_sd_lookup]
    ours = [Core(model, governed=True, drafts=True, prepare=of_two) for _ in range(2)]
    ours[0].retune(num_speculative_tokens=2)
    return {
        "naive": {"drafts": [_drafts(rank) for rank in ranks]},
        "ours": {"drafts": [_drafts(rank) for rank in ours], "why": ours[0].unsupported[Knob.NUM_SPECULATIVE_TOKENS]},
    }


def _drafts(core: Core) -> int:
    core.add()
    core.schedule()
    return int(core.in_flight[-1].num_spec_tokens_to_schedule)


def ranks_that_schedule_for_themselves(model: str) -> dict[str, Any]:
    """With the external launcher each rank schedules for itself, and one hears of a change a step later."""

    def launched(scheduler: Any) -> None:
        scheduler.parallel_config = copy.copy(scheduler.parallel_config)
        scheduler.parallel_config.distributed_executor_backend = "external_launcher"

    def limit(core: Core) -> None:
        core.scheduler.max_num_scheduled_tokens = 16

    naive = [Core(model, governed=False) for _ in range(2)]
    ours = [Core(model, governed=True, prepare=launched) for _ in range(2)]
    alike = [
        _are_alike(*naive, change=limit),
        _are_alike(*ours, change=lambda core: core.retune(max_num_scheduled_tokens=16)),
    ]
    return {
        "naive": {"alike": alike[0]},
        "ours": {"alike": alike[1], "unsupported": sum(knob in ours[0].unsupported for knob in Knob)},
    }


def _are_alike(first: Core, second: Core, *, change: Callable[[Core], None]) -> bool:
    for core in (first, second):
        core.add(prompt=200)
    change(first)
    one, other = first.step(), second.step()
    change(second)
    return one == other


def a_route_without_a_key(model: str) -> dict[str, Any]:
    """A route for limits on the API port, where `--api-key` guards only what begins like OpenAI's paths."""
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    guarded = _authentication()(app, ["secret"])
    for path in ("/v1/completions", "/plugins/limits"):
        asyncio.run(_put(guarded, path))
    verifier = verifier_of({Env.SERVICE_UID: SERVICE, Env.PUBLIC_KEY: SetpointSigner().public_pem})
    try:
        verifier.verify(None)
    except SetpointRefused as refused:
        return {"naive": {"reached": reached}, "ours": {"refused": refused.refusal.value}}
    raise AssertionError("an unsigned write was let through")


def _authentication() -> Any:
    """vLLM's middleware for keys, wherever this version has it."""
    for name in _AUTHENTICATION:
        with suppress(ImportError):
            return importlib.import_module(name).AuthenticationMiddleware
    raise AssertionError(f"in none of {_AUTHENTICATION}")


async def _put(app: Any, path: str) -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        """Nobody reads the answer."""

    scope = {"type": "http", "method": "PUT", "path": path, "headers": [], "root_path": "", "query_string": b""}
    await app(scope, receive, send)


def plugins_that_are_not_named(model: str) -> dict[str, Any]:
    """`VLLM_PLUGINS` names ours, and with that switches everybody else's off."""
    group = "vllm.general_plugins"
    with _environment(VLLM_PLUGINS=None):
        installed = sorted(plugins.load_plugins_by_group(group))
    place = Place(variables={}, scratch="/tmp", user="x", writable=lambda _: True, plugins=installed)
    shown = {}
    for name, value in (("naive", ",".join(OUR_PLUGINS)), ("ours", changes(place, governed=True).set["VLLM_PLUGINS"])):
        with _environment(VLLM_PLUGINS=value):
            shown[name] = {"loaded": sorted(plugins.load_plugins_by_group(group)), "installed": installed}
    return shown


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: dict[str, Any]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def a_plugin_that_raises(model: str) -> dict[str, Any]:
    """Something in a general plugin fails: vLLM lets that end its process."""

    def broken() -> None:
        raise RuntimeError("no such attribute")

    original, registration = plugin._extend_core, plugin._Registration
    plugin._extend_core = broken
    logging.disable(logging.WARNING)
    try:
        ours = _loading(plugin.register)
        why = registration.failure
    finally:
        plugin._extend_core, registration.failure = original, None
        logging.disable(logging.NOTSET)
    return {"naive": {"raises": _loading(broken)}, "ours": {"raises": ours, "why": why}}


def _loading(entry: Callable[[], None]) -> bool:
    """Whether vLLM raises when it loads general plugins, this one being the only one."""
    by_group, loaded = plugins.load_plugins_by_group, plugins.plugins_loaded
    try:
        vars(plugins).update(load_plugins_by_group=lambda group: {"one": entry}, plugins_loaded=False)
        plugins.load_general_plugins()
    except RuntimeError:
        return True
    finally:
        vars(plugins).update(load_plugins_by_group=by_group, plugins_loaded=loaded)
    return False


def a_plugin_that_is_loaded_again(model: str) -> dict[str, Any]:
    """vLLM loads general plugins in every process, in some of them more than once."""
    once: Any = governed_class(Scheduler)
    naive: Any = governed_class(once)
    plugin.register()
    ours = Core(model, governed=True).scheduler
    return {
        "naive": {"around": sum(base.__name__.startswith("Governed") for base in naive.__mro__)},
        "ours": {"around": sum(base.__name__.startswith("Governed") for base in type(ours).__mro__)},
    }


def a_scheduler_by_name(model: str) -> dict[str, Any]:
    """`--scheduler-cls` names ours, and the plugin's folder is not there."""
    fields = {"max_model_len": 1024, "is_encoder_decoder": False}
    original: Any = SchedulerConfig.get_scheduler_cls
    # What the same flags do where no plugin wrapped it.
    plain = original.__wrapped__(SchedulerConfig(**fields))
    try:
        SchedulerConfig(**fields, scheduler_cls="flyball_gone.scheduler.Governed").get_scheduler_cls()
    except ModuleNotFoundError as error:
        return {"naive": {"ended_with": str(error)}, "ours": {"starts": plain.__name__}}
    raise AssertionError("a class that is not there was found")


def a_metric_of_whole_prompts(model: str) -> dict[str, Any]:
    """vLLM's tokens per iteration count a prompt when it is done, not where it was processed."""
    core = Core(model, governed=True)
    core.retune(max_num_scheduled_tokens=100)
    core.add(prompt=600, output=1)
    counted, processed = [], []
    while core.scheduler.has_requests():
        processed.append(sum(core.schedule().values()))
        stats = IterationStats()
        for outputs in core.update().values():
            for output in outputs.outputs:
                stats.update_from_output(
                    output, 1.0, True, RequestStateStats(arrival_time=0.0), LoRARequestStates(False), None
                )
        counted.append(stats.num_prompt_tokens)
    rows = core.report().state.steps
    return {
        "naive": {"largest": max(counted)},
        "ours": {"largest": max(processed), "bucket": max(row.bucket for row in rows)},
    }


def a_first_token_without_its_wait(model: str) -> dict[str, Any]:
    """Time to first token as queued plus prefill: the wait for a step that runs is in neither."""
    # It came at 0 and stood before the core until 3, waited in the queue until 3.5; its tokens came at 4 and 5.
    seen = RequestStateStats(arrival_time=0.0, queued_ts=3.0, scheduled_ts=3.5, first_token_ts=4.0, last_token_ts=5.0)
    stats = IterationStats()
    stats.iteration_timestamp = 5.0
    stats.update_from_finished_request(FinishReason.LENGTH, "r", 9, 2, seen)
    (finished,) = stats.finished_requests
    return {
        "naive": {"seconds": finished.queued_time + finished.prefill_time},
        "ours": {"seconds": finished.e2e_latency - finished.decode_time},
    }


def a_value_that_is_not_of_the_message(model: str) -> dict[str, Any]:
    """Flyball's numbers as attributes of the statistics that vLLM's core sends to its API server."""
    core = Core(model, governed=True)
    core.fill(3)
    stats = SchedulerStats()
    stats.flyball_running = 3
    sent = MsgpackEncoder().encode(EngineCoreOutputs(scheduler_stats=stats))
    received = MsgpackDecoder(EngineCoreOutputs).decode(sent).scheduler_stats
    return {
        "naive": {"arrives": hasattr(received, "flyball_running")},
        "ours": {"running": core.report().state.running},
    }


def a_limit_in_the_compile_key(model: str) -> dict[str, Any]:
    """A limit as `--additional-config`: each value is another compiled model."""
    keys = {VllmConfig(additional_config={"max_num_active_seqs": limit}).compute_hash() for limit in (8, 9)}
    core = Core(model, governed=True)
    before = core.config.compute_hash()
    core.retune(max_num_active_seqs=8, max_num_scheduled_tokens=64)
    return {"naive": {"keys": len(keys)}, "ours": {"same": core.config.compute_hash() == before}}


def a_restart_that_forgets(model: str) -> dict[str, Any]:
    """A core that ends comes back with what its flags say."""
    before, after = Core(model, governed=True), Core(model, governed=True)
    before.retune(max_num_active_seqs=4)
    state = after.report().state
    return {
        "naive": {"limit": [before.scheduler.max_num_active_reqs, after.scheduler.max_num_active_reqs]}
        if hasattr(after.scheduler, "max_num_active_reqs")
        else {"limit": [4, after.scheduler.max_num_running_reqs]},
        "ours": {"applied": state.applied, "effective": state.effective.max_num_active_seqs},
    }


HAZARDS = (
    a_scheduler_of_the_wrong_kind,
    a_name_that_nobody_reads,
    memory_that_stays_taken,
    ranks_that_draft_differently,
    ranks_that_schedule_for_themselves,
    a_route_without_a_key,
    plugins_that_are_not_named,
    a_plugin_that_raises,
    a_plugin_that_is_loaded_again,
    a_scheduler_by_name,
    a_metric_of_whole_prompts,
    a_first_token_without_its_wait,
    a_value_that_is_not_of_the_message,
    a_limit_in_the_compile_key,
    a_restart_that_forgets,
)
