"""A simulated core in real time: the control server's `TunableEngine`, and what an API server asks of it.

One task drives the core by the clock and publishes its state in the same shared file as the plugin does. Tokens of a
stream are told at most every `TICK_SECONDS`, each by itself; what is counted has the core's own times.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from flyball_engine.batching.gate import Admitted, Gate
from flyball_engine.batching.outcomes import LedgerCounts
from flyball_engine.contract import AnyKnob, BatchingKnob, QueueKnob, Setpoint
from flyball_engine.control.service import Reports
from flyball_engine.control.state_file import Slot, StateReader, StateWriter
from flyball_lab.openai.load import EngineLoad
from flyball_lab.simulator.core_config import FIXED
from flyball_lab.simulator.plant import USUAL, Disturbances
from flyball_lab.simulator.presets import EnginePreset
from flyball_lab.simulator.requests import Fate, Request
from flyball_lab.simulator.virtual import build

TICK_SECONDS: Final = 0.02
#: Strategies and speculation: requests are admitted as vLLM does by itself, a token at a time.
_UNSUPPORTED: Final[Mapping[AnyKnob, str]] = dict.fromkeys(
    (knob for knob in (*BatchingKnob, *QueueKnob, *FIXED) if knob is not BatchingKnob.CONTINUOUS),
    "the simulated engine has none yet",
)
#: An idle engine looks at its clock so often, for a setpoint that expires.
_IDLE_SECONDS: Final = 1.0


class SimulatedEngine:
    """One core, driven by `clock` (seconds); `drive` must run. `tick` is set when there may be more tokens."""

    def __init__(
        self,
        preset: EnginePreset,
        folder: Path,
        *,
        clock: Callable[[], float],
        seed: int = 1,
        disturbances: Disturbances = USUAL,
    ) -> None:
        """Make the core and its state file; raises StateFileError."""
        self.preset = preset
        self._clock = clock
        self._origin = clock()
        self._state = StateWriter(folder, engine=0, unsupported=_UNSUPPORTED)
        self.core = build(
            preset, seed=seed, disturbances=disturbances, sums=self._state.sums, batch_sums=self._state.batches
        )
        self.tick = asyncio.Event()
        self._work = asyncio.Event()
        governed = self.core.governed
        self._state.describe(governed.sizes, governed.started(), kv_cache_tokens=preset.kv_tokens)
        self._publish()
        self._reader = StateReader(folder / "core-0.state")

    @property
    def version(self) -> str:
        """For people."""
        return f"flyball simulator {self.preset.name}"

    @property
    def queue(self) -> None:
        """The queue has no limits of its own."""

    @property
    def gate(self) -> Gate:
        """What requests are let in by."""
        return self.core.gate

    def healthy(self) -> bool:
        """As long as the process is there."""
        return True

    def load(self) -> EngineLoad:
        """What it does now."""
        scheduler = self.core.scheduler
        return EngineLoad(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_cache_usage=scheduler.used_blocks() / scheduler.capacity,
            preemptions=scheduler.preemptions,
        )

    def reports(self) -> Reports:
        """What was published last."""
        report = self._reader.read()
        cores, unknown = ((report,), ()) if report is not None else ((), (0,))
        return Reports(cores=cores, unknown=unknown, unsupported=_UNSUPPORTED)

    async def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force; returns when the step in flight has ended."""
        self._advance()
        self.core.apply(setpoint)
        while (applied := self.core.governed.applied) is None or applied.order() < setpoint.order():
            self._work.set()
            await self.tick.wait()
        self._publish()

    async def touch(self) -> None:
        """Look at the clock."""
        self._advance()

    def follow(self, setpoint: Setpoint) -> None:
        """What requests are counted against and refused by from now on."""
        self._advance()
        self.core.follow(setpoint)

    def counts(self) -> LedgerCounts:
        """What requests came to."""
        return self.core.ledger.collect(self.core_time())

    def now(self) -> float:
        """The time on the core's clock."""
        return self._clock() - self._origin

    def submit(self, requests: Sequence[Request]) -> Admitted | None:
        """The sequences of one HTTP request come in now; see `Core.submit`."""
        self._advance()
        for request in requests:
            request.arrival = self.core_time()
        self._work.set()
        return self.core.submit(requests)

    def may_refuse(self, requests: Sequence[Request]) -> bool:
        """Whether these may still be refused: nothing was sent to their client."""
        waits = all(request.fate is Fate.OPEN and request.first_token is None for request in requests)
        return waits and self.core.may_refuse(requests)

    def core_time(self) -> float:
        """Now, but never before what the core has done already."""
        return max(self.now(), self.core.now)

    def leave(self, requests: Sequence[Request]) -> None:
        """Their client is gone."""
        self._advance()
        for request in requests:
            self.core.leave(request, self.core_time())
        self._work.set()

    def made(self, request: Request) -> int:
        """Tokens of a request that are there."""
        return request.made_at(self.core.scheduler.steps)

    async def drive(self) -> None:
        """Make steps as time passes, until cancelled."""
        while True:
            self._advance()
            tick, self.tick = self.tick, asyncio.Event()
            tick.set()
            scheduler = self.core.scheduler
            if scheduler.running or scheduler.waiting:
                # Nothing is to be told before the step in flight ends.
                rest = self.core.next_change - self.now()
                await asyncio.sleep(rest if TICK_SECONDS < rest < _IDLE_SECONDS else TICK_SECONDS)
                continue
            self._work.clear()
            # Not wait_for: until Python 3.12 that loses a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._work.wait()

    def _advance(self) -> None:
        self.core.run(self.now())
        self._publish()

    def _publish(self) -> None:
        core, numbers = self.core, self._state.numbers
        governed, scheduler = core.governed, core.scheduler
        self._state.set_generation(governed.applied)
        for knob, shown in governed.shown(scheduler.batch()).items():
            self._state.set_knob(knob, requested=shown.requested, effective=shown.effective, reason=shown.reason)
        numbers[Slot.KV_CACHE_USAGE] = scheduler.used_blocks() / scheduler.capacity
        numbers[Slot.RUNNING_KV_TOKENS] = scheduler.held_tokens()
        numbers[Slot.WATCHDOG_TRIPS] = governed.trips
        numbers[Slot.EXPIRIES] = governed.expiries
        numbers[Slot.LONGEST_STEP_SECONDS] = core.statistics.longest_seconds
        numbers[Slot.STEP_BUDGET_SECONDS] = governed.budgeter.seconds
        numbers[Slot.LOCAL_BIAS] = governed.budgeter.bias
        numbers[Slot.OLDEST_WAITING_SECONDS] = core.batches.oldest_seconds(core.now)
        order = core.prompts.counts(core.now)
        numbers[Slot.MOVED_BEHIND] = order.moved_behind
        numbers[Slot.IN_TIME_AFTER_ALL] = order.in_time_after_all
        numbers[Slot.BEHIND] = order.behind
        numbers[Slot.LONGEST_WAIT_BEHIND_SECONDS] = order.longest_wait_seconds
        self._state.set_load(core.load())
        self._state.publish()
