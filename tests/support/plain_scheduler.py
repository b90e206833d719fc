"""A scheduler with the attributes and the order of service of vLLM's, small enough to be read: for tests without vLLM.

Running requests are served in order of admission, each prefill up to the long-prefill threshold, until the tokens
of the step are used up; then waiting ones are admitted. What it asserts at the end of a step is what vLLM asserts.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flyball_engine.batching.watchdog import Watchdog
from flyball_engine.contract import AnyKnob, QueueLimits, Setpoint
from flyball_engine.control.service import Reports
from flyball_engine.control.state_file import CoreReport, StateReader, find_state_files
from flyball_engine.vllm.refusal import set_class
from flyball_engine.vllm.step_hooks import StepHooks


class SchedulingPolicy(Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class PlainQueue(deque[Any]):
    """Requests in order of arrival, with the operations of vLLM's queues that reorder them."""

    def add_request(self, request: Any) -> None:
        self.append(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        self.extendleft(requests)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        kept = [request for request in self if request not in set(requests)]
        self.clear()
        self.extend(kept)


def create_request_queue(policy: SchedulingPolicy) -> PlainQueue:
    return PlainQueue()


class PlainStatus(Enum):
    WAITING = "waiting"
    PREEMPTED = "preempted"
    RUNNING = "running"
    WAITING_FOR_REMOTE_KVS = "remote"
    WAITING_FOR_STREAMING_REQ = "streaming"
    FINISHED_STOPPED = "stopped"


@dataclass(eq=False)
class PlainRequest:
    request_id: str
    num_tokens: int
    left: int
    """Output tokens still to come."""
    max_tokens: int
    arrival_time: int
    num_computed_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    num_stale_output_tokens: int = 0
    drop_stale_output: bool = False
    ready: bool = True
    """Whether nothing but room keeps it from starting."""
    is_prefill_chunk: bool = False
    status: PlainStatus = PlainStatus.WAITING
    block_hashes: list[bytes] = field(default_factory=list)
    client_index: int = 0
    sampling_params: Any = field(default_factory=lambda: SimpleNamespace(extra_args=None))

    @property
    def num_output_tokens(self) -> int:
        return len(self.output_token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return self.num_tokens - self.num_output_tokens


@dataclass(frozen=True)
class PlainOutput:
    num_scheduled_tokens: dict[str, int]
    finished_req_ids: set[str]
    scheduled_cached_reqs: SimpleNamespace
    scheduled_new_reqs: tuple[SimpleNamespace, ...] = ()

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


def transferring(connector: str = "NixlConnector", *, consumer: bool) -> SimpleNamespace:
    """The configuration of an engine with a KV connector: one that loads prompts for sure, or processes them."""
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector=connector, is_kv_consumer=consumer))


@dataclass
class PlainConfig:
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True

    def get_scheduler_cls(self) -> type[PlainScheduler]:
        return PlainScheduler


