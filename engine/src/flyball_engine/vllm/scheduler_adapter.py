"""The part of vLLM's scheduler that Flyball reads and writes, in one place, probed before it is used.

vLLM says its scheduler interface is private and may change. So every attribute is named in `compat.py` and checked when
the engine starts. What is absent makes a knob unsupported, or the engine ungoverned, with a reason. Nothing fails later
in a step. Tested with 0.26, 0.29, 0.32 and 0.33.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch, Sizes
from flyball_engine.batching.step_token_budgeter import Prompt
from flyball_engine.batching.watchdog import PATIENCE_SECONDS
from flyball_engine.contract import LEAST_CHUNK, LONGEST_PATIENCE_SECONDS, AnyKnob, Knob
from flyball_engine.draft_schedule import has_all_depths
from flyball_engine.vllm.compat import CACHE_CONFIG, CACHE_MANAGER, SCHEDULER, SCHEDULER_CONFIG, Used, lacking
from flyball_engine.vllm.means import Lack, Means, means

#: Tokens of a waiting request's prompt that the prefix cache holds.
CachedTokens = Callable[[Any], int]


class UngovernableError(Exception):
    """The scheduler lacks something Flyball needs; the message names it."""


class SchedulerAdapter:
    """vLLM's scheduler as Flyball sees it. All writes to it go through here, between steps, on its own thread."""

    def __init__(self, scheduler: Any) -> None:
        """Probe the scheduler and give it a private copy of its configuration; raises UngovernableError."""
        _expect_all_that_is_needed(scheduler)
        self._scheduler = scheduler
        # Workers, graph dispatch and bitmask allocation read the shared one; only the scheduler may see live values.
        scheduler.scheduler_config = copy.copy(scheduler.scheduler_config)
        self._config = scheduler.scheduler_config
        found = means(functools.partial(hasattr, scheduler), functools.partial(hasattr, self._config))
        self._ratchet = found[Knob.MAX_NUM_ACTIVE_SEQS] is Means.SLOTS
        self._adaptive = bool(getattr(scheduler, "adaptive_long_prefill_threshold", False))
        self._depths_by_batch = list(getattr(scheduler, "dynamic_sd_lookup", None) or ())
        self._all_depths = has_all_depths(self._depths_by_batch)
        self.sizes = _sizes(scheduler)
        self.start = RequestedLimits(
            active=scheduler.max_num_running_reqs if self._ratchet else scheduler.max_num_active_reqs,
            tokens=scheduler.max_num_scheduled_tokens,
            threshold=getattr(self._config, "long_prefill_token_threshold", 0),
            depth=max(self.sizes.depths, default=0),
        )
        #: What steps draft for each request at most; None until that is written.
        self.depth: int | None = None
        #: Tokens of a decode in the next step, its drafts among them.
        self.tokens_per_decode = self.sizes.tokens_per_decode
        self.ungoverned = _ungoverned(scheduler)
        self.unsupported: dict[AnyKnob, str] = {
            knob: mean.value for knob, mean in found.items() if isinstance(mean, Lack)
        }
        self.unsupported |= dict.fromkeys(Knob, self.ungoverned) if self.ungoverned else _refused(scheduler)

    @property
    def engine(self) -> int:
        """Index of this engine core among data-parallel ones."""
        parallel = self._scheduler.parallel_config
        return int(getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0)) or 0)

    @property
    def patience_seconds(self) -> float:
        """How long requests may stand still before that counts as a hang."""
        return LONGEST_PATIENCE_SECONDS if self.has_connector else PATIENCE_SECONDS

    @property
    def defers_prefills(self) -> bool:
        """Whether prompts get nothing in most steps by intent: data-parallel ranks prefill in the same.

        Since 0.33 an engine without such ranks keeps that pace by itself.
        """
        if int(getattr(self._scheduler, "local_prefill_interval", 1)) > 1:
            return True
        ranks = int(getattr(self._scheduler.parallel_config, "data_parallel_size", 1))
        return ranks > 1 and int(getattr(self._config, "prefill_schedule_interval", 1)) > 1

    @property
    def pipeline_depth(self) -> int:
        """Steps in flight at once: with async scheduling, which vLLM has beside stages on GPUs alone, one more."""
        return self.stages + (1 if getattr(self._config, "async_scheduling", False) else 0)

    @property
    def stages(self) -> int:
        """Stages of the pipeline: so many steps with different requests are in flight at once."""
        return int(getattr(self._scheduler.parallel_config, "pipeline_parallel_size", 1))

    @property
    def drains_by_slots(self) -> bool:
        """Whether the limit that is written follows what runs over it down: vLLM has none beside its slots."""
        return self._ratchet

    @property
    def running(self) -> list[Any]:
        """The running requests, in the order vLLM serves them."""
        running: list[Any] = self._scheduler.running
        return running

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the KV cache in use."""
        return float(self._scheduler.kv_cache_manager.usage)

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens the KV cache can hold."""
        cache = self._scheduler.cache_config
        counted = getattr(cache, "kv_cache_size_tokens", None)
        return int(counted or (cache.num_gpu_blocks or 0) * cache.block_size)

    @property
    def block_tokens(self) -> int:
        """Tokens of one block of the KV cache."""
        return int(getattr(self._scheduler, "block_size", self._scheduler.cache_config.block_size))

    @property
    def paused(self) -> bool:
        """Whether vLLM itself holds back requests."""
        return bool(getattr(self._scheduler, "_pause_state", 0))

    def has(self, request: Any) -> bool:
        """Whether the scheduler still has this request."""
        return self._scheduler.requests.get(request.request_id) is request

    def waiting(self) -> int:
        """Requests waiting, for whatever reason."""
        return int(self._scheduler.get_request_counts()[1])

    def waiting_for_capacity(self) -> int:
        """Requests that only lack room: those deferred for grammars or remote KV do not count."""
        scheduler = self._scheduler
        # A set beside the queue since 0.31, a queue of its own before.
        name = "deferred_waiting" if hasattr(scheduler, "deferred_waiting") else "skipped_waiting"
        return max(0, self.waiting() - len(getattr(scheduler, name, ())))

    @property
    def has_connector(self) -> bool:
        """Whether there is a KV connector. One that failed to load a part sets a decode back to its prompt."""
        return getattr(self._scheduler, "connector", None) is not None

    def prefilling(self, most: int) -> list[Any]:
        """The running requests whose prompt is not yet processed, of whom there are so many at `most`.

        Looked for from the newest on: those before them mostly decode.
        """
        found: list[Any] = []
        if most:
            for request in reversed(self.running):
                if request.is_prefill_chunk:
                    found.append(request)
                    if len(found) == most:
                        break
        found.reverse()
        return found

    def batch(self, prefilling: list[Any], *, elsewhere: int = 0) -> RunningBatch:
        """The running requests, as far as limits depend on them.

        `elsewhere`: decodes of a pipeline's other steps, which the next one cannot have.
        """
        running = self.running
        if not prefilling:
            return RunningBatch(decodes=max(0, len(running) - elsewhere))
        return RunningBatch(
            decodes=max(0, len(running) - len(prefilling) - elsewhere),
            prefills=tuple([request.num_tokens - request.num_computed_tokens for request in prefilling]),
        )

    def prompts(self, requests: Iterable[Any], cached: CachedTokens | None = None) -> list[Prompt]:
        """What is left of these requests' prompts.

        `cached`: tokens of a waiting request's prompt that the prefix cache holds, None if nobody knows.
        """
        found = []
        for request in requests:
            context = computed_tokens(request, cached)
            # Of what was loaded whole, vLLM computes the last token.
            found.append(Prompt(remaining=max(1, request.num_tokens - context), context=context))
        return found

    def queue(self) -> Iterator[Any]:
        """What waits, in the order vLLM serves it."""
        return itertools.chain(*self._queues())

    def queue_head(self, length: int) -> list[Any]:
        """The first `length` requests that may join now, in the order vLLM takes them."""
        return list(itertools.islice(filter(self._may_join, self.queue()), length))

    def _queues(self) -> Sequence[Iterable[Any]]:
        """What waits, in the order vLLM serves it: first what it keeps apart, such as what holds KV cache already."""
        scheduler = self._scheduler
        # Since 0.31; before, a queue of all that had to wait for something else than room.
        apart = getattr(scheduler, "kv_holding_waiting", None)
        return (getattr(scheduler, "skipped_waiting", ()) if apart is None else apart, scheduler.waiting)

    def _may_join(self, request: Any) -> bool:
        """Whether it waits for room alone: neither for its cache to be loaded nor for a session's next input."""
        status = request.status.name
        if status == "WAITING_FOR_REMOTE_KVS":
            return request.request_id in getattr(self._scheduler, "finished_recving_kv_req_ids", ())
        return bool(status != "WAITING_FOR_STREAMING_REQ")

    def finished(self) -> set[str]:
        """The requests that ended since the last step was planned."""
        names: set[str] = self._scheduler.finished_req_ids
        return names

    def context(self, output: Any) -> int:
        """Tokens of a step's requests that are in the KV cache, the step's own included: vLLM lists those before it."""
        before = sum(output.scheduled_cached_reqs.num_computed_tokens)
        for request in output.scheduled_new_reqs:
            before += request.num_computed_tokens
        return int(before + output.total_num_scheduled_tokens)

    def decode_context(self, prefilling: Sequence[Any], decodes: int) -> float:
        """Tokens of the KV cache that so many of the running requests that decode read in their next step."""
        running = self.running
        total = len(running) - len(prefilling)
        if total <= 0:
            return 0.0
        held: int = sum([request.num_computed_tokens for request in running])
        held -= sum([request.num_computed_tokens for request in prefilling])
        return held * decodes / total

    def write(self, limits: RequestedLimits, *, step_threshold: int) -> None:
        """Set the limits of the next step but for drafts. A step threshold that is not the limit is never adapted."""
        if Knob.MAX_NUM_ACTIVE_SEQS not in self.unsupported:
            self._write_active(limits.active)
        if Knob.MAX_NUM_SCHEDULED_TOKENS not in self.unsupported:
            self._scheduler.max_num_scheduled_tokens = limits.tokens
        if Knob.LONG_PREFILL_TOKEN_THRESHOLD not in self.unsupported:
            self._config.long_prefill_token_threshold = step_threshold
            if self._adaptive:
                self._scheduler.adaptive_long_prefill_threshold = step_threshold == limits.threshold

    def draft(self, depth: int) -> None:
        """Have the next step draft so many tokens at most for each request, for the step after it."""
        if depth != self.depth and Knob.NUM_SPECULATIVE_TOKENS not in self.unsupported:
            self.depth = depth
            self._scheduler.dynamic_sd_lookup = self._by_batch(depth)

    def drafting(self, requests: int) -> int:
        """Tokens that a step of so many requests drafts for each of them at most, as was written last."""
        by_batch = getattr(self._scheduler, "dynamic_sd_lookup", None)
        return int(by_batch[requests]) if by_batch and requests < len(by_batch) else self.sizes.tokens_per_decode - 1

    def drafting_at(self, depth: int) -> int:
        """Tokens that steps of the batch of now draft for each request under this depth, whatever the next one does."""
        requests = len(self.running)
        if Knob.NUM_SPECULATIVE_TOKENS in self.unsupported or requests >= len(self._depths_by_batch):
            return self.drafting(requests)
        return depth if self._all_depths else min(self._depths_by_batch[requests], depth)

    def _by_batch(self, depth: int) -> list[int]:
        """What is drafted at each size of the batch; of a schedule of the user's own no more than it says."""
        if self._all_depths:
            return [depth] * len(self._depths_by_batch)
        return [min(most, depth) for most in self._depths_by_batch]

    def _write_active(self, active: int) -> None:
        scheduler = self._scheduler
        if self._ratchet:
            # The step asserts running <= this; never below what runs, never above the slots.
            scheduler.max_num_running_reqs = min(self.sizes.max_num_seqs, max(active, len(scheduler.running)))
        else:
            scheduler.max_num_active_reqs = active


