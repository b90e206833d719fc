"""A small shared-memory file through which each engine core tells the API server its state.

The API server answers reads and scrapes from it, so that neither ever disturbs or waits for a core that is in the
middle of a step. One writer per file, any number of readers. The layout is fixed: a header, then two bodies of float64
numbers (whole numbers are exact up to 2**53), then a JSON text that is written once. The writer fills the bodies in
turn and then says which is the newer. One that is held up in the middle of a write leaves the other to be read. A
checksum tells a reader when it was overtaken twice; it holds on processors that reorder stores, too. Publishing costs
microseconds: the body is copied whole, which is cheaper than tracking what changed.

Imports neither vLLM nor torch: engines of other kinds publish the same file.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from flyball_engine.batching.batch_metrics import BATCH_SUMS_LENGTH, BatchCounts, batch_counts
from flyball_engine.batching.draft_statistics import DRAFT_SUMS_LENGTH, DraftPosition, draft_positions
from flyball_engine.batching.gate import CoreLoad
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.batching.setpoint_enforcer import Sizes
from flyball_engine.batching.step_statistics import SUMS_LENGTH, step_sums
from flyball_engine.contract import (
    AnyKnob,
    Ceilings,
    Clamp,
    ClampReason,
    CoreState,
    Generation,
    Knob,
    Limits,
    OrderCounts,
    SchedulingPolicy,
    StrategyType,
)
from flyball_engine.knobs import knob_named


@contextmanager
def shared_file(path: Path, size: int) -> Iterator[mmap.mmap]:
    """A new file of `size` bytes, all zero, to be filled within; then it stands at `path`, replacing an older one.

    So no reader meets a file without its header, and whoever has mapped the older one keeps that. Raises OSError.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb+") as file:
        # No holes: a write into one where memory is short would end the process by a signal.
        os.posix_fallocate(file.fileno(), 0, size)
        made = mmap.mmap(file.fileno(), size)
    yield made
    partial.replace(path)


_MAGIC: Final = int.from_bytes(b"FLYBALL6", "little")
_HEADER: Final = 5  # 8-byte words: magic, writes so far, the bodies' checksums, length of the text
_PUBLISHED: Final = 1
_CHECKSUM: Final = 2
_LENGTH: Final = 4
_TEXT_BYTES: Final = 16_384
_REASON_LENGTH: Final = 200
_READ_ATTEMPTS: Final = 100
_LOAD_ATTEMPTS: Final = 5
_READ_PAUSE_SECONDS: Final = 0.0001
_KNOBS: Final = tuple(Knob)
_STRATEGIES: Final = tuple(StrategyType)
_POLICIES: Final = tuple(SchedulingPolicy)
_REASONS: Final = tuple(ClampReason)
_ABSENT: Final = math.nan


class StateFileError(Exception):
    """A state file could not be made or opened."""


class Slot:
    """Index of each number in the body; those for knobs are followed by one more per further knob.

    Plain numbers: an enumeration's members cost a step several times as much to look up.
    """

    (
        ENGINE,
        GOVERNED,
        EPOCH,
        GENERATION,
        MAX_NUM_SEQS,
        MAX_NUM_BATCHED_TOKENS,
        MAX_MODEL_LEN,
        RUNNING,
        WAITING,
        KV_CACHE_USAGE,
        KV_CACHE_TOKENS,
        RUNNING_KV_TOKENS,
        WATCHDOG_TRIPS,
        EXPIRIES,
        LONGEST_STEP_SECONDS,
        TOKENS_PER_DECODE,
        STEP_BUDGET_SECONDS,
        LOCAL_BIAS,
        PIPELINE_DEPTH,
        PREFILLS,
        PROMPT_TOKEN_SECONDS,
        PROMPT_ATTENTION_SECONDS,
        IN_FLIGHT_SECONDS,
        STRATEGY,
        POLICY,
        OLDEST_WAITING_SECONDS,
        MOVED_BEHIND,
        IN_TIME_AFTER_ALL,
        BEHIND,
        LONGEST_WAIT_BEHIND_SECONDS,
        HEADROOM_SECONDS,
    ) = range(31)
    REQUESTED = 40
    EFFECTIVE = 48
    START = 56
    REASON = 64
    BATCHES = 72
    DRAFTS = 72 + BATCH_SUMS_LENGTH
    SUMS = DRAFTS + DRAFT_SUMS_LENGTH