class PlainScheduler:
    """Admits, serves and finishes requests; `frozen` makes it serve nobody, as a hang would."""

    def __init__(self, config: PlainConfig | None = None) -> None:
        self.scheduler_config = config or PlainConfig()
        self.vllm_config = SimpleNamespace()
        self.parallel_config = SimpleNamespace(distributed_executor_backend="mp", data_parallel_index=0)
        self.cache_config = SimpleNamespace(kv_cache_size_tokens=10_000, num_gpu_blocks=100, block_size=16)
        self.kv_cache_manager = SimpleNamespace(usage=0.25)
        self.max_num_running_reqs = self.scheduler_config.max_num_seqs
        self.max_num_active_reqs = self.scheduler_config.max_num_seqs
        self.max_num_scheduled_tokens = self.scheduler_config.max_num_batched_tokens
        self.max_model_len = 4096
        self.running: list[Any] = []
        self.waiting = PlainQueue()
        self.kv_holding_waiting = PlainQueue()
        self.finished_recving_kv_req_ids: set[str] = set()
        self.deferred_waiting: set[Any] = set()
        self.num_waiting_for_streaming_input = 0
        self.policy = SchedulingPolicy.FCFS
        self._arrivals = itertools.count()
        self.requests: dict[str, Any] = {}
        self.finished_req_ids: set[str] = set()
        self.frozen = False

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        return bool(request.ready)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(getattr(self, "kv_holding_waiting", ()))

    def add(self, name: str, *, prompt: int, output: int = 4, most: int | None = None, of_class: str = "") -> None:
        """One more request; `most` is the max_tokens it names, by default the output it gives."""
        request = PlainRequest(
            name,
            num_tokens=prompt,
            left=output,
            max_tokens=output if most is None else most,
            arrival_time=next(self._arrivals),
        )
        if of_class:
            set_class(request, of_class)
        self.add_request(request)

    def add_request(self, request: PlainRequest) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self) -> PlainOutput:
        budget = 0 if self.frozen else self.max_num_scheduled_tokens
        scheduled: dict[str, int] = {}
        for request in self.running:
            budget -= self._serve(request, budget, scheduled)
        while self.waiting and budget > 0 and len(self.running) < self.max_num_active_reqs:
            request = self.waiting.popleft()
            request.status = PlainStatus.RUNNING
            self.running.append(request)
            budget -= self._serve(request, budget, scheduled)
        assert sum(scheduled.values()) <= self.max_num_scheduled_tokens
        assert len(self.running) <= self.max_num_running_reqs
        before = [self.requests[name].num_computed_tokens for name in scheduled]
        for name, tokens in scheduled.items():
            request = self.requests[name]
            request.num_computed_tokens += tokens
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        finished, self.finished_req_ids = self.finished_req_ids, set()
        return PlainOutput(scheduled, finished, SimpleNamespace(num_computed_tokens=before))

    def preempt(self, name: str) -> None:
        """It loses its KV cache, and stands first in the queue."""
        request = self.requests[name]
        self.running.remove(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = PlainStatus.PREEMPTED
        self.waiting.appendleft(request)

    def update_from_output(self, output: PlainOutput) -> None:
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            if not request.is_prefill_chunk:
                request.num_tokens += 1
                request.output_token_ids.append(0)
                request.left -= 1
        done = [request for request in self.running if request.left <= 0]
        self.running = [request for request in self.running if request.left > 0]
        for request in done:
            request.status = PlainStatus.FINISHED_STOPPED
            self._free(request)

    def finish_requests(self, *names: str) -> None:
        for name in names:
            request = self.requests[name]
            (self.running if request in self.running else self.waiting).remove(request)
            self._free(request)

    def _free(self, request: Any) -> None:
        del self.requests[request.request_id]
        self.finished_req_ids.add(request.request_id)

    def _serve(self, request: Any, budget: int, scheduled: dict[str, int]) -> int:
        wanted = request.num_tokens - request.num_computed_tokens
        threshold = self.scheduler_config.long_prefill_token_threshold
        tokens = min(wanted, budget, threshold) if threshold else min(wanted, budget)
        if tokens > 0:
            scheduled[request.request_id] = tokens
        return int(tokens)


@dataclass
class PlainRefuser:
    """Stands where vLLM ends requests: what is refused leaves the plain scheduler."""

    scheduler: Any
    lack: str | None = None
    names: list[str] = field(default_factory=list)

    def refuse(self, requests: Iterable[Any], outputs: dict[int, Any]) -> None:
        for request in requests:
            self.names.append(request.request_id)
            self.scheduler.finish_requests(request.request_id)


@dataclass
class GovernedCore:
    """A plain scheduler under the step hooks, with a clock that moves only when told to."""

    folder: Path
    scheduler: PlainScheduler = field(default_factory=PlainScheduler)
    now: float = 100.0
    engine: int = 0
    watchdog: Watchdog | None = field(default_factory=lambda: Watchdog(seconds=20, steps=3))

    def __post_init__(self) -> None:
        self.scheduler.parallel_config.data_parallel_index = self.engine
        self.hooks = StepHooks(
            self.scheduler,
            folder=self.folder,
            clock=lambda: self.now,
            wall_clock=lambda: self.now,
            watchdog=self.watchdog,
        )
        self._reader = StateReader(find_state_files(self.folder)[self.engine])

    def add(self, name: str, *, prompt: int, output: int = 4, most: int | None = None, of_class: str = "") -> None:
        """A request enters the queue, and the step hooks hear of it."""
        self.scheduler.add(name, prompt=prompt, output=output, most=most, of_class=of_class)
        self.hooks.received(self.scheduler.requests[name])

    def step(self, *, seconds: float = 0.1) -> PlainOutput:
        self.hooks.before_schedule()
        output = self.scheduler.schedule()
        self.hooks.after_schedule(output)
        self.now += seconds
        self.scheduler.update_from_output(output)
        self.hooks.after_update(output)
        return output

    def report(self) -> CoreReport:
        report = self._reader.read()
        assert report is not None
        return report

    def prefill_seconds(self) -> float:
        """What a prompt token takes, as the gate reads it."""
        load = self._reader.load()
        assert load is not None
        assert load.rate is not None
        return load.rate.per_token

    @property
    def unsupported(self) -> Mapping[AnyKnob, str]:
        return self._reader.unsupported


class PlainEngine:
    """Governed cores behind the control server's `TunableEngine` protocol."""

    version = "plain 1"

    def __init__(self, *cores: GovernedCore) -> None:
        self.cores = cores
        self.governed = True
        self.unsupported: dict[Any, str] = {}
        self.ungated: str | None = None
        self.queue: QueueLimits | None = None
        self.alive = True
        self.answers = True

    def healthy(self) -> bool:
        return self.alive

    def reports(self) -> Reports:
        return Reports(
            cores=tuple(core.report() for core in self.cores),
            governed=self.governed,
            unsupported=self.unsupported,
            ungated=self.ungated,
        )

    async def apply(self, setpoint: Setpoint) -> None:
        if self.answers:
            for core in self.cores:
                core.hooks.apply(setpoint)

    async def touch(self) -> None:
        for core in self.cores:
            core.hooks.touch()
