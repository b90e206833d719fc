"""One of vLLM's schedulers with the core's loop around it, governed or as vLLM made it."""

from __future__ import annotations

import json
import queue
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.engine.core import EngineCoreProc

from flyball_engine.contract import AnyKnob, Setpoint
from flyball_engine.control.state_file import CoreReport, StateReader, find_state_files
from flyball_engine.vllm.plugin import flyball_apply
from flyball_engine.vllm.step_hooks import StepHooks
from flyball_lab.harness.model_runner import output_of, request_of
from flyball_lab.harness.scenario_scheduler import BLOCK, make_config, make_scheduler
from flyball_lab.harness.scheduler_scenario import Scenario

Prepare = Callable[[Any], None]


def block_hash(value: Any) -> bytes:
    """What makes equal beginnings of prompts hits of the prefix cache."""
    return hash(value).to_bytes(8, "little", signed=True)


class Core:
    """A scheduler that is stepped by hand; the made-up model says the same token always.

    `configure` changes the configuration before there is a scheduler, `prepare` the scheduler before it is governed.
    """

    def __init__(
        self,
        model: str,
        *,
        governed: bool,
        configure: Prepare = lambda _: None,
        prepare: Prepare = lambda _: None,
        **scenario: Any,
    ) -> None:
        told = Scenario(seed=0, **scenario)
        self.now = 1000.0
        self.config = make_config(told, model)
        configure(self.config)
        self.scheduler = make_scheduler(self.config, told, governed=governed)
        prepare(self.scheduler)
        self._folder = tempfile.TemporaryDirectory()
        self._generation = 0
        self._added = 0
        self._hasher = get_request_block_hasher(BLOCK, block_hash)
        self.in_flight: deque[Any] = deque()
        self.requests: dict[str, Any] = {}
        if governed:
            folder = Path(self._folder.name)
            self.hooks = StepHooks(self.scheduler, folder=folder, clock=lambda: self.now)
            self.scheduler.flyball = self.hooks
            self._reader = StateReader(find_state_files(folder)[0])

    def add(self, *, prompt: int = 8, output: int = 1000, tokens: list[int] | None = None, **fields: Any) -> str:
        """One more request, whose prompt is like no other's unless its `tokens` are given; its name."""
        name = f"r{self._added}"
        self._added += 1
        own = [2000 + (self._added * 1000 + index) % 6000 for index in range(prompt)]
        self.requests[name] = request_of(
            name, tokens or own, output=output, arrival=float(self._added), block_hasher=self._hasher, **fields
        )
        self.scheduler.add_request(self.requests[name])
        return name

    def fill(self, count: int, **request: Any) -> None:
        """Many requests, all of which run and decode when it returns."""
        for _ in range(count):
            self.add(**request)
        while any(one.is_prefill_chunk for one in self.scheduler.running) or len(self.scheduler.running) < count:
            self.step()

    def schedule(self) -> dict[str, int]:
        """Plan a step; the tokens of each request that has some in it."""
        output = self.scheduler.schedule()
        self.in_flight.append(output)
        return dict(output.num_scheduled_tokens)

    def update(self) -> Any:
        """End the oldest step in flight; what vLLM sends to the API server."""
        output = self.in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        said: list[list[int]] = [[] if self.scheduler.requests[name].is_prefill_chunk else [5] for name in names]
        return self.scheduler.update_from_output(output, output_of(names, said))

    def step(self, *, seconds: float = 0.01) -> dict[str, int]:
        """Plan a step and end it; the tokens of each request that had some in it."""
        served = self.schedule()
        self.now += seconds
        self.update()
        return served

    def steps(self, count: int, **step: Any) -> list[dict[str, int]]:
        """Some steps."""
        return [self.step(**step) for _ in range(count)]

    def to_the_end(self, *, most: int = 5000) -> int:
        """Step until nobody is left; in how many steps."""
        for number in range(most):
            if not self.scheduler.has_requests():
                return number
            self.step()
        raise AssertionError(f"{len(self.scheduler.requests)} requests are left after {most} steps")

    def setpoint(self, **fields: Any) -> str:
        """The next setpoint, as JSON."""
        self._generation += 1
        whole = {"service": "s", "epoch": 1, "generation": self._generation, "expires_seconds": 600_000, **fields}
        return json.dumps(whole)

    def retune(self, *, batching: dict[str, Any] | None = None, **limits: int) -> None:
        """As the API server does it: by a call between two steps."""
        text = self.setpoint(limits=limits, batching=batching or {})
        flyball_apply(SimpleNamespace(scheduler=self.scheduler), text)

    def force(self, setpoint: Setpoint) -> None:
        """A setpoint that no acceptance has seen."""
        self.hooks.apply(setpoint)

    def lacking(self, knob: AnyKnob) -> dict[str, str] | None:
        """What is told of a hazard that this vLLM cannot meet, because this knob is refused; None if it is not."""
        reason = self.unsupported.get(knob)
        return None if reason is None else {"lacking": reason}

    @property
    def unsupported(self) -> dict[AnyKnob, str]:
        """The knobs that are refused, and why."""
        return self._reader.unsupported

    def report(self) -> CoreReport:
        """What the core publishes."""
        report = self._reader.read()
        assert report is not None
        return report

    def clamped(self) -> dict[str, list[Any]]:
        """Limits that were not taken as they were asked for: what was asked, what holds, why."""
        return {one.knob.value: [one.requested, one.effective, one.reason] for one in self.report().state.clamped}


class WouldBlock(Exception):  # noqa: N818 – it is an answer
    """vLLM's core would wait for a message now, be it for ever."""


class _Inbox(queue.Queue[Any]):
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and timeout is None and self.empty():
            raise WouldBlock
        return super().get(block, timeout)


def core_process(core: Core) -> Any:
    """vLLM's own engine core around this scheduler, as far as it takes messages: no model, no worker, no socket."""
    process = EngineCoreProc.__new__(EngineCoreProc)
    vars(process).update(
        scheduler=core.scheduler,
        input_queue=_Inbox(),
        output_queue=queue.Queue(),
        aborts_queue=queue.Queue(),
        batch_queue=None,
        engines_running=False,
        process_input_queue_block=True,
        _idle_state_callbacks=[],
        is_running=lambda: True,
        _reject_utility_in_shutdown=lambda *_: False,
    )
    return process