_BODY: Final = Slot.SUMS + SUMS_LENGTH
_TEXT: Final = 8 * (_HEADER + 2 * _BODY)
_FILE_BYTES: Final = _TEXT + _TEXT_BYTES


@dataclass(frozen=True, kw_only=True)
class CoreReport:
    """What a core published: its state as the contract has it, and what only metrics and the control server need.

    `drafts`: by position. `headroom_seconds`: that a prompt which comes now may take to be on time, None where that is
    not known.
    """

    state: CoreState
    governed: bool
    running_kv_tokens: int
    expiries: int
    step_budget_seconds: float
    oldest_waiting_seconds: float
    batches: BatchCounts
    drafts: tuple[DraftPosition, ...] = ()
    headroom_seconds: float | None = None


class StateWriter:
    """Writes one core's file: set `numbers`, the body, or `batches`, `drafts` and `sums` in it, then `publish`."""

    def __init__(self, folder: Path, *, engine: int, unsupported: Mapping[AnyKnob, str]) -> None:
        """Make the file of the core `engine`, replacing an older one; raises StateFileError."""
        path = folder / f"core-{engine}.state"
        text = _encoded(engine, unsupported)
        try:
            with shared_file(path, _FILE_BYTES) as self._map:
                self._words = memoryview(self._map).cast("Q")
                self._words[_LENGTH] = len(text)
                self._map[_TEXT : _TEXT + len(text)] = text
                self._words[0] = _MAGIC
        except OSError as error:
            raise StateFileError(f"cannot make the state file {path}: {error}") from error
        self.numbers = array("d", bytes(8 * _BODY))
        image = memoryview(self.numbers)
        self.batches = cast("MutableSequence[float]", image[Slot.BATCHES : Slot.DRAFTS])
        self.drafts = cast("MutableSequence[float]", image[Slot.DRAFTS : Slot.SUMS])
        self.sums = cast("MutableSequence[float]", image[Slot.SUMS :])
        self._source = image.cast("B")
        self._targets = tuple(memoryview(self._map)[_body(turn)] for turn in (0, 1))
        self._published = 0
        self.numbers[Slot.ENGINE] = engine
        for one in (Slot.TOKENS_PER_DECODE, Slot.PIPELINE_DEPTH):
            self.numbers[one] = 1
        absent = (
            Slot.EPOCH,
            Slot.GENERATION,
            Slot.LOCAL_BIAS,
            Slot.PROMPT_TOKEN_SECONDS,
            Slot.HEADROOM_SECONDS,
        )
        for start in (*absent, *_of_knobs(Slot.EFFECTIVE), *_of_knobs(Slot.START)):
            self.numbers[start] = _ABSENT

    def publish(self) -> None:
        """Make the numbers visible to readers, all at once."""
        self._published += 1
        turn = self._published % 2
        self._targets[turn][:] = self._source
        self._words[_CHECKSUM + turn] = zlib.crc32(self._source)
        self._words[_PUBLISHED] = self._published

    def set_generation(self, generation: Generation | None) -> None:
        """Which setpoint is applied; None if none is."""
        self.numbers[Slot.EPOCH] = generation.epoch if generation else _ABSENT
        self.numbers[Slot.GENERATION] = generation.generation if generation else _ABSENT

    def set_load(self, load: CoreLoad) -> None:
        """The requests in the core, and what the gate decides by."""
        numbers, rate = self.numbers, load.rate
        numbers[Slot.RUNNING] = load.running
        numbers[Slot.WAITING] = load.waiting
        numbers[Slot.PREFILLS] = load.prefills
        numbers[Slot.IN_FLIGHT_SECONDS] = load.in_flight_seconds
        numbers[Slot.PROMPT_TOKEN_SECONDS] = _ABSENT if rate is None else rate.per_token
        numbers[Slot.PROMPT_ATTENTION_SECONDS] = 0.0 if rate is None else rate.per_attention

    def set_knob(self, knob: Knob, *, requested: int, effective: int, reason: ClampReason | None) -> None:
        """What a knob was asked for, what it is, and why these differ."""
        index = _KNOBS.index(knob)
        self.numbers[Slot.REQUESTED + index] = requested
        self.numbers[Slot.EFFECTIVE + index] = effective
        self.numbers[Slot.REASON + index] = 0 if reason is None else 1 + _REASONS.index(reason)

    def set_admission(self, strategy: StrategyType, policy: SchedulingPolicy) -> None:
        """How requests are admitted now."""
        self.numbers[Slot.STRATEGY] = _STRATEGIES.index(strategy)
        self.numbers[Slot.POLICY] = _POLICIES.index(policy)

    def describe(self, sizes: Sizes, started: Mapping[Knob, int], *, kv_cache_tokens: int) -> None:
        """What does not change while a governed core lives: how large it is, and the values its knobs return to."""
        numbers = self.numbers
        numbers[Slot.GOVERNED] = 1
        numbers[Slot.MAX_NUM_SEQS] = sizes.max_num_seqs
        numbers[Slot.MAX_NUM_BATCHED_TOKENS] = sizes.max_num_batched_tokens
        numbers[Slot.MAX_MODEL_LEN] = sizes.max_model_len
        numbers[Slot.TOKENS_PER_DECODE] = sizes.tokens_per_decode
        numbers[Slot.KV_CACHE_TOKENS] = kv_cache_tokens
        for knob, value in started.items():
            self.set_start(knob, value)

    def set_start(self, knob: Knob, value: int) -> None:
        """The value a knob starts with and returns to."""
        self.numbers[Slot.START + _KNOBS.index(knob)] = value


