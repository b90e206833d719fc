"""What an exercise keeps, and what it finds: results, also on a full disk, the generator's log, the tokenizer."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flyball_lab.benchmark.errors import FileError, OptionError
from flyball_lab.benchmark.files import RESULTS, ResultsFile, read
from flyball_lab.benchmark.log import Log
from flyball_lab.benchmark.report import Report, report
from flyball_lab.benchmark.tokenizer import of_model
from support.exercises import a_sweep

SWEEP = {1: (100.0, 1.0), 4: (380.0, 1.05), 16: (1200.0, 1.3)}


def a_report_of_it() -> Report:
    return report(a_sweep(SWEEP), generated_at="2026-11-21T12:00:00+00:00")


@contextmanager
def a_disk_with_room_for(size: int) -> Iterator[None]:
    """Files become no larger: a write is taken in part, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestTheFile:
    def test_a_second_run_finds_what_the_first_kept(self, tmp_path: Path) -> None:
        kept = a_sweep(SWEEP)
        for one in kept:
            ResultsFile(tmp_path).append(one)
        assert ResultsFile(tmp_path).load(fresh=False) == kept

    def test_a_line_that_was_cut_off_is_measured_again_and_spoils_no_other(self, tmp_path: Path) -> None:
        first, second = a_sweep({1: (100.0, 1.0), 2: (190.0, 1.0)})
        results = ResultsFile(tmp_path)
        results.append(first)
        with (tmp_path / RESULTS).open("a") as file:
            file.write(second.model_dump_json()[:100])
        assert results.load(fresh=False) == [first]
        results.append(second)
        assert results.load(fresh=False) == [first, second]

    def test_a_fresh_run_puts_the_old_one_aside(self, tmp_path: Path) -> None:
        (one,) = a_sweep({1: (100.0, 1.0)})
        ResultsFile(tmp_path).append(one)
        assert ResultsFile(tmp_path).load(fresh=True) == []
        assert read(tmp_path / f"{RESULTS}.old") == [one]

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("{}\n", r"line 1: .*point"),
            ("no json\n", "line 1"),
            ('{"version": 2}\n', "line 1: version: .*accepted: points as flyball-bench writes them, version 1"),
        ],
    )
    def test_what_is_no_result_is_refused_by_line_and_field(self, tmp_path: Path, content: str, problem: str) -> None:
        (tmp_path / RESULTS).write_text(content)
        with pytest.raises(FileError, match=problem):
            read(tmp_path / RESULTS)

    def test_a_file_that_is_not_there_is_named_once_with_what_is_accepted(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"accepted: a results\.jsonl, or its folder") as told:
            read(tmp_path / "nowhere")
        assert str(told.value).count("nowhere") == 1

    def test_what_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / RESULTS).write_bytes(b"\xff\xfe\n")
        with pytest.raises(FileError, match=r"is no text; accepted: a results\.jsonl"):
            read(tmp_path / RESULTS)

    def test_a_report_is_told_from_results(self, tmp_path: Path) -> None:
        results = ResultsFile(tmp_path)
        for path in (results.write(a_report_of_it()), results.write_page("<!DOCTYPE html>\n")):
            with pytest.raises(FileError, match=r"is a report; accepted: the results\.jsonl that it was made of"):
                read(path)

    def test_a_point_that_the_disk_has_no_room_for_is_in_the_report_all_the_same(self, tmp_path: Path) -> None:
        first, second = a_sweep({1: (100.0, 1.0), 2: (190.0, 1.0)})
        results = ResultsFile(tmp_path)
        results.append(first)
        with a_disk_with_room_for((tmp_path / RESULTS).stat().st_size + 100):
            with pytest.raises(FileError, match=r"--out: .*results\.jsonl: File too large; accepted: a folder"):
                results.append(second)
            with pytest.raises(FileError, match=r"--out: .*report\.json: File too large"):
                results.write(a_report_of_it())
        assert results.load(fresh=False) == [first, second]
        assert read(tmp_path / RESULTS) == [first], "the half line counts as not measured"
        assert [path.name for path in tmp_path.iterdir()] == [RESULTS], "and no half report is left"


class TestTheTokenizer:
    @pytest.mark.parametrize(
        ("root", "model", "found"),
        [
            ("/models/here", "chat", "/models/here"),
            ("Qwen/Qwen3-8B", "chat", "Qwen/Qwen3-8B"),
            ("/models/elsewhere", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
            (None, "/models/here", "/models/here"),
        ],
    )
    def test_it_is_that_of_the_model_where_it_is_to_be_had(self, root: str | None, model: str, found: str) -> None:
        assert of_model(root, model, is_folder="/models/here".__eq__) == found

    @pytest.mark.parametrize(
        ("root", "says"),
        [
            (None, "--tokenizer: the endpoint does not say what its model was loaded from; accepted: a folder, or a"),
            ("/models/elsewhere", "was loaded from '/models/elsewhere', which is no folder here; accepted: a folder"),
        ],
    )
    def test_it_is_asked_for_where_nobody_says_one(self, root: str | None, says: str) -> None:
        with pytest.raises(OptionError, match=says):
            of_model(root, "chat", is_folder="/models/here".__eq__)


class TestWhatTheGeneratorSays:
    def said(self, path: Path, *lines: str) -> str:
        """The last of it, when a process that wrote these has ended."""
        reader, writer = os.pipe()
        log = Log(path)
        log.follow(os.fdopen(reader, "rb", buffering=0))
        with os.fdopen(writer, "w") as process:
            process.writelines(f"{line}\n" for line in lines)
        try:
            return log.last()
        finally:
            log.close()

    def test_the_last_line_that_says_something_is_told_and_all_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "generator.log"
        assert self.said(path, "one", "two", "", " ") == f"two (all of it in {path})"
        assert path.read_text() == "one\ntwo\n\n \n"

    def test_on_a_full_disk_it_is_told_all_the_same_and_the_writer_hears_of_no_failure(self, tmp_path: Path) -> None:
        path = tmp_path / "generator.log"
        path.symlink_to("/dev/full")
        assert self.said(path, "one", "two") == f"two ({path}: No space left on device)"

    def test_a_log_that_cannot_be_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match=r"nowhere/generator\.log: No such file or directory; accepted: a folder"):
            Log(tmp_path / "nowhere/generator.log")
