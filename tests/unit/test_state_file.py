"""What a core publishes, a reader in another process sees whole or not at all."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from flyball_engine.batching.step_statistics import Step, StepStatistics
from flyball_engine.contract import Clamp, ClampReason, Generation, Knob
from flyball_engine.control import state_file
from flyball_engine.control.metrics import headroom
from flyball_engine.control.state_file import (
    CoreReport,
    Slot,
    StateFileError,
    StateReader,
    find_state_files,
)
from support.state_writer import a_writer, write_on


def the_reader(folder: Path) -> StateReader:
    (path,) = find_state_files(folder)
    return StateReader(path)


def read(folder: Path) -> CoreReport:
    report = the_reader(folder).read()
    assert report is not None
    return report


def test_what_was_published_is_read(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, engine=3)
    writer.set_generation(Generation(epoch=2, generation=2**53))
    writer.set_start(Knob.MAX_NUM_ACTIVE_SEQS, 64)
    writer.set_knob(Knob.MAX_NUM_ACTIVE_SEQS, requested=900, effective=64, reason=ClampReason.CEILING)
    writer.numbers[Slot.RUNNING] = 5
    StepStatistics(writer.sums).scheduled(
        1, Step(tokens=4, prefill_tokens=0, decodes=4, kv_tokens=9, prefill_attention=0), now=0
    )
    writer.publish()
    state = read(tmp_path).state
    assert (state.engine, state.running) == (3, 5)
    assert state.applied == Generation(epoch=2, generation=2**53)
    assert state.effective.given() == state.start.given() == {Knob.MAX_NUM_ACTIVE_SEQS: 64}
    assert state.clamped == (Clamp(knob=Knob.MAX_NUM_ACTIVE_SEQS, requested=900, effective=64, reason="ceiling"),)


def test_nothing_applied_is_not_generation_zero(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.publish()
    assert read(tmp_path).state.applied is None
    writer.set_generation(Generation(epoch=0, generation=0))
    writer.publish()
    assert read(tmp_path).state.applied == Generation(epoch=0, generation=0)


def test_the_headroom_of_an_engine_is_that_of_the_core_that_has_most(tmp_path: Path) -> None:
    def told() -> list[float]:
        reports = [StateReader(path).read() for path in find_state_files(tmp_path)]
        return [sample.value for sample in headroom(found for found in reports if found).samples]

    writers = [a_writer(tmp_path, engine=engine) for engine in range(3)]
    for writer in writers:
        writer.publish()
    assert told() == [], "nothing is ordered"
    for writer, seconds in zip(writers, (-1.5, 0.25), strict=False):
        writer.numbers[Slot.HEADROOM_SECONDS] = seconds
        writer.publish()
    assert told() == [0.25]


def test_numbers_are_unseen_until_they_are_published(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.publish()
    writer.numbers[Slot.RUNNING] = 5
    assert read(tmp_path).state.running == 0
    writer.publish()
    assert read(tmp_path).state.running == 5


def test_a_core_that_never_published_is_unknown(tmp_path: Path) -> None:
    a_writer(tmp_path)
    assert the_reader(tmp_path).read() is None


def scribble(folder: Path, body: int) -> None:
    """Leave one of the two bodies as in the middle of a write."""
    (path,) = find_state_files(folder)
    with path.open("r+b") as file:
        file.seek(state_file._body(body).start + 100)
        file.write(b"\x55")


def test_its_memory_is_taken_when_it_is_made(tmp_path: Path) -> None:
    a_writer(tmp_path)
    taken = (tmp_path / "core-0.state").stat()
    assert taken.st_blocks * 512 >= taken.st_size


def test_half_a_write_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.publish()
    scribble(tmp_path, 1)
    assert the_reader(tmp_path).read() is None
    assert the_reader(tmp_path).load() is None


def test_a_writer_held_up_in_the_middle_leaves_what_it_published_before(tmp_path: Path) -> None:
    writer = a_writer(tmp_path)
    writer.numbers[Slot.GOVERNED] = 1
    for running in (5, 6):
        writer.numbers[Slot.RUNNING] = running
        writer.publish()
    scribble(tmp_path, 1)
    assert read(tmp_path).state.running == 6
    load = the_reader(tmp_path).load()
    assert load is not None
    assert load.running == 6


def test_reasons_travel_and_are_bounded(tmp_path: Path) -> None:
    writer = a_writer(tmp_path, unsupported=dict.fromkeys(Knob, "é" * 5000))
    writer.publish()
    reasons = the_reader(tmp_path).unsupported
    assert set(reasons) == set(Knob)
    assert all(reason.startswith("éé") for reason in reasons.values())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "core-0.state"
    path.write_bytes(b"\0" * 100_000)
    with pytest.raises(StateFileError, match="no state file"):
        StateReader(path)
    path.write_bytes(b"short")
    with pytest.raises(StateFileError, match="cannot open"):
        StateReader(path)


def test_a_reader_beside_a_busy_writer_sees_only_whole_states(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=write_on, args=(tmp_path, ready, stop))
    process.start()
    try:
        assert ready.wait(60)
        reader = the_reader(tmp_path)
        last, changes = 0, 0
        while changes < 300:
            assert process.is_alive()
            report = reader.read()
            if report is None:
                continue
            rows = report.state.steps
            seen = {report.state.running, report.state.waiting, report.running_kv_tokens, report.state.watchdog_trips}
            assert seen | {rows[0].steps, rows[-1].steps} == {report.state.running}
            assert report.state.running >= last
            changes += report.state.running > last
            last = report.state.running
    finally:
        stop.set()
        process.join(60)
    assert process.exitcode == 0