class StateReader:
    """Reads one core's file."""

    def __init__(self, path: Path) -> None:
        """Open the file; raises StateFileError if it is absent or something else."""
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), _FILE_BYTES, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StateFileError(f"cannot open the state file {path}: {error}") from error
        self._words = memoryview(self._map).cast("Q")
        if self._words[0] != _MAGIC:
            raise StateFileError(f"{path} is no state file of this version")
        text = json.loads(self._map[_TEXT : _TEXT + self._words[_LENGTH]])
        self.engine: int = text["engine"]
        self.unsupported: dict[AnyKnob, str] = {knob_named(knob): why for knob, why in text["unsupported"].items()}

    def read(self) -> CoreReport | None:
        """The last state published; None if no whole one could be seen, which is not the same as an empty one."""
        for _ in range(_READ_ATTEMPTS):
            body = self._consistent_body()
            if body is not None:
                return _report(body)
            time.sleep(_READ_PAUSE_SECONDS)
        return None

    def applied(self) -> Generation | None:
        """The setpoint in force, to be looked at again and again; None if there is none, or no whole state is seen."""
        body = self._consistent_body()
        return None if body is None else _generation(body)

    def load(self) -> CoreLoad | None:
        """What the gate needs of the last state, at the price of a request; None if no whole one could be seen.

        None, too, of a core that is not governed: it publishes no more, and what it once said stays as it was.
        """
        for _ in range(_LOAD_ATTEMPTS):
            body = self._consistent_body()
            if body is not None:
                return _load(body) if body[Slot.GOVERNED] else None
        return None

    def _consistent_body(self) -> array[float] | None:
        published = self._words[_PUBLISHED]
        if published == 0:
            return None
        turn = published % 2
        copy = self._map[_body(turn)]
        return array("d", copy) if zlib.crc32(copy) == self._words[_CHECKSUM + turn] else None


def find_state_files(folder: Path) -> list[Path]:
    """All cores' files in a folder, in order."""
    return sorted(folder.glob("core-*.state"))


def _body(turn: int) -> slice:
    start = 8 * (_HEADER + turn * _BODY)
    return slice(start, start + 8 * _BODY)


def _encoded(engine: int, unsupported: Mapping[AnyKnob, str]) -> bytes:
    short = {knob.value: reason[:_REASON_LENGTH] for knob, reason in unsupported.items()}
    return json.dumps({"engine": engine, "unsupported": short}).encode("ascii")


def _of_knobs(start: int) -> range:
    return range(start, start + len(_KNOBS))


