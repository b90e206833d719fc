"""The padded engine: a queue, one batch at a time in a thread of its own, and the state that others read.

Everything but the batch's own computing happens on the event loop: so a setpoint is in force as soon as it came, for
the next batch, and nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from flyball_engine.batching.batch_metrics import BatchMetrics
from flyball_engine.batching.gate import Arrival, Gate
from flyball_engine.batching.outcomes import End, LedgerCounts, RequestLedger
from flyball_engine.batching.setpoint_enforcer import RequestedLimits, RunningBatch, SetpointEnforcer, Sizes
from flyball_engine.batching.step_statistics import Occupancy, StepStatistics
from flyball_engine.contract import Batching, SchedulingPolicy, Setpoint, StrategyType
from flyball_engine.control.service import Reports
from flyball_engine.control.state_file import Slot, StateReader, StateWriter
from flyball_engine.knobs import Dynamic
from flyball_lab.openai.app import Gone, Headers, NotServedError, overloaded
from flyball_lab.openai.load import EngineLoad
from flyball_lab.padded.batch import Batch, Padding, Stepped
from flyball_lab.padded.bodies import AnyBody, Tokens
from flyball_lab.padded.former import form, whole
from flyball_lab.padded.requests import Row, Text
from flyball_lab.padded.support import UNGATED, UNSUPPORTED

#: An idle engine looks at its clock so often, for a setpoint that expires.
_IDLE_SECONDS: Final = 1.0
#: A batch is formed where nothing runs, so that nothing that runs moves the limit.
_NOTHING: Final = RunningBatch(decodes=0)

_ENDING: Final = "the engine is ending"

_log = logging.getLogger(__name__)


class Runner(Tokens, Protocol):
    """The model. `run` may take long and is called in a thread of its own; the rest is quick."""

    @property
    def version(self) -> str:
        """Of the software, for people."""

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer."""

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens read as."""

    def run(self, batch: Batch) -> None:
        """Compute a batch to the end of its last row, telling it of each step."""


@dataclass(frozen=True, kw_only=True)
class PaddedConfig:
    """`max_num_seqs`: most rows a batch may ever have. `start`: how batches are formed until a setpoint says otherwise.

    `max_queue`: sequences that may wait; more are refused.
    """

    max_num_seqs: int
    start: Dynamic
    max_queue: int


class PaddedEngine:
    """One model, one batch at a time; `drive` must run. `tick` is set when there may be more tokens."""

    def __init__(self, runner: Runner, config: PaddedConfig, folder: Path, *, clock: Callable[[], float]) -> None:
        """Make its state file; raises StateFileError."""
        self.tick = asyncio.Event()
        self.padding = Padding()
        self.gate = Gate(lambda: None)
        self._runner = runner
        self._config = config
        self._clock = clock
        sizes = Sizes(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_seqs * runner.max_model_len,
            max_model_len=runner.max_model_len,
        )
        start = RequestedLimits(active=sizes.max_num_seqs, tokens=sizes.max_num_batched_tokens, threshold=0)
        self._enforcer = SetpointEnforcer(sizes, start, fixed=UNSUPPORTED)
        self._ledger = RequestLedger()
        self._waiting: dict[Row, None] = {}
        self._arriving = 0
        self._numbers = 0
        self._batch: Batch | None = None
        self._held = 0
        self._last_seconds = 0.0
        self._driven = True
        self._changed = asyncio.Event()
        # One thread, as a tokeniser is not made for several; a long prompt does not hold up the event loop.
        self._encoder = ThreadPoolExecutor(1, "encoder")
        self._state = StateWriter(folder, engine=0, unsupported=UNSUPPORTED)
        self._statistics = StepStatistics(self._state.sums)
        self._batches = BatchMetrics(config.max_num_seqs, self._state.batches)
        self._state.describe(sizes, self._enforcer.started(), kv_cache_tokens=sizes.max_num_batched_tokens)
        self._publish()
        self._reader = StateReader(folder / "core-0.state")

    @property
    def version(self) -> str:
        """For people."""
        return self._runner.version

    @property
    def queue(self) -> None:
        """The queue's bound is that of the start."""

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._runner.max_model_len

    def healthy(self) -> bool:
        """Whether batches are run."""
        return self._driven

    def reports(self) -> Reports:
        """What was published last."""
        report = self._reader.read()
        cores, unknown = ((report,), ()) if report is not None else ((), (0,))
        return Reports(cores=cores, unknown=unknown, unsupported=UNSUPPORTED, ungated=UNGATED)

    def load(self) -> EngineLoad:
        """What it does now."""
        usage = self._held / (self._config.max_num_seqs * self._runner.max_model_len)
        return EngineLoad(running=self._running(), waiting=len(self._waiting), kv_cache_usage=usage)

    def counts(self) -> LedgerCounts:
        """What requests came to."""
        return self._ledger.collect(self._clock())

    async def apply(self, setpoint: Setpoint) -> None:
        """Put a setpoint in force: for the next batch, while the one that runs goes on as it began."""
        if self._enforcer.apply(setpoint, self._clock()):
            self._statistics.new_period()
        self._publish()
        self._changed.set()

    async def touch(self) -> None:
        """Look at the clock."""
        self._enforcer.expire_if_due(self._clock())
        self._publish()
        self._changed.set()

    def follow(self, setpoint: Setpoint) -> None:
        """What requests are counted against from now on."""
        self._ledger.set_objectives(setpoint.objectives)
        self.gate.set_policy(setpoint, now=self._clock())

    async def submit(self, body: AnyBody, _headers: Headers = (), _gone: Gone | None = None, /) -> list[Row]:
        """The sequences of one HTTP request come in. Raises NotServedError."""
        arrival = self._clock()
        try:
            prompts = await self._encoded(body)
            mosts = [self._most(body, prompt) for prompt in prompts]
        except NotServedError:
            self._ledger.ended(self._ledger.opened(arrival), End.REFUSED, self._clock())
            raise
        self.gate.decide(Arrival(len(prompts[0])), now=arrival)
        opened = self._ledger.opened(arrival)
        rows = [
            Row(
                number=self._next_number(),
                arrival=arrival,
                prompt=prompt,
                most=most,
                sampling=body.sampling(index),
                text=Text(self._runner.text),
                counted=self._ledger.started(opened),
                priority=body.priority,
                tells_tokens=body.return_token_ids,
            )
            for prompt, most in zip(prompts, mosts, strict=True)
            for index in range(body.n)
        ]
        # Whatever comes of it, the ledger counts it with the end of its last sequence.
        self._ledger.ended(opened, End.ANSWERED, arrival)
        self._waiting.update(dict.fromkeys(rows))
        for row in rows:
            self._batches.arrived(row, arrival)
        self._publish()
        self._changed.set()
        return rows

    def leave(self, rows: Sequence[Row]) -> None:
        """Their client is gone: those that wait never start, those in a batch are padding until it ends."""
        now = self._clock()
        for row in rows:
            if row.is_open:
                row.left = True
                self._waiting.pop(row, None)
                self._ledger.ended(row.counted.request, End.LEFT, now)
                self._batches.ended(row, row.made, now)
        self._publish()
        self._changed.set()

    async def drive(self) -> None:
        """Form batches and run them, until cancelled; then the batch that runs ends with its next step."""
        try:
            with ThreadPoolExecutor(1, "batch") as worker:
                while True:
                    self._changed.clear()
                    now = self._clock()
                    self._enforcer.expire_if_due(now)
                    active = self._enforcer.held(_NOTHING).limits.active
                    formed = form(self._waiting, self._batching(), most=active, now=now)
                    if formed.rows:
                        await self._run(worker, formed.rows)
                        continue
                    self._publish()
                    rest = _IDLE_SECONDS if formed.until is None else formed.until - now
                    # Not wait_for: until Python 3.12 that loses a cancellation that comes together with the event.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(min(_IDLE_SECONDS, rest)):
                            await self._changed.wait()
        finally:
            self._driven = False
            self._fail(list(self._waiting), _ENDING)
            self._news()
            self._encoder.shutdown(wait=False)

    async def _run(self, worker: ThreadPoolExecutor, rows: Sequence[Row]) -> None:
        loop = asyncio.get_running_loop()
        for row in rows:
            del self._waiting[row]

        def tell(stepped: Stepped) -> None:
            loop.call_soon_threadsafe(self._stepped, batch, stepped)

        batch = self._batch = Batch(rows, ends=self._runner.ends, clock=self._clock, tell=tell)
        began = self._clock()
        joining = [(row, row.prompt_tokens) for row in rows]
        self._batches.admitted(joining, running=len(rows), whole=True, now=began)
        try:
            await loop.run_in_executor(worker, self._runner.run, batch)
        except Exception as error:  # noqa: BLE001 – one batch too large for the memory must not end the engine
            _log.exception("Flyball: a batch of %d rows failed", len(rows))
            self._fail(rows, f"the batch failed: {type(error).__name__}")
        finally:
            self._fail(rows, _ENDING)
            for row in rows:
                row.left = True  # if this was cancelled, the thread shall not go on
            self._batch, self._held = None, 0
            self._last_seconds = self._clock() - began
            self._publish()
            self._news()

    def _stepped(self, batch: Batch, stepped: Stepped) -> None:
        """A step's tokens are there."""
        now, step = self._clock(), batch.step(stepped.number)
        self._statistics.repeated(
            step,
            steps=1,
            seconds=stepped.seconds,
            seconds_squared=stepped.seconds**2,
            kv_tokens=step.kv_tokens,
            longest=stepped.seconds,
        )
        self.padding.count(batch, stepped)
        # A row that has ended is computed on, but nobody has its slot.
        going = len(stepped.news)
        occupancy = Occupancy(requests=going, running=going, active=self._enforcer.held(_NOTHING).limits.active)
        self._batches.stepped(step._replace(occupancy=occupancy), seconds=stepped.seconds)
        for news in stepped.news:
            row = news.row
            if row.is_open:
                row.text.add(news.token, last=news.finish_reason is not None)
                self._ledger.received(row.counted, tokens=1, at=stepped.at, now=now)
                if news.finish_reason is not None:
                    row.finish_reason = news.finish_reason
                    self._ledger.done(row.counted, prompt=row.prompt_tokens, cached=0, now=now)
                    self._batches.ended(row, row.made, now)
        self._held = batch.held(stepped.number)
        self._publish()
        self._news()

    def _fail(self, rows: Sequence[Row], why: str) -> None:
        for row in rows:
            if row.is_open:
                now, row.failure = self._clock(), why
                self._ledger.done(row.counted, prompt=row.prompt_tokens, cached=0, now=now, failed=True)
                self._batches.ended(row, row.made, now)

    async def _encoded(self, body: AnyBody) -> list[list[int]]:
        """The prompts' tokens, if there is room for them in the queue. Raises NotServedError."""
        wanted, most = body.sequences, self._config.max_queue
        if not wanted:
            raise NotServedError("prompt: is empty")
        if wanted > most:
            raise NotServedError(f"prompt, n: {wanted} sequences, accepted: at most {most} at once")
        self._check_driven()
        if len(self._waiting) + self._arriving + wanted > most:
            retry_after = max(1, math.ceil(self._last_seconds))
            raise overloaded(f"overloaded: {most} sequences may wait", retry_after=retry_after)
        self._arriving += wanted
        try:
            loop = asyncio.get_running_loop()
            prompts = await loop.run_in_executor(self._encoder, body.encoded, self._runner)
        except ValueError as error:
            raise NotServedError(str(error)) from error
        finally:
            self._arriving -= wanted
        self._check_driven()  # it may have ended meanwhile, and nobody would run them
        return prompts

    def _check_driven(self) -> None:
        if not self._driven:
            raise overloaded(_ENDING, retry_after=1)

    def _most(self, body: AnyBody, prompt: Sequence[int]) -> int:
        """Output tokens that a prompt may get at most. Raises NotServedError."""
        longest = self._runner.max_model_len
        if not prompt:
            raise NotServedError("prompt: is empty")
        if not all(0 <= token < self._runner.vocabulary for token in prompt):
            raise NotServedError(f"prompt: accepted as tokens: 0 to {self._runner.vocabulary - 1}")
        most = body.most(longest - len(prompt))
        if len(prompt) + most > longest:
            message = f"prompt: {len(prompt)} tokens, and {most} of the answer (max_tokens), are longer than the "
            raise NotServedError(f"{message}{longest} tokens of the model's context")
        return most

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _batching(self) -> Batching:
        return whole(self._enforcer.batching, self._config.start)

    def _running(self) -> int:
        return sum(row.is_open for row in self._batch.rows) if self._batch is not None else 0

    def _news(self) -> None:
        tick, self.tick = self.tick, asyncio.Event()
        tick.set()

    def _publish(self) -> None:
        governed, numbers, load, batching = self._enforcer, self._state.numbers, self.load(), self._batching()
        self._state.set_generation(governed.applied)
        for knob, (requested, effective, reason) in governed.shown(_NOTHING).items():
            self._state.set_knob(knob, requested=requested, effective=effective, reason=reason)
        strategy = batching.strategy or self._config.start
        self._state.set_admission(StrategyType(strategy.type), batching.policy or SchedulingPolicy.FCFS)
        numbers[Slot.RUNNING] = load.running
        numbers[Slot.WAITING] = load.waiting
        numbers[Slot.KV_CACHE_USAGE] = load.kv_cache_usage
        numbers[Slot.RUNNING_KV_TOKENS] = self._held
        numbers[Slot.EXPIRIES] = governed.expiries
        numbers[Slot.LONGEST_STEP_SECONDS] = self._statistics.longest_seconds
        numbers[Slot.OLDEST_WAITING_SECONDS] = self._batches.oldest_seconds(self._clock())
        self._state.publish()
