"""Runs of `hack/bench law`: kept as they end, taken up again, ended by Ctrl-C; intervals, and the page of it all."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest

from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.intervals import half_width, quotients
from flyball_lab.benches.law.command import refusal, write_report
from flyball_lab.benches.law.comparison import compare
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benches.law.page import page
from flyball_lab.benches.law.runs import Job, finish
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.benches.main import run as command
from flyball_lab.benches.options import SEEDS, Options
from flyball_lab.benches.rows import FILE, KeptError

OUTCOME = RunFigures(goodput=3.0, kept=0.9, changes=2, good_each=(3, 4))


@dataclass(frozen=True)
class Noted:
    """A run that leaves a trace in a folder."""

    key: str
    folder: Path
    law: bool = False

    def play(self) -> RunFigures:
        (self.folder / self.key).touch()
        return OUTCOME


@dataclass(frozen=True)
class Interrupting:
    """A run during which somebody presses Ctrl-C, once another has ended."""

    key: str
    other: Path
    law: bool = False

    def play(self) -> RunFigures:
        while not self.other.exists():
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGINT)
        return OUTCOME


class TestKeptResults:
    def test_a_run_that_ended_is_not_made_again(self, tmp_path: Path) -> None:
        jobs = [Noted(name, tmp_path) for name in ("a", "b")]
        out = tmp_path / "out"
        assert finish(jobs[:1], Kept(out)) == ({"a": OUTCOME}, True)
        (tmp_path / "a").unlink()
        assert finish(jobs, Kept(out)) == ({"a": OUTCOME, "b": OUTCOME}, True)
        assert not (tmp_path / "a").exists()
        assert (tmp_path / "b").exists()

    def test_a_line_that_was_cut_off_is_no_result_and_harms_no_other(self, tmp_path: Path) -> None:
        Kept(tmp_path).add("a", OUTCOME, law=False)
        path = tmp_path / FILE
        path.write_text(path.read_text() + path.read_text()[:20])
        Kept(tmp_path).add("b", OUTCOME, law=False)
        kept = Kept(tmp_path)
        assert (kept.get("a"), kept.get("b"), kept.get("c")) == (OUTCOME, OUTCOME, None)

    def test_results_of_other_sources_are_not_taken_up(self, tmp_path: Path) -> None:
        Kept(tmp_path).add("a", OUTCOME, law=False)
        path = tmp_path / FILE
        path.write_text(path.read_text().replace('"sources": "', '"sources": "0'))
        assert Kept(tmp_path).get("a") is None

    def test_what_the_law_does_not_drive_does_not_depend_on_it(self, tmp_path: Path) -> None:
        for law in (True, False):
            Kept(tmp_path).add(f"law {law}", OUTCOME, law=law)
        said = [json.loads(line)["sources"] for line in (tmp_path / FILE).read_text().splitlines() if line]
        assert len(set(said)) == 2

    def test_without_a_folder_nothing_is_kept(self) -> None:
        kept = Kept(None)
        kept.add("a", OUTCOME, law=False)
        assert kept.get("a") is None

    def test_a_folder_that_cannot_be_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(KeptError, match=r"cannot keep results in .*file"):
            Kept(tmp_path / "file")


class TestChosenScenarios:
    def test_only_those_are_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[str] = []

        def all_of_them(jobs: list[object], _: Kept) -> tuple[dict[str, RunFigures], bool]:
            ran.extend(job.case.name for job in jobs)  # type: ignore[attr-defined]  # as they are
            return {job.key: OUTCOME for job in jobs}, True  # type: ignore[attr-defined]  # as they are

        monkeypatch.setattr("flyball_lab.benches.law.comparison.finish", all_of_them)
        compare(Options(quick=True, scenarios=("h100 chat",)), gate=False)
        assert set(ran) == {"h100 chat"}

    def test_names_that_are_none_and_other_parts_are_refused(self) -> None:
        chosen = Options(scenarios=("h100 chat", "h100 chatt"))
        assert "no scenario 'h100 chatt': there are 'h100 chat'," in (refusal(chosen, ["open"]) or "")
        assert "--part" in (refusal(replace(chosen, scenarios=("h100 chat",)), ["open", "robust"]) or "")
        assert refusal(replace(chosen, scenarios=("h100 chat",)), ["open", "gated"]) is None


class TestCtrlC:
    # Where the interrupt meets a destructor, Python drops it with this warning; then it is asked for.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_what_was_measured_is_kept(self, tmp_path: Path) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            jobs: list[Job] = [Noted("a", tmp_path), Interrupting("z", tmp_path / "a")]
            jobs += [Noted(f"b{number}", tmp_path) for number in range(99)]
            found, whole = finish(jobs, Kept(tmp_path / "out"))
        finally:
            signal.signal(signal.SIGINT, before)
        assert not whole
        assert found["a"] == OUTCOME
        assert Kept(tmp_path / "out").get("a") == OUTCOME

    def test_only_scenarios_that_were_finished_have_figures(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = SCENARIOS[9:11]

        def half(jobs: list[object], _: Kept) -> tuple[dict[str, RunFigures], bool]:
            return {job.key: OUTCOME for job in jobs if job.case is first}, False  # type: ignore[attr-defined]  # as they are

        monkeypatch.setattr("flyball_lab.benches.law.comparison.finish", half)
        with pytest.raises(InterruptedPart) as stopped:
            compare(Options(quick=True), gate=False, cases=[first, second])
        assert set(stopped.value.figures) == {first.name}

    def test_the_command_ends_with_the_figures_there_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def measure(_: Options) -> None:
            raise InterruptedPart({"h100 chat": {"AIMD over the oracle": 0.5}})

        monkeypatch.setattr("flyball_lab.benches.law.open.measure", measure)
        monkeypatch.setattr("sys.argv", ["bench", "law", "--part", "open", "gated", "--out", str(tmp_path)])
        before = signal.getsignal(signal.SIGTERM)
        assert command() == 130
        signal.signal(signal.SIGTERM, before)
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert said["interrupted"] is True
        assert said["figures"] == {"open": {"h100 chat": {"AIMD over the oracle": 0.5}}}
        assert "Interrupted" in (tmp_path / "law.html").read_text()


class TestIntervals:
    def test_the_half_width_is_students(self) -> None:
        # t of 2 degrees of freedom at 97.5 % is 4.303.
        assert half_width([1.0, 1.1, 1.2]) == pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3)
        assert half_width([1.0, 1.0]) == 0.0
        assert half_width([1.0]) is None

    def test_seeds_are_pairs(self) -> None:
        assert quotients([1.0, 4.0], [2.0, 4.0]) == [0.5, 1.0]
        assert quotients([0.0, 1.0], [0.0, 0.0]) == [1.0, math.inf]

    def test_several_seeds_have_intervals_and_one_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "flyball_lab.benches.law.comparison.finish",
            lambda jobs, _: ({job.key: self.came(job) for job in jobs}, True),
        )
        several = compare(Options(), gate=False, cases=SCENARIOS[:2])
        assert several["geometric mean"]["AIMD over the oracle ±"] == pytest.approx(0.0, abs=1e-9)
        assert several[SCENARIOS[0].name]["AIMD over the oracle"] == pytest.approx(0.5)
        assert len(SEEDS) >= 3
        one = compare(Options(quick=True), gate=False, cases=SCENARIOS[:2])
        assert not any(key.endswith("±") for values in one.values() for key in values)

    @staticmethod
    def came(job: object) -> RunFigures:
        baseline, seed = job.contender.baseline, job.seed  # type: ignore[attr-defined]  # as they are
        return RunFigures(goodput=seed * (0.5 if baseline else 1.0), kept=1.0, changes=0)


class Opened(HTMLParser):
    """What a page opens and never closes, and what it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [name for name, to in attrs if name == "src" or (name == "href" and not f"{to}".startswith("#"))]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


