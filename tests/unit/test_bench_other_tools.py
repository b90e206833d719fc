"""Reports of points that guidellm and aiperf measured: what is read of their files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.benchmark import files
from flyball_lab.benchmark.errors import FileError
from flyball_lab.benchmark.files import ResultsFile, read, read_any
from flyball_lab.benchmark.main import main
from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.page import page
from flyball_lab.benchmark.report import Report, report
from flyball_lab.repository import ROOT
from support.exercises import a_sweep

#: Made by hand after the formats that `other_tools` names.
GUIDELLM = ROOT / "tests/support/other_tools/benchmarks.json"
AIPERF = ROOT / "tests/support/other_tools/profile_export_aiperf.json"


def changed(path: Path, folder: Path, changes: Mapping[str, Any]) -> Path:
    """A copy with other values at these places; None removes one."""
    document = json.loads(path.read_text())
    for place, value in changes.items():
        *way, last = place.split(".")
        where = document
        for step in way:
            where = where[int(step)] if step.isdigit() else where[step]
        if value is None:
            del where[last]
        else:
            where[last] = value
    copy = folder / path.name
    copy.write_text(json.dumps(document))
    return copy


class TestGuidellm:
    def test_each_benchmark_is_a_point_of_its_loop(self) -> None:
        points = read_any(GUIDELLM)
        assert [(one.point.concurrency, one.point.rate) for one in points] == [
            (1, None),
            (64, None),  # a throughput run without a limit: what it came to
            (None, 2.0),
            (None, 6.0),
        ]
        assert points[0].point.workload.describe() == (
            "guidellm: [{kind:synthetic_text,prompt_tokens:256,output_tokens:128}]"
        )
        assert points[2].point.workload.describe().endswith("; open loop, constant rate")

    def test_the_figures_are_of_requests_that_ended_well_over_the_whole_time(self) -> None:
        one = read_any(GUIDELLM)[1]
        assert (one.completed, one.failed, one.truncated, one.utilisation) == (400, 3, None, None)
        assert (one.requests_per_second, one.output_tokens_per_second, one.total_tokens_per_second) == (8, 1024, 3072)
        assert one.ttft.model_dump() == pytest.approx({"p50": 0.9, "p99": 2.4})
        assert one.tpot.model_dump() == pytest.approx({"p50": 0.05, "p99": 0.07})
        assert one.e2e.model_dump() == pytest.approx({"p50": 7.5, "p99": 9.0})
        assert one.engine == "measured by guidellm 0.7.3"

    def test_answers_that_were_not_streamed_have_no_first_token(self, tmp_path: Path) -> None:
        place = "benchmarks.0.metrics.time_to_first_token_ms.successful.percentiles"
        one = read_any(changed(GUIDELLM, tmp_path, {place: {"p50": 0.0, "p99": 0.0}}))[0]
        assert (one.ttft.p50, one.ttft.p99) == (None, None)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"metadata.version": 1}, r"metadata\.version: Input should be 2"),
            ({"metadata": None}, "metadata: Field required"),
            ({"benchmarks.1.duration": None}, r"benchmarks\.1\.duration: Field required"),
            ({"benchmarks.1.duration": 0}, r"benchmarks\.1\.duration: Input should be greater than 0"),
            ({"benchmarks.0.config.strategy.type_": "trace"}, r"strategy\.type_: Input should be 'synchronous'"),
            ({"benchmarks.2.config.strategy.rate": None}, "rate is missing, which 'constant' has"),
            ({"benchmarks.0.metrics.request_totals.successful": 0}, "request_totals has no request that ended"),
            ({"benchmarks.0.metrics.request_latency.successful": None}, r"request_latency\.successful: Field required"),
        ],
    )
    def test_a_field_that_is_missing_or_wrong_is_named(
        self, tmp_path: Path, changes: Mapping[str, Any], says: str
    ) -> None:
        with pytest.raises(FileError, match=says + ".*; accepted: guidellm's benchmarks.json, report version 2"):
            read_any(changed(GUIDELLM, tmp_path, changes))


class TestAiperf:
    def test_the_file_is_one_point(self) -> None:
        (one,) = read_any(AIPERF)
        assert (one.point.concurrency, one.point.rate, one.point.model) == (8, None, "Qwen/Qwen3-8B")
        assert (one.completed, one.failed, one.errors) == (80, 2, {"503 Service Unavailable shed": 2})
        assert (one.requests_per_second, one.output_tokens_per_second, one.total_tokens_per_second) == (4, 512, 1536)
        assert one.ttft.model_dump() == pytest.approx({"p50": 0.06, "p99": 0.14})
        assert one.tpot.model_dump() == pytest.approx({"p50": 0.0145, "p99": 0.019})
        assert one.engine == "measured by aiperf 0.13.0"

    @pytest.mark.parametrize(
        ("phase", "says"),
        [
            ({"type": "poisson", "rate": 4.0}, "Poisson arrivals"),
            ({"type": "gamma", "rate": 4.0, "smoothness": 0.5}, "burstiness 0.5"),
            ({"type": "constant", "rate": 4.0, "concurrency": 32}, "constant rate, at most 32 at once"),
        ],
    )
    def test_arrivals_are_an_open_loop(self, tmp_path: Path, phase: Mapping[str, Any], says: str) -> None:
        phases = [{"name": "measured", "kind": "profiling", **phase}]
        (one,) = read_any(changed(AIPERF, tmp_path, {"input_config.phases": phases}))
        assert (one.point.concurrency, one.point.rate) == (None, 4.0)
        assert one.point.workload.describe().endswith(f"; open loop, {says}")

    def test_what_nobody_set_is_left_out_of_the_file(self, tmp_path: Path) -> None:
        plain = {
            "input_config.phases": [{"name": "profiling", "type": "concurrency"}],
            "error_request_count": None,
            "error_summary": None,
            "time_to_first_token": None,
        }
        (one,) = read_any(changed(AIPERF, tmp_path, plain))
        assert (one.point.concurrency, one.failed, one.errors, one.ttft.p50) == (1, 0, {}, None)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"schema_version": "2.0"}, "schema_version: String should match pattern"),
            ({"benchmark_duration.unit": "min"}, r"benchmark_duration\.unit: Input should be 'sec'"),
            ({"output_token_throughput": None}, "output_token_throughput: Field required"),
            ({"request_latency.p99": "soon"}, r"request_latency\.p99: Input should be a valid number"),
            ({"input_config.phases": []}, "phases has 0 of kind 'profiling'; accepted: one"),
            ({"input_config.phases.1.type": "user_centric"}, "phases.type is 'user_centric'; accepted: concurrency"),
            ({"input_config.phases.1.type": "poisson"}, "phases.rate is missing, which 'poisson' has"),
        ],
    )
    def test_a_field_that_is_missing_or_wrong_is_named(
        self, tmp_path: Path, changes: Mapping[str, Any], says: str
    ) -> None:
        with pytest.raises(FileError, match=says + ".*aiperf's profile_export_aiperf.json, schema 1"):
            read_any(changed(AIPERF, tmp_path, changes))


class TestTheReport:
    def test_it_has_theirs_and_ours(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        ResultsFile(tmp_path).write(report([], generated_at=""))
        for one in a_sweep({1: (100.0, 1.0), 4: (380.0, 1.05)}):
            ResultsFile(tmp_path).append(one)
        assert main(["report", str(tmp_path), f"fp8={GUIDELLM}", str(AIPERF), f"--out={tmp_path}"]) == 0
        out = capsys.readouterr().out
        for said in (
            "as configured · fp8",
            "as configured · aiperf",
            "uniform: 64 tokens in",
            "open loop, constant rate",
        ):
            assert said in out
        written = Report.model_validate_json((tmp_path / "report.json").read_bytes())
        assert len(written.workloads) == 4
        assert "guidellm 0.7.3" in page(written)

    def test_a_text_from_outside_gives_a_terminal_no_orders_and_the_page_no_markup(self, tmp_path: Path) -> None:
        (one,) = read_any(changed(AIPERF, tmp_path, {"input_config.models.items.0.name": "\x1b[2J<b>" + 500 * "x"}))
        assert one.point.model.startswith("�[2J<b>")
        assert len(one.point.model) == 200
        assert "<b>x" not in page(report([one], generated_at=""))

    def test_long_configurations_that_differ_at_their_end_are_two_workloads(self, tmp_path: Path) -> None:
        def workload(end: str) -> object:
            datasets = [{"type": "file", "path": 300 * "x" + end}]
            return read_any(changed(AIPERF, tmp_path, {"input_config.datasets": datasets}))[0].point.workload

        assert workload("a") == workload("a")
        assert workload("a") != workload("b")

    def test_ours_is_read_as_before(self, tmp_path: Path) -> None:
        kept: list[Measurement] = a_sweep({1: (100.0, 1.0)})
        ResultsFile(tmp_path).append(kept[0])
        assert read_any(tmp_path / files.RESULTS) == kept

    def test_the_file_of_results_of_a_run_is_ours_alone(self) -> None:
        with pytest.raises(FileError, match="accepted: points as flyball-bench writes them"):
            read(GUIDELLM)

    @pytest.mark.parametrize("content", ['{"model": "x"}', '{\n "model": "x"\n}', "[" * 100_000, "[1, 2]\n"])
    def test_anything_else_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "x.json").write_text(content + "\n")
        with pytest.raises(FileError, match="accepted: "):
            read_any(tmp_path / "x.json")

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "MOST_BYTES", 2**20)
        (tmp_path / "x.json").write_bytes(b" " * (2**20 + 1))
        with pytest.raises(FileError, match="larger than 1 MB; accepted: a smaller file"):
            read_any(tmp_path / "x.json")