def computed_tokens(request: Any, cached: CachedTokens | None) -> int:
    """Tokens of a request that are in the KV cache, or will be found there when it joins."""
    computed: int = request.num_computed_tokens
    return cached(request) if cached is not None and not computed else computed


def _expect_all_that_is_needed(scheduler: Any) -> None:
    """Raises UngovernableError. The scheduler is asked first: the others are its attributes."""
    lack = (
        _lacking(SCHEDULER, scheduler)
        or _lacking(SCHEDULER_CONFIG, scheduler.scheduler_config)
        or _lacking(CACHE_CONFIG, scheduler.cache_config)
        or _lacking(CACHE_MANAGER, scheduler.kv_cache_manager)
    )
    if lack is not None:
        raise UngovernableError(lack)


def _lacking(used: Used, instance: Any) -> str | None:
    return lacking(used, functools.partial(hasattr, instance))


def _sizes(scheduler: Any) -> Sizes:
    config = scheduler.scheduler_config
    decode = 1 + int(getattr(scheduler, "num_spec_tokens", 0) or 0)
    lookahead = int(getattr(scheduler, "num_prefill_lookahead", 0) or 0)
    return Sizes(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=_most_tokens(scheduler),
        max_model_len=scheduler.max_model_len,
        tokens_per_decode=decode,
        least_chunk=max(LEAST_CHUNK, decode, lookahead + 1),
        indivisible=_indivisible(scheduler),
        # Looked up by the number of scheduled requests: entry 0 is never read.
        depths=tuple(sorted(set(lookup[1:]))) if (lookup := getattr(scheduler, "dynamic_sd_lookup", None)) else (),
        graphs=_graphs(scheduler),
    )


