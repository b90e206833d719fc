"""`hack/bench law --trace`: recorded traffic as a scenario."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from flyball_lab.benches.law.command import refusal
from flyball_lab.benches.law.contenders import Contender, play
from flyball_lab.benches.law.trace import measure
from flyball_lab.benches.law.traffic import capacity, recorded, suited
from flyball_lab.benches.options import Options
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.workload import ArrivalPhase, TraceError, workload


def a_trace(folder: Path, *, seconds: float = 60.0, rate: float = 2.0, shape: str = "conversation") -> Path:
    """Written as Azure's are."""
    start = datetime(2023, 11, 16, 18, 15, 46)  # noqa: DTZ001 – theirs have no zone either
    rows = workload([ArrivalPhase(seconds=seconds, rate=rate, shape=SHAPES[shape])], Random(1))
    lines = [
        f"{start + timedelta(seconds=one.arrival):%Y-%m-%d %H:%M:%S.%f}0,{one.prompt},{one.output}" for one in rows
    ]
    path = folder / "trace.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def test_time_is_scaled_and_lengths_are_not(tmp_path: Path) -> None:
    path = a_trace(tmp_path)
    once, twice = recorded(path, "h100-8b", rate=1.0), recorded(path, "h100-8b", rate=2.0)
    assert once.seconds == pytest.approx(2 * twice.seconds)
    assert [row[1:] for row in once.rows] == [row[1:] for row in twice.rows]
    assert once.rows[0][0] == 0.0


def test_without_a_rate_a_preset_is_used_to_the_same_share(tmp_path: Path) -> None:
    path = a_trace(tmp_path)
    for preset in ("h100-8b", "a100-8b", "b200-8b"):
        case = recorded(path, preset)
        rate = len(case.rows) / case.seconds
        assert rate == pytest.approx(0.8 * capacity(case.requests(1), preset), rel=0.02)
        assert suited(case.requests(1), preset) == pytest.approx(1.0, rel=0.02)


def test_what_a_preset_carries_is_about_what_the_simulated_engine_carries(tmp_path: Path) -> None:
    wide = Contender(name="vLLM's", limits=(256, 2048))
    case = recorded(a_trace(tmp_path), "h100-8b")
    assert play(case, wide, 1, gate=True).kept > 0.9
    over = replace(case, rows=tuple((at / 3, prompt, output) for at, prompt, output in case.rows))
    assert play(over, wide, 1, gate=False).kept < 0.7


def test_only_the_first_minutes_are_played_if_so_asked(tmp_path: Path) -> None:
    case = recorded(a_trace(tmp_path, seconds=120.0), "h100-8b", rate=1.0, minutes=0.5)
    assert 25 < case.seconds < 35
    assert "0.5 min" in case.name


def test_other_rows_under_the_same_name_are_another_load(tmp_path: Path) -> None:
    first = recorded(a_trace(tmp_path), "h100-8b", rate=1.0)
    other = recorded(a_trace(tmp_path, shape="code"), "h100-8b", rate=1.0)
    assert first.name == other.name
    assert first.identity != other.identity


def test_what_is_longer_than_the_models_context_is_left_out(tmp_path: Path) -> None:
    path = a_trace(tmp_path)
    path.write_text(path.read_text() + "2023-11-16 18:17:46.0,32000,1000\n")
    assert max(prompt for _, prompt, _ in recorded(path, "h100-8b").rows) < 32_000


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER, "has no requests"),
        (HEADER + "2023-11-16 18:15:46,374,44\n", "has too few requests: two or more at different times"),
        ("time,in,out\n1,2,3\n", "no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        (HEADER + "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:45,374,44\n", "line 3: TIMESTAMP is before"),
    ],
)
def test_a_trace_that_cannot_be_played_is_refused_before_any_run(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=why):
        recorded(path, "h100-8b")
    assert why in (refusal(Options(trace=path), ["trace"]) or "")


def test_a_stretch_without_requests_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"too few requests in its first 0\.001 minutes"):
        recorded(a_trace(tmp_path), "h100-8b", minutes=0.001)


def test_its_figures_are_those_of_the_scenarios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(quick=True, trace=a_trace(tmp_path, seconds=20.0))
    figures = measure(options)
    assert "80 % of what it carries" in capsys.readouterr().out
    assert [title.rsplit(", ", 1)[1] for title in figures] == ["open", "gated"]
    for values in figures.values():
        assert {"the law, every 5 s over the oracle", "AIMD over the oracle", "256/512 over the oracle"} < set(values)
