"""The exercise's decisions: points, what came of them, knee, advice, and the report in all its forms."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from flyball_engine.contract import Limits, OnTime, Setpoint, Shed, StepBudget, StrategyType
from flyball_lab.benchmark import options as bench_options
from flyball_lab.benchmark.advice import AdviceTopic, advise
from flyball_lab.benchmark.arguments import arguments, warm_up
from flyball_lab.benchmark.control import setpoint_of
from flyball_lab.benchmark.files import RESULTS, ResultsFile
from flyball_lab.benchmark.knee import knee
from flyball_lab.benchmark.main import main
from flyball_lab.benchmark.measurements import EngineSample, measure, utilisation
from flyball_lab.benchmark.page import page
from flyball_lab.benchmark.points import Effort, EngineSetting, MeasuredEngine, Point, settings_of, sweep, time_left
from flyball_lab.benchmark.report import Report, report
from flyball_lab.benchmark.requests import RequestRecord
from flyball_lab.benchmark.series import series_of
from flyball_lab.benchmark.table import ABSENT, table
from flyball_lab.harness.scheduler_scenario import a_model
from support.exercises import ARRIVING, MIXED, UNIFORM, a_measurement, a_point, a_sweep
from support.wrong_inputs import command_lines

WHEN = "2026-11-21T12:00:00+00:00"
#: A server that batches: throughput rises and flattens, latency rises slowly, then in proportion.
BATCHING = {1: (100.0, 1.0), 4: (380.0, 1.05), 16: (1200.0, 1.3), 64: (1900.0, 3.4), 256: (1950.0, 13.1)}
CONTINUOUS, STATIC = StrategyType.CONTINUOUS, StrategyType.STATIC


def a_request(ttft: float, gaps: tuple[float, ...], *, error: str = "") -> RequestRecord:
    """Of ten tokens that were asked for."""
    output = len(gaps) + 1 if ttft else 0
    return RequestRecord(
        start=0, ttft=ttft, gaps=gaps, prompt_tokens=5, output_tokens=output, expected_tokens=10, error=error
    )


class TestThePoints:
    def test_settings_change_innermost_and_every_point_has_a_key_of_its_own(self) -> None:
        points = sweep(
            MeasuredEngine(endpoint="http://e", model="m"),
            workloads=[UNIFORM, MIXED],
            settings=settings_of([CONTINUOUS, STATIC], batch_size=None, max_delay_seconds=0.1),
            concurrencies=[1, 16],
            effort=Effort(),
        )
        order = [(point.workload.name.value, point.concurrency, point.setting.strategy) for point in points[:4]]
        assert order == [
            ("uniform", 1, CONTINUOUS),
            ("uniform", 1, STATIC),
            ("uniform", 16, CONTINUOUS),
            ("uniform", 16, STATIC),
        ]
        assert len({point.key for point in points}) == len(points) == 8

    def test_whatever_is_set_is_part_of_the_key(self) -> None:
        plain = a_point(4)
        others = [a_point(8), a_point(4, label="x"), a_point(4, endpoint="http://b"), a_point(4, workload=MIXED)]
        assert plain.key == a_point(4).key
        assert plain.key not in {other.key for other in others}

    def test_the_open_loop_is_a_workload_of_its_own_beside_the_closed_one(self) -> None:
        points = sweep(
            MeasuredEngine(endpoint="http://e", model="m"),
            workloads=[UNIFORM],
            settings=settings_of([], batch_size=None, max_delay_seconds=0.1),
            concurrencies=[4],
            rates=[0.5, 8.0],
            burstiness=0.5,
            effort=Effort(seconds=30),
        )
        assert [(one.concurrency, one.rate, one.requests) for one in points] == [
            (4, None, 16),
            (None, 0.5, 15),
            (None, 8.0, 240),
        ]
        assert [one.describe() for one in points][1:] == [
            "uniform as configured at 0.5/s",
            "uniform as configured at 8/s",
        ]
        assert points[1].workload.describe() == "uniform: 64 tokens in, 32 out; open loop, burstiness 0.5"
        assert len({one.key for one in points}) == 3

    def test_a_point_has_clients_or_a_rate(self) -> None:
        closed, arriving = a_point(4).model_dump(), a_point(4, workload=ARRIVING).model_dump()
        for wrong in (closed | {"rate": 4.0}, arriving | {"concurrency": 4}, closed | {"concurrency": None}):
            with pytest.raises(ValueError, match="a closed loop a concurrency alone"):
                Point.model_validate(wrong)

    def test_the_generator_is_told_clients_or_a_rate(self) -> None:
        closed = arguments(a_point(4), tokenizer="t", salt="s")
        arriving = arguments(a_point(2.5, workload=ARRIVING), tokenizer="t", fixed_answers=True)
        assert {"--max-concurrency=4", "--num-prompts=16", '--extra-body={"cache_salt": "s"}'} <= set(closed)
        assert not [one for one in closed if one.startswith(("--request-rate", "--burstiness"))]
        assert {"--request-rate=2.5", "--burstiness=0.5", "--num-prompts=10"} <= set(arriving)
        assert '--random-range-ratio={"input": 0.0, "output": 0.0}' in arriving
        assert not [one for one in arriving if one.startswith(("--max-concurrency", "--extra-body"))]

    def test_a_warm_up_is_a_closed_loop_of_other_prompts(self) -> None:
        many, few = warm_up(a_point(500)), warm_up(a_point(2.5, workload=ARRIVING))
        assert (many.concurrency, many.requests, many.workload.output_tokens) == (500, 64, 16)
        assert (few.concurrency, few.requests, few.rate) == (8, 8, None)
        assert Point.model_validate(few.model_dump()).workload.seed == 1

    @pytest.mark.parametrize(("clients", "requests"), [(1, 8), (4, 16), (64, 256), (256, 512), (1000, 1000)])
    def test_requests_follow_the_clients_within_bounds(self, clients: int, requests: int) -> None:
        assert Effort().requests(clients) == requests

    def test_the_time_left_is_what_points_of_like_concurrency_took(self) -> None:
        assert time_left([], [a_point(1)]) is None
        done = [(a_point(1), 10.0), (a_point(64), 30.0), (a_point(60, workload=ARRIVING), 99.0)]
        assert time_left(done, [a_point(1), a_point(60), a_point(64)]) == pytest.approx(70.0)

    def test_a_batch_is_as_large_as_the_clients_are_many_and_never_larger_than_the_engine(self) -> None:
        prior = Setpoint(service="s", epoch=1, generation=7, limits=Limits(max_num_scheduled_tokens=512))
        static = setpoint_of(EngineSetting(strategy=STATIC), concurrency=16, prior=prior, cores=1, ceiling=64)
        assert static.batching.strategy.batch_size == static.limits.max_num_active_seqs == 16  # type: ignore[union-attr]  # Static
        assert static.limits.max_num_scheduled_tokens == 512, "what is not compared stays as it was"

    @pytest.mark.parametrize(
        ("cores", "batch_size", "clients", "each"),
        [(1, None, 500, 64), (1, 8, 500, 8), (2, 8, 500, 4), (3, 8, 500, 3), (4, None, 30, 8), (2, None, None, 64)],
    )
    def test_what_runs_together_is_divided_among_the_cores(
        self, cores: int, batch_size: int | None, clients: int | None, each: int
    ) -> None:
        # Of limits each core has its own.
        setting = EngineSetting(strategy=STATIC, batch_size=batch_size)
        prior = Setpoint(service="s", epoch=1, generation=7)
        told = setpoint_of(setting, concurrency=clients, prior=prior, cores=cores, ceiling=64)
        assert told.batching.strategy.batch_size == told.limits.max_num_active_seqs == each  # type: ignore[union-attr]  # Static

    def test_a_strategy_is_set_where_the_operator_orders_prompts_and_refuses(self) -> None:
        tuned = Setpoint(
            service="s",
            epoch=1,
            generation=7,
            step=StepBudget(seconds=0.05, model=a_model(0.003, 0.0001)),
            shed=Shed(ttft_deadline_seconds=2.0),
            on_time=OnTime(first_token_deadline_seconds=2.0),
        )
        static = setpoint_of(EngineSetting(strategy=STATIC), concurrency=16, prior=tuned, cores=1, ceiling=64)
        assert Setpoint.model_validate_json(static.model_dump_json()) == static, "engines accept it"


class TestWhatCameOfAPoint:
    def test_the_figures_are_the_clients(self) -> None:
        requests = [
            RequestRecord(
                start=0, ttft=0.2, gaps=(0.1,) * 9, prompt_tokens=5, output_tokens=10, expected_tokens=10, error=""
            ),
            RequestRecord(
                start=0, ttft=0.4, gaps=(0.2,) * 4, prompt_tokens=5, output_tokens=5, expected_tokens=10, error=""
            ),
            RequestRecord(
                start=0, ttft=0, gaps=(), prompt_tokens=5, output_tokens=0, expected_tokens=10, error="x\nHTTP 503"
            ),
        ]
        one = measure(a_point(2), requests, seconds=2.0, samples=[], measured_at=WHEN, engine="e")
        assert (one.completed, one.failed, one.truncated, one.errors) == (2, 1, 1, {"HTTP 503": 1})
        assert one.output_tokens_per_second == pytest.approx(7.5)
        assert one.total_tokens_per_second == pytest.approx(12.5)
        assert one.e2e.p50 == pytest.approx(1.1)
        assert one.e2e.p99 == pytest.approx(1.2)
        assert one.tpot.p99 == pytest.approx(0.2)

    def test_what_was_not_observed_is_absent_and_never_zero(self) -> None:
        assert utilisation([]) is None
        assert utilisation([EngineSample(running=0, waiting=0, slots=64)]) is None, "one look is no picture"
        without_slots = utilisation([EngineSample(running=4, waiting=1, slots=None)] * 3)
        assert without_slots is not None
        assert (without_slots.running, without_slots.slots, without_slots.share) == (4, None, None)
        with_slots = utilisation([EngineSample(running=running, waiting=0, slots=8) for running in (8, 8, 2)])
        assert with_slots is not None
        assert with_slots.share == pytest.approx(0.75)
        moved = utilisation([EngineSample(running=4, waiting=0, slots=slots) for slots in (8, 8, 64)])
        assert moved is not None
        assert (moved.running, moved.share) == (4, None), "a share of what, if the slots were moved meanwhile"


class TestTheKnee:
    def test_it_is_where_latency_begins_to_lose_more_than_throughput_gains(self) -> None:
        found = knee(a_sweep(BATCHING))
        assert found is not None
        assert (found.load, found.passed) == (16, True)
        assert found.power == pytest.approx(12 / 1.3)

    def test_it_does_not_move_with_the_end_of_the_sweep(self) -> None:
        shorter = {clients: BATCHING[clients] for clients in (1, 4, 16, 64)}
        assert knee(a_sweep(shorter)) == knee(a_sweep(BATCHING))

    def test_one_noisy_point_ends_no_search(self) -> None:
        found = knee(a_sweep(BATCHING | {4: (310.0, 1.3)}))
        assert found is not None
        assert found.load == 16

    def test_of_powers_that_are_alike_the_fewest_clients_count(self) -> None:
        found = knee(a_sweep({1: (100.0, 1.0), 8: (780.0, 1.0), 16: (1600.0, 2.0), 32: (1610.0, 4.0)}))
        assert found is not None
        assert found.load == 8

    def test_a_sweep_that_ended_too_soon_says_so(self) -> None:
        found = knee(a_sweep({1: (100.0, 1.0), 4: (390.0, 1.02)}))
        assert found is not None
        assert (found.load, found.passed) == (4, False)

    def test_there_is_none_without_two_latencies(self) -> None:
        assert knee(a_sweep({1: (100.0, 1.0)})) is None
        assert knee([a_measurement(a_point(1), e2e=None), a_measurement(a_point(2))]) is None


class TestTheAdvice:
    def advice(self, work: AdviceTopic, *points: object) -> tuple[str, str]:
        given = [one for one in advise(series_of(points)) if one.work is work]  # type: ignore[arg-type]  # measurements
        assert len(given) == 1
        return given[0].text, " ".join(given[0].figures)

    def test_of_strategies_the_faster_is_advised_by_how_much_it_is(self) -> None:
        mixed = a_sweep({16: (1300.0, 1.0)}, strategy=CONTINUOUS, workload=MIXED)
        static = a_sweep({16: (1000.0, 1.4)}, strategy=STATIC, workload=MIXED)
        text, figures = self.advice(AdviceTopic.MIXED, *mixed, *static)
        assert text == "Continuous: the most output tokens/s; 30 % more tokens/s than Static"
        assert "Static at 16: 1000 output tokens/s" in figures

    def test_of_those_that_are_as_fast_the_sooner_is(self) -> None:
        continuous = a_measurement(a_point(16, strategy=CONTINUOUS), output=1000.0, ttft=0.3)
        static = a_measurement(a_point(16, strategy=STATIC), output=1010.0, ttft=0.9)
        text, _ = self.advice(AdviceTopic.UNIFORM, continuous, static)
        assert text.startswith("Continuous: as fast as Static (within 5 %)")

    def test_real_time_stays_at_the_knee_and_says_what_lies_beyond(self) -> None:
        text, figures = self.advice(AdviceTopic.REAL_TIME, *a_sweep(BATCHING))
        assert "at most 16 requests at once" in text
        assert "at 64: end to end p50 +162 %, output tokens/s +58 %" in figures

    def test_bulk_takes_what_gives_the_most_with_the_fewest_clients(self) -> None:
        text, figures = self.advice(AdviceTopic.BULK, *a_sweep(BATCHING))
        assert "with 64 clients" in text
        assert "1950 output tokens/s at 256" in figures

    def test_of_arrivals_the_knee_is_a_rate_and_bulk_work_is_not_advised(self) -> None:
        rates = a_sweep({0.5: (16.0, 1.0), 2: (64.0, 1.1), 8: (250.0, 1.6), 16: (260.0, 9.0)}, workload=ARRIVING)
        text, figures = self.advice(AdviceTopic.REAL_TIME, *rates)
        assert text == "as configured, at most 8 requests/s on each engine: the knee"
        assert "at 16/s: end to end p50 +462 %" in figures
        bulk = [one.text for one in advise(series_of([*rates, *a_sweep(BATCHING)])) if one.work is AdviceTopic.BULK]
        assert len(bulk) == 2
        assert "no advice from an open loop" in bulk[0]

    def test_nothing_is_said_of_what_was_not_compared_or_failed(self) -> None:
        alone = advise(series_of(a_sweep(BATCHING)))
        assert {one.work for one in alone} == {AdviceTopic.REAL_TIME, AdviceTopic.BULK}
        assert advise(series_of([a_measurement(a_point(4), failed=1)])) == ()


def a_report() -> Report:
    """Two closed loops and an open one, labels, a failure, something absent, and text that HTML takes for its own."""
    return report(
        [
            *a_sweep(BATCHING, strategy=CONTINUOUS),
            *a_sweep({1: (90.0, 1.0), 16: (800.0, 2.0)}, strategy=STATIC),
            *a_sweep({1: (95.0, 1.0), 16: (900.0, 1.9)}, label="a < b & c", workload=MIXED),
            a_measurement(a_point(64, strategy=STATIC), output=700.0, failed=3, share=None),
            *a_sweep({0.5: (16.0, 1.0), 2: (64.0, 1.0), 4: (70.0, 3.0)}, workload=ARRIVING),
        ],
        generated_at=WHEN,
    )


class Browser(HTMLParser):
    """Reads a page as HTML: there `<div/>` closes nothing but in an SVG, which no reader of XML would mind.

    What begins with `#` is in the page itself.
    """

    VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr"})
    LOADING = frozenset({"action", "background", "data", "href", "poster", "src", "srcset", "xlink:href"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.faults += [
            f"<{tag}> loads by {name}" for name, to in attrs if name in self.LOADING and not f"{to}".startswith("#")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            if "svg" not in self.open[:-1]:
                self.faults.append(f"<{tag}/> stays open")
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes another")


def faults_of(text: str) -> list[str]:
    browser = Browser()
    browser.feed(text)
    browser.close()
    return [*browser.faults, *(f"<{tag}> stays open" for tag in browser.open)]


class TestTheReport:
    def test_it_comes_back_whole_from_json(self) -> None:
        assert Report.model_validate_json(a_report().model_dump_json()) == a_report()

    def test_of_a_point_measured_twice_the_later_one_counts(self) -> None:
        old, new = (a_measurement(a_point(1), output=output, at=at) for output, at in ((1.0, "2025"), (2.0, "2026")))
        assert [one.measurements for one in report([new, old], generated_at=WHEN).series] == [(new,)]

    def test_two_engines_without_labels_are_told_apart(self) -> None:
        both = [a_measurement(a_point(1)), a_measurement(a_point(1, endpoint="http://other"))]
        assert len({line.name for line in report(both, generated_at=WHEN).series}) == 2

    def test_the_table_shows_knee_gain_errors_and_what_is_absent(self) -> None:
        text = table(a_report())
        (knee_row,) = re.findall(r"^ +16 .* knee$", text, flags=re.MULTILINE)
        assert "12.0" not in knee_row
        assert " 12 " in knee_row, "twelve times the tokens/s of one client"
        assert "Static at 64: 3 × refused & gone" in text
        (failed_row,) = re.findall(r"^ +64 +700 .*$", text, flags=re.MULTILINE)
        assert f" {ABSENT} " in failed_row
        assert re.search(r"^ +2 +64 .* knee$", text, flags=re.MULTILINE)
        assert text.index("clients ") < text.index("rate "), "each workload has the column of its load"
        assert "The knee is the smallest concurrency or request rate" in text

    def test_the_page_is_well_formed_and_loads_nothing(self) -> None:
        text = page(a_report())
        root = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
        drawn = root.findall(".//div[@class='charts']/svg")
        assert len(drawn) == 12, "four charts for each workload"
        ids = [element.get("id", "") for chart in drawn for element in chart.iter() if element.get("id")]
        assert len(set(ids)) == len(ids)
        assert sum("-series-" in one for one in ids) == 4 * (2 + 1 + 1), (
            "both settings of the one workload, one of the others"
        )
        assert sum("-knee-" in one for one in ids) == 4 * 2, "one ring in each chart of a series with a knee"
        clients, rate = "requests at once (clients)", "request rate, requests/s"
        axes = [(unit, axis) for axis in (clients, clients, rate) for unit in ("tokens/s", "ms", "ms", "ms")]
        for chart, said in zip(drawn, axes, strict=True):
            assert set(said) <= {label.text for label in chart.iter("text")}
        assert "as configured, 2/s: 64 tokens/s (knee)" in [title.text for title in drawn[8].iter("title")]
        assert "Continuous, 16 clients: 1200 tokens/s (knee)" in [title.text for title in drawn[0].iter("title")]
        assert "a < b & c" in "".join(root.itertext())
        assert not re.search(r"<script|<link|<img|\bsrc=|\bhref=\"[^#]|url\([^#]|@import|https?:(?!//127)", text)
        assert "prefers-color-scheme: dark" in text
        assert faults_of(text) == []

    def test_an_empty_report_is_a_page_too(self) -> None:
        ET.fromstring(page(report([], generated_at=WHEN)).removeprefix("<!DOCTYPE html>\n"))


class TestTheOptions:
    @pytest.mark.parametrize(
        ("text", "values"),
        [("1,64,16", (1, 16, 64)), ("1..8", (1, 2, 4, 8)), ("3..20", (3, 4, 8, 16, 20)), ("5..5", (5,))],
    )
    def test_concurrencies(self, text: str, values: tuple[int, ...]) -> None:
        assert bench_options.concurrencies(text) == values

    def test_rates(self) -> None:
        assert bench_options.rates("8,0.5,2") == (0.5, 2.0, 8.0)

    @pytest.mark.parametrize(
        ("given", "loads"),
        [("", (7, 0)), ("--rate 1,2", (0, 2)), ("--rate 1,2 --concurrency 4", (1, 2))],
    )
    def test_each_loop_is_measured_where_it_is_asked_for_and_the_closed_one_by_default(
        self, given: str, loads: tuple[int, int]
    ) -> None:
        parser = bench_options.parser(run=main, report=main)
        options = parser.parse_args(["run", "--url=http://x", *given.split()])
        bench_options.check_loads(options)
        assert (len(options.concurrency), len(options.rate)) == loads
        assert (options.burstiness, options.seconds) == (1.0, 60.0)

    @pytest.mark.parametrize(("given", "says"), command_lines.EXERCISE)
    def test_a_wrong_value_is_named_with_what_is_accepted(
        self, given: str, says: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            code: object = main(given.split())
        except SystemExit as end:
            code = end.code
        assert code == 2
        error = capsys.readouterr().err
        for words in says:
            assert words in error

    def test_the_files_of_several_runs_make_one_report(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for label in ("caching", "no caching"):
            results = ResultsFile(tmp_path / label)
            results.load(fresh=False)
            for one in a_sweep(BATCHING, label=label):
                results.append(one)
        files = [str(tmp_path / "caching"), str(tmp_path / "no caching" / RESULTS)]
        assert main(["report", *files, f"--out={tmp_path}"]) == 0
        out = capsys.readouterr().out
        assert "as configured · caching" in out
        assert "as configured · no caching" in out
        assert Report.model_validate_json((tmp_path / "report.json").read_bytes()).advice
        assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")

    @pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
    def test_a_python_without_the_libraries_of_the_page_has_the_report_without_the_page(
        self, missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in list(sys.modules):
            if name.startswith(("flyball_lab.pages", "flyball_lab.benchmark.page", f"{missing}.")):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
        ResultsFile(tmp_path).append(a_measurement(a_point()))
        assert main(["report", str(tmp_path), f"--out={tmp_path}"]) == 0
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert "report.html is not written" in line
        assert missing in line
        assert "pip install 'flyball-lab[pages]'" in line
        assert f"written: {tmp_path / 'report.json'}" in said.out
        assert not (tmp_path / "report.html").exists()

    def test_nothing_but_the_page_needs_its_libraries(self) -> None:
        script = "import sys, flyball_lab.benchmark.main; print({'matplotlib', 'jinja2'} & set(sys.modules))"
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert said.stdout.strip() == "set()"
