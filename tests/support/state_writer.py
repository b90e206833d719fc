"""A core that publishes as fast as it can: a process of its own beside a reader."""

from __future__ import annotations

from multiprocessing.synchronize import Event
from pathlib import Path

from flyball_engine.contract import AnyKnob
from flyball_engine.control.state_file import Slot, StateWriter


def a_writer(folder: Path, *, engine: int = 0, unsupported: dict[AnyKnob, str] | None = None) -> StateWriter:
    """A state file with plausible ceilings, nothing published yet."""
    writer = StateWriter(folder, engine=engine, unsupported=unsupported or {})
    for slot in (Slot.MAX_NUM_SEQS, Slot.MAX_NUM_BATCHED_TOKENS, Slot.MAX_MODEL_LEN):
        writer.numbers[slot] = 64
    return writer


def write_on(folder: Path, ready: Event, stop: Event) -> None:
    """Publish bodies whose numbers are all equal until told to stop."""
    writer = a_writer(folder)
    value = 0
    while not stop.is_set():
        value += 1
        for slot in (Slot.RUNNING, Slot.WAITING, Slot.RUNNING_KV_TOKENS, Slot.WATCHDOG_TRIPS):
            writer.numbers[slot] = value
        writer.sums[0] = writer.sums[-8] = value
        writer.publish()
        ready.set()