def _most_tokens(scheduler: Any) -> int:
    """Tokens that a step may have at most.

    A drafter may write more tokens of each request than were scheduled. 0.26 starts with that many less and checks
    nothing later: more would overflow the worker's buffers. Later versions leave the room themselves.
    """
    most = int(scheduler.scheduler_config.max_num_batched_tokens)
    speculation = getattr(scheduler.vllm_config, "speculative_config", None)
    drafts_beside = bool(getattr(speculation, "max_num_new_slots_for_drafting", 0))
    return min(most, int(scheduler.max_num_scheduled_tokens)) if drafts_beside else most


def _graphs(scheduler: Any) -> tuple[int, ...]:
    """Tokens of the steps that CUDA graphs are captured of, rising."""
    compilation = getattr(scheduler.vllm_config, "compilation_config", None)
    mode = getattr(getattr(compilation, "cudagraph_mode", None), "name", "NONE")
    sizes = getattr(compilation, "cudagraph_capture_sizes", None) or ()
    return tuple(sorted(sizes)) if mode != "NONE" else ()


def _indivisible(scheduler: Any) -> int:
    """Tokens that some prompt may need in one step at once."""
    if not scheduler.scheduler_config.enable_chunked_prefill:
        return int(scheduler.max_model_len)
    largest = 0
    if _whole_images(scheduler):
        largest = int(getattr(scheduler, "max_num_encoder_input_tokens", 0))
    if getattr(scheduler, "need_mamba_block_aligned_split", False):
        largest = max(largest, int(scheduler.cache_config.block_size))
    return largest


