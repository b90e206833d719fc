"""The picture of a demo: what it looks like on a terminal, and that the drawing has all of it."""

from __future__ import annotations

from pathlib import Path

from matplotlib.image import imread

from flyball_lab.demo.picture import Moment, Record, as_text, save


def moments() -> list[Moment]:
    """Two runs: an untuned one that fills up, and a tuned one of which the engine is silent for a moment."""
    full = [
        Moment(at=2.0 * n, run="chat, Disabled", running=n, waiting=0, seqs=128, tokens=2048, attained={"first": None})
        for n in range(10)
    ]
    tuned = [
        Moment(at=20.0 + 2 * n, run="chat, Auto", running=8, waiting=2, seqs=8, tokens=128, attained={"first": 90.0})
        for n in range(9)
    ]
    return [*full, *tuned, Moment(at=38.0, run="chat, Auto", attained={"first": 80.0})]


def test_a_terminal_gets_a_line_for_each_figure_and_the_runs_below() -> None:
    lines = list(as_text(moments(), 80))
    assert max(map(len, lines)) <= 80
    assert [line[:12].strip() for line in lines[:5]] == ["running", "waiting", "seqs limit", "token limit", "first"]
    assert lines[3][12:].startswith("█" * 21), "the ceiling of the first run"
    assert lines[2].endswith("8 to 128")
    assert lines[4].endswith("least 80 %")
    assert lines[5:] == ["  1 from 0 s: chat, Disabled", "  2 from 20 s: chat, Auto"]


def test_the_drawing_is_a_png_with_something_in_it(tmp_path: Path) -> None:
    save(moments(), {"first": 95.0}, tmp_path / "demo.png")
    pixels = imread(tmp_path / "demo.png")
    assert pixels.shape[:2] == (756, 1080)
    assert pixels.std() > 0.01, "it is blank"


def test_without_a_run_nothing_is_drawn_and_nothing_fails(tmp_path: Path) -> None:
    assert [line[-2:] for line in as_text([], 80)] == [" -"] * 4
    save([], {"first": 95.0}, tmp_path / "demo.png")


def test_moments_of_all_runs_are_side_by_side_two_seconds_apart() -> None:
    record = Record()
    for run, elapsed in (("a", 0.0), ("a", 1.0), ("a", 2.0), ("b", 0.0), ("b", 1.0), ("b", 2.0)):
        if (at := record.due(run, elapsed)) is not None:
            record.moments.append(Moment(at=at, run=run))
    assert [(one.run, one.at) for one in record.moments] == [("a", 0.0), ("a", 2.0), ("b", 4.0), ("b", 6.0)]