class TestThePage:
    FIGURES: ClassVar = {
        "open": {
            "h100 chat": {"oracle 8/256, goodput": 9.0, "the law over the oracle": 0.98, "AIMD over the oracle": 0.5},
            "a <b> & c": {
                "oracle 9/256, goodput": 2.0,
                "the law over the oracle": 1.02,
                "the law over the oracle ±": 0.03,
                "AIMD over the oracle": 0.0,
            },
        },
        "robust": {},
    }

    def test_it_is_whole_has_every_figure_with_its_interval_and_loads_nothing(self) -> None:
        text = page(self.FIGURES, interrupted=True)
        opened = Opened()
        opened.feed(text)
        assert opened.open == []
        assert opened.loads == []
        assert text.count("<svg") == 2
        for said in (
            "0.98",
            "1.02 ± 0.03",
            "a <b> & c",
            "oracle 9/256, goodput 2",
            "goodput over the oracle",
            "Interrupted",
            "Nothing was finished",
        ):
            assert said in opened.text

    def test_what_is_of_one_seed_has_a_table_of_its_own(self) -> None:
        seeds = {"seed 1: the law, requests/s": 8.75, "seed 2: the law, requests/s": 9.25}
        opened = Opened()
        opened.feed(page({"open": {"h100 chat": {"the law over the oracle": 0.98} | seeds}}))
        assert opened.text.index("8.75") > opened.text.index("Seed by seed") > opened.text.index("0.98")

    def test_what_belongs_together_is_one_drawing(self) -> None:
        trouble = {"calm: nothing": {"the law, goodput": 9.0}}
        trouble |= {f"calm: {name}": {"the law over the undisturbed": 0.9} for name in ("noise", "loss")}
        assert page({"robust": trouble}).count("<svg") == 1

    def test_it_is_written_beside_the_figures(self, tmp_path: Path) -> None:
        path = write_report(tmp_path, {"bench": "law", "figures": self.FIGURES})
        assert path.read_text().startswith("<!DOCTYPE html>")
        assert json.loads((tmp_path / "law.json").read_text())["figures"] == self.FIGURES
