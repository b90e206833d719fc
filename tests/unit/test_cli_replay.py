"""`flyball replay`: what it makes of a recorded past, and what it says of what is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.harness.terminal import hear_interrupts
from flyball_operator.cli.entry import main
from flyball_operator.cli.replayed import ObservedWindows
from flyball_operator.cli.time_range import TimeRange, rfc3339, time_range
from flyball_operator.prometheus.recorded import Header, RecordingSource
from flyball_operator.prometheus.vector import Vector, vector_of
from flyball_operator.tuning.observe.signals import Missing, ObjectiveCounts, Signals, StepWindow, Unobserved
from support.past import BEGAN, STEP, manifest, recording

Replayed = Callable[..., str]


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three minutes of chat with long prompts, in the middle of which nothing was scraped for half a minute."""
    return recording(tmp_path_factory.mktemp("past") / "past.jsonl", blind=(90, 120))


@pytest.fixture
def replayed(capsys: pytest.CaptureFixture[str]) -> Replayed:
    """Runs the command; what it printed, or where it fails what it said."""

    def run(*arguments: object, code: int = 0) -> str:
        assert main(["replay", *map(str, arguments)]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run


def edited(folder: Path, **spec: Any) -> Path:
    path = folder / "edited.yaml"
    path.write_text(yaml.safe_dump(manifest(**spec)))
    return path


def test_it_shows_each_change_and_what_was_seen_until_the_next(past: Path, replayed: Replayed) -> None:
    said = replayed("--recorded", past)
    for expected in (
        "team/chat: 2026-09-21T14:13:25Z to 2026-09-21T14:16:20Z",
        "a tick every 5s, mode Auto as a shadow, starting cold",
        "tokens in a step: 2048 to",
        "why: tpot binds at",
        "expected: ttft",
        "came: token",
        "max_num_active_seqs 128, max_num_scheduled_tokens 2048",
        "36 ticks, ",
        "not observed: 17 % of the ticks: NotScraped 6",
        "the limits that the law held at",
        "T = ",
        "limits that it would hold at the end",
        "what binds: tpot",
    ):
        assert expected in said
    assert max(map(len, said.splitlines())) <= 130


def test_the_json_says_the_same_with_each_tick(past: Path, replayed: Replayed) -> None:
    said, text = json.loads(replayed("--recorded", past, "-o", "json")), replayed("--recorded", past)
    summary = said["summary"]
    assert said["start"] == "cold"
    assert [tick["time"] for tick in said["ticks"]][:2] == ["2026-09-21T14:13:25Z", "2026-09-21T14:13:30Z"]
    assert sum(summary["holds"].values()) == summary["ticks"] == len(said["ticks"])
    assert summary["not_observed_ratio"] == pytest.approx(6 / 36, abs=1e-4)
    assert summary["not_observed"] == {"NotScraped": 6}
    assert said["decisions"]
    for decision in said["decisions"]:
        assert decision["time"] in text
        assert decision["ran"]["max_num_scheduled_tokens"] == [2048, 2048]
    assert said["decisions"][-1]["after"]["max_num_scheduled_tokens"] == summary["setpoint"]["max_num_scheduled_tokens"]
    assert summary["model"]["trusted"]


def test_the_same_recording_gives_the_same_bytes(past: Path, replayed: Replayed) -> None:
    assert replayed("--recorded", past, "-o", "json") == replayed("--recorded", past, "-o", "json")


def test_other_bounds_and_objectives_show_what_they_would_have_done(
    past: Path, replayed: Replayed, tmp_path: Path
) -> None:
    other = edited(
        tmp_path,
        tuning={"bounds": {"maxNumScheduledTokens": {"min": 700}}},
        objectives=[{"name": "ttft", "metric": "TimeToFirstToken", "threshold": "900ms"}],
    )
    said = json.loads(replayed("--recorded", past, "--file", other, "-o", "json"))
    assert said["summary"]["objectives_not_counted"] == ["ttft"]
    limits = [tick["setpoint"]["max_num_scheduled_tokens"] for tick in said["ticks"]]
    assert min(limits) >= 700
    text = replayed("--recorded", past, "--file", other)
    assert "ttft (TimeToFirstToken within 900ms) was never counted" in text


def test_it_goes_on_from_status_where_that_is_asked_for(past: Path, replayed: Replayed, tmp_path: Path) -> None:
    cold = json.loads(replayed("--recorded", past, "-o", "json"))
    known = manifest() | {"status": {"tuning": {"setpoint": {"maxNumActiveSeqs": 40, "maxNumScheduledTokens": 1900}}}}
    path = tmp_path / "known.yaml"
    path.write_text(yaml.safe_dump(known))
    warm = json.loads(replayed("--recorded", past, "--file", path, "--resume", "-o", "json"))
    assert warm["start"] == "resumed"
    assert warm["decisions"][0]["before"] == {"max_num_active_seqs": 40, "max_num_scheduled_tokens": 1900}
    assert cold["decisions"][0]["before"] == {"max_num_active_seqs": 128, "max_num_scheduled_tokens": 2048}
    assert json.loads(replayed("--recorded", past, "--file", path, "-o", "json"))["decisions"] == cold["decisions"]


def test_a_recording_of_nothing_is_no_past(tmp_path: Path, replayed: Replayed) -> None:
    head, *times = recording(tmp_path / "past.jsonl", seconds=30).read_text().splitlines()
    empty = [said | {"answers": {query: [] for query in said["answers"]}} for said in map(json.loads, times)]
    path = tmp_path / "empty.jsonl"
    path.write_text("\n".join([head, *map(json.dumps, empty)]) + "\n")
    said = replayed("--recorded", path, code=1)
    assert "no samples of team/chat with the UID uid-1 in this span" in said
    assert said.endswith("accepted: a time at which Prometheus scraped its control ports, and that Prometheus\n")


class Answering:
    """A Prometheus with so many samples for each query (implements `Source`)."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def query(self, text: str, at: float | None = None) -> Vector:
        return vector_of([{"metric": {"__name__": text}, "value": [at, "1"]}] * self.samples)

    def close(self) -> None:
        """It holds nothing."""


@pytest.mark.parametrize("samples", [0, 1])
def test_only_a_recording_with_samples_is_kept(tmp_path: Path, samples: int) -> None:
    path = tmp_path / "past.jsonl"
    kept = RecordingSource(Answering(samples), path.open("x"), Header(manifest(), STEP))
    kept.query("up", BEGAN)
    kept.kept(BEGAN)
    kept.close()
    assert path.exists() == bool(samples)


def test_a_recording_that_finds_no_room_is_told_at_once_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "past.jsonl"
    file = path.open("x")
    with Path("/dev/full").open("w") as full:
        os.dup2(full.fileno(), file.fileno())
    with pytest.raises(OSError, match="No space left"):
        RecordingSource(Answering(1), file, Header(manifest(), STEP))
    assert not path.exists()


def test_what_was_kept_before_the_disk_was_full_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "past.jsonl"
    file = path.open("x")
    kept = RecordingSource(Answering(1), file, Header(manifest(), STEP))
    kept.query("up", BEGAN)
    kept.kept(BEGAN)
    with Path("/dev/full").open("w") as full:
        os.dup2(full.fileno(), file.fileno())
    kept.query("up", BEGAN + STEP)
    with pytest.raises(OSError, match="No space left"):
        kept.kept(BEGAN + STEP)
    kept.close()
    assert [json.loads(line).get("at") for line in path.read_text().splitlines()] == [None, BEGAN]


def test_a_recording_that_was_cut_off_gives_what_it_has(
    past: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = past.read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(text[: text.rindex("\n", 0, len(text) - 1) - 100])
    assert main(["replay", "--recorded", str(cut)]) == 2
    said = capsys.readouterr()
    assert "34 ticks" in said.out
    assert "line 36 is no JSON: the file was cut off" in said.err
    assert "after 34 ticks" in said.err


def _first_line(**changes: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        first, rest = text.split("\n", 1)
        return json.dumps(json.loads(first) | changes) + "\n" + rest

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda _: "", "no recording; accepted: a file that --record wrote"),
        (lambda _: "kind: InferenceService\n", "line 1 is no JSON"),
        (lambda _: "[1]\n", "line 1 is no JSON object"),
        (lambda _: '{"epoch": 1}\n', "no recording"),
        (_first_line(flyball_recorded=2), "a recording of version 2, accepted: 1"),
        (_first_line(step="5s"), "line 1 names no service or no step"),
        (_first_line(service={}), "this is no InferenceService"),
        (lambda text: text.replace('"answers":{"', '"answers":{"0'), "asks what was not recorded: record it anew"),
        (lambda text: text.replace('"at":', '"when":'), "line 2 has no time with answers"),
        (lambda text: text + text.split("\n")[1] + "\n", "line 38 is not later than the one before"),
        (lambda text: text.replace('"field"', "3, 4"), "line 2 is no JSON"),
    ],
)
def test_what_is_no_recording_is_refused_in_words(
    past: Path, tmp_path: Path, replayed: Replayed, change: Callable[[str], str], expected: str
) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(change(past.read_text()))
    assert expected in replayed("--recorded", wrong, code=2)


def test_a_recording_of_another_service_is_refused(past: Path, tmp_path: Path, replayed: Replayed) -> None:
    said = replayed("--recorded", past, "-f", edited(tmp_path, uid="uid-2"), code=2)
    assert "is of team/chat with the UID uid-1, and the manifest of team/chat with the UID uid-2" in said


def test_a_prometheus_that_is_not_there_is_named(tmp_path: Path, replayed: Replayed) -> None:
    said = replayed("-f", edited(tmp_path), "--prometheus", "http://127.0.0.1:1", code=1)
    assert "http://127.0.0.1:1 cannot be reached, asked for " in said


def test_a_recording_without_answers_is_not_left_behind(tmp_path: Path, replayed: Replayed) -> None:
    arguments = ("-f", edited(tmp_path), "--prometheus", "http://127.0.0.1:1", "--record", tmp_path / "none.jsonl")
    replayed(*arguments, code=1)
    assert not (tmp_path / "none.jsonl").exists()


def test_the_operators_own_setting_names_the_prometheus(
    tmp_path: Path, replayed: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYBALL_PROMETHEUS_URL", "http://127.0.0.1:2")
    assert "http://127.0.0.1:2 cannot be reached" in replayed("-f", edited(tmp_path), code=1)


def test_a_setting_that_is_no_url_is_named_as_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLYBALL_PROMETHEUS_URL", "prometheus")
    with pytest.raises(SystemExit):
        main(["replay", "-f", str(edited(tmp_path))])
    assert "FLYBALL_PROMETHEUS_URL: is no URL such as http" in capsys.readouterr().err


def test_a_recording_never_takes_another_files_place(past: Path, tmp_path: Path, replayed: Replayed) -> None:
    before = past.read_text()
    arguments = ("-f", edited(tmp_path), "--prometheus", "http://127.0.0.1:1", "--record", past)
    assert "File exists; accepted: a new file" in replayed(*arguments, code=1)
    assert past.read_text() == before


def test_ctrl_c_prints_what_there_is(past: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    replay = subprocess.Popen(
        [sys.executable, "-m", "flyball_operator.cli", "replay", "--recorded", pipe],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=hear_interrupts,  # noqa: PLW1509 – no thread of ours runs yet
    )
    with pipe.open("w") as writer:
        # Of two hundred kilobytes a pipe holds some sixty: once all are written, the others were read.
        writer.write(past.read_text())
        writer.flush()
        replay.send_signal(signal.SIGINT)
        said, complained = replay.communicate(timeout=60)
    assert replay.returncode == 130
    assert "not observed: " in said.partition("summary")[2]
    assert complained.startswith("flyball replay: interrupted after ")


def test_times_are_before_now_or_as_written() -> None:
    now = BEGAN + 0.7
    assert list(time_range("15s", None, None, now).times()) == [BEGAN - 15, BEGAN - 10, BEGAN - 5, BEGAN]
    assert time_range(None, "2h", None, now) == time_range("3h", "2h", "5s", now)
    written = time_range("2026-09-21T16:12:20.500+02:00", "2026-09-21T14:13:20Z", "500ms", now)
    assert written == TimeRange(round(1000 * (BEGAN - 59.5)), round(1000 * BEGAN), 500)
    assert len(written) == 120
    assert rfc3339(BEGAN - 59.5) == "2026-09-21T14:12:20.500Z"
    just = time_range(None, "2026-09-21T14:13:20.500Z", None, now)
    assert just.end == round(1000 * (BEGAN + 0.5)), "it is past, though not for a second"


def test_windows_are_added_up_where_they_do_not_overlap() -> None:
    def signals(at: float) -> Signals:
        return Signals(
            at=at,
            age_seconds=0,
            window_seconds=15,
            cores=1,
            steps=StepWindow(start=at - 15, end=at, cells={}),
            load=Unobserved(Missing.TOO_FEW_SAMPLES, "of no matter"),
            outcomes={"a": ObjectiveCounts(2, 1)},
        )

    seen = ObservedWindows(until=BEGAN)
    for at in range(0, 60, STEP):
        seen.add(signals(BEGAN + at))
    assert seen.outcomes == {"a": ObjectiveCounts(6, 3)}, "at 15, 30 and 45 s"