def _report(body: array[float]) -> CoreReport:
    return CoreReport(
        state=_state(body),
        governed=bool(body[Slot.GOVERNED]),
        running_kv_tokens=int(body[Slot.RUNNING_KV_TOKENS]),
        expiries=int(body[Slot.EXPIRIES]),
        step_budget_seconds=body[Slot.STEP_BUDGET_SECONDS],
        oldest_waiting_seconds=body[Slot.OLDEST_WAITING_SECONDS],
        batches=batch_counts(body[Slot.BATCHES : Slot.DRAFTS]),
        drafts=draft_positions(body[Slot.DRAFTS : Slot.SUMS]),
        headroom_seconds=None if math.isnan(body[Slot.HEADROOM_SECONDS]) else body[Slot.HEADROOM_SECONDS],
    )


def _load(body: array[float]) -> CoreLoad:
    per_token = body[Slot.PROMPT_TOKEN_SECONDS]
    rate = PrefillRate(per_token=per_token, per_attention=body[Slot.PROMPT_ATTENTION_SECONDS])
    return CoreLoad(
        rate=None if math.isnan(per_token) else rate,
        in_flight_seconds=body[Slot.IN_FLIGHT_SECONDS],
        running=int(body[Slot.RUNNING]),
        waiting=int(body[Slot.WAITING]),
        prefills=int(body[Slot.PREFILLS]),
    )


def _state(body: array[float]) -> CoreState:
    return CoreState(
        engine=int(body[Slot.ENGINE]),
        applied=_generation(body),
        effective=_limits(body, Slot.EFFECTIVE),
        start=_limits(body, Slot.START),
        clamped=tuple(_clamps(body)),
        ceilings=Ceilings(
            max_num_seqs=int(body[Slot.MAX_NUM_SEQS]),
            max_num_batched_tokens=int(body[Slot.MAX_NUM_BATCHED_TOKENS]),
            max_model_len=int(body[Slot.MAX_MODEL_LEN]),
        ),
        running=int(body[Slot.RUNNING]),
        waiting=int(body[Slot.WAITING]),
        kv_cache_usage=body[Slot.KV_CACHE_USAGE],
        kv_cache_tokens=int(body[Slot.KV_CACHE_TOKENS]),
        watchdog_trips=int(body[Slot.WATCHDOG_TRIPS]),
        longest_step_seconds=body[Slot.LONGEST_STEP_SECONDS],
        local_bias=None if math.isnan(body[Slot.LOCAL_BIAS]) else body[Slot.LOCAL_BIAS],
        tokens_per_decode=int(body[Slot.TOKENS_PER_DECODE]),
        pipeline_depth=int(body[Slot.PIPELINE_DEPTH]),
        steps=step_sums(body[Slot.SUMS :]),
        strategy=_STRATEGIES[int(body[Slot.STRATEGY])],
        policy=_POLICIES[int(body[Slot.POLICY])],
        order=OrderCounts(
            moved_behind=int(body[Slot.MOVED_BEHIND]),
            in_time_after_all=int(body[Slot.IN_TIME_AFTER_ALL]),
            behind=int(body[Slot.BEHIND]),
            longest_wait_seconds=body[Slot.LONGEST_WAIT_BEHIND_SECONDS],
        ),
    )


def _generation(body: array[float]) -> Generation | None:
    if math.isnan(body[Slot.EPOCH]):
        return None
    return Generation(epoch=int(body[Slot.EPOCH]), generation=int(body[Slot.GENERATION]))


def _limits(body: array[float], start: int) -> Limits:
    values = zip(_KNOBS, body[start : start + len(_KNOBS)], strict=True)
    return Limits(**{knob.value: int(value) for knob, value in values if not math.isnan(value)})


def _clamps(body: array[float]) -> list[Clamp]:
    return [
        Clamp(
            knob=knob,
            requested=int(body[Slot.REQUESTED + index]),
            effective=int(body[Slot.EFFECTIVE + index]),
            reason=_REASONS[int(body[Slot.REASON + index]) - 1].value,
        )
        for index, knob in enumerate(_KNOBS)
        if body[Slot.REASON + index]
    ]