def _whole_images(scheduler: Any) -> bool:
    config = scheduler.scheduler_config
    return bool(getattr(config, "is_multimodal_model", False) and getattr(config, "disable_chunked_mm_input", False))


def _ungoverned(scheduler: Any) -> str | None:
    """Why nothing of this scheduler may be moved."""
    backend = getattr(scheduler.parallel_config, "distributed_executor_backend", None)
    alike = "with the external launcher every rank schedules for itself and must stay alike"
    return alike if backend == "external_launcher" else None


def _refused(scheduler: Any) -> dict[AnyKnob, str]:
    """The knobs that this vLLM has and this start-up forbids."""
    found = {
        Knob.LONG_PREFILL_TOKEN_THRESHOLD: _no_threshold(scheduler),
        Knob.NUM_SPECULATIVE_TOKENS: _no_depth(scheduler),
    }
    return {knob: reason for knob, reason in found.items() if reason}


def _no_threshold(scheduler: Any) -> str | None:
    if not scheduler.scheduler_config.enable_chunked_prefill:
        return "chunked prefill is off"
    return "images are not chunked, and a cap below an image would hang" if _whole_images(scheduler) else None


def _no_depth(scheduler: Any) -> str | None:
    if not getattr(scheduler, "num_spec_tokens", 0):
        return "the engine was started without speculative decoding"
    if not getattr(scheduler, "dynamic_sd_lookup", None):
        return "the engine was started without num_speculative_tokens_per_batch_size"
    if getattr(scheduler.parallel_config, "data_parallel_size", 1) > 1:
        return "data-parallel ranks would come to differ in depth, and wait for each other for ever"
    if getattr(scheduler.parallel_config, "pipeline_parallel_size", 1) > 1:
        return "with pipeline stages the next step serves other requests than those that a step drafts for"
    return None
