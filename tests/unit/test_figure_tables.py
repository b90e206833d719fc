"""Tables of measured figures: from a bench's figures into docs/figures, and from there into the pages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flyball_lab.benches import main
from flyball_lab.benches.engine import cost, hooks, live_gate, live_order, live_step_budget, retune
from flyball_lab.benches.figures import Tables, command_line, keep, of_today, tables
from flyball_lab.benches.law import ablation, comparison_tables, order, robust
from flyball_lab.benches.law.comparison import compare
from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.scenarios import SCENARIOS
from flyball_lab.benches.live import compare as live
from flyball_lab.benches.options import Options
from flyball_lab.benches.tick import cost as tick
from flyball_lab.pages.figures import Column, FigureFile, FiguresError, Measured, read, rendered_pages, table
from flyball_lab.repository import ROOT

MEASURED = {
    "command": "hack/bench law --quick",
    "date": "2026-11-23",
    "sources": "0.1.0 at 98d5118",
    "machine": "2 cores, no GPU",
    "note": "Seed 1",
}
#: As a file has it.
FILE: dict[str, Any] = {
    "measured": MEASURED,
    "table": {
        "columns": [{"title": "load"}, {"title": "ratio", "decimals": 2}, {"title": "waits, s", "digits": 2}],
        "rows": [["chats", 0.9, 123.4], ["code", "0.80 ± 0.1", None]],
    },
}
MARKDOWN = """\
|load|ratio|waits, s|
|---|---:|---:|
|chats|0.90|120|
|code|0.80 ± 0.1||

*Measured by `hack/bench law --quick` on 23 November 2026. Machine: 2 cores, no GPU. Sources: 0.1.0 at 98d5118. Seed 1.*
"""


def written(folder: Path, *changes: tuple[str, Any]) -> Path:
    """A file with other values, by their dotted names; None takes a field away."""
    content = json.loads(json.dumps(FILE))
    for name, value in changes:
        *way, last = name.split(".")
        inner = content
        for step in way:
            inner = inner[int(step) if step.isdigit() else step]
        if value is None:
            del inner[last]
        else:
            inner[int(last) if last.isdigit() else last] = value
    path = folder / "law.open.json"
    path.write_text(json.dumps(content))
    return path


class TestFiles:
    def test_a_table_is_rendered_with_what_is_known_of_its_run(self, tmp_path: Path) -> None:
        assert read(written(tmp_path)).markdown() == MARKDOWN

    def test_a_file_is_read_as_it_was_written_and_has_a_line_for_each_row(self, tmp_path: Path) -> None:
        file = read(written(tmp_path))
        assert FigureFile.model_validate_json(file.text()) == file
        assert '   ["chats", 0.9, 123.4],' in file.text().splitlines()

    def test_nothing_is_said_of_a_run_of_which_nothing_is_known(self) -> None:
        assert Measured(command=None, date=None, sources=None, machine=None, note=None).caption() == ""

    def test_a_bar_does_not_end_a_cell(self) -> None:
        assert table(["a|b"], [["c|d"]]).markdown().splitlines()[2] == r"|c\|d|"

    @pytest.mark.parametrize(
        ("field", "value", "told"),
        [
            ("measured.command", None, "measured.command: Field required"),
            ("measured.date", "yesterday", "measured.date: "),
            ("measured.host", "build-7", "measured.host: Extra inputs"),
            ("measured.command", "hack/bench law --out /srv/results/", "measured.command: "),
            ("measured.note", "see https://example.com", "measured.note: "),
            ("table.rows.1", ["code", 0.8], "table: Value error, row 1 has 2 cells, there are 3 columns"),
            ("table.rows.0.1", True, "table.rows.0.1"),
            ("table.rows.0.1", float("nan"), "table.rows.0.1"),
            ("table.columns.1.decimals", "two", "table.columns.1.decimals: "),
        ],
    )
    def test_a_wrong_file_is_refused_with_the_field(self, tmp_path: Path, field: str, value: Any, told: str) -> None:
        with pytest.raises(FiguresError) as refused:
            read(written(tmp_path, (field, value)))
        assert f"law.open.json: {told}" in str(refused.value)


class TestPages:
    def checkout(self, root: Path, page: str) -> Path:
        (root / "docs/figures").mkdir(parents=True)
        (root / "README.md").write_text("# Nothing\n")
        (root / "docs/law.md").write_text(page)
        written(root / "docs/figures")
        return root

    def test_those_of_this_checkout_are_current_and_show_every_file(self) -> None:
        stale = [str(page) for page, text in rendered_pages(ROOT).items() if (ROOT / page).read_text() != text]
        assert stale == [], "run hack/gen, read the diff, commit it"

    def test_a_table_stands_between_its_markers(self, tmp_path: Path) -> None:
        root = self.checkout(tmp_path, "before\n\n<!-- figures: law.open -->\nold\n<!-- end -->\n\nafter\n")
        (text,) = rendered_pages(root).values()
        assert text == f"before\n\n<!-- figures: law.open -->\n\n{MARKDOWN}\n<!-- end -->\n\nafter\n"
        (root / "docs/law.md").write_text(text)
        assert list(rendered_pages(root).values()) == [text]

    @pytest.mark.parametrize(
        ("page", "told"),
        [
            ("<!-- figures: law.gated -->\n<!-- end -->\n", "docs/law.md: no file docs/figures/law.gated.json"),
            ("<!-- figures: law.open -->\n", "docs/law.md: a marker of figures"),
            ("nothing\n", "no page shows law.open"),
        ],
    )
    def test_a_marker_needs_a_file_and_a_file_a_marker(self, tmp_path: Path, page: str, told: str) -> None:
        with pytest.raises(FiguresError, match=told):
            rendered_pages(self.checkout(tmp_path, page))


def markdown(made: Tables, name: str = "") -> str:
    return made[name].markdown()


class TestLaw:
    @pytest.fixture(autouse=True)
    def _no_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every run ends at once; a constant that is switched off costs a tenth."""

        def ended(jobs: list[Any], _: object) -> tuple[dict[str, RunFigures], bool]:
            return {job.key: self.came(job.key) for job in jobs}, True

        for module in ("comparison", "ablation", "order", "robust"):
            monkeypatch.setattr(f"flyball_lab.benches.law.{module}.finish", ended)

    @staticmethod
    def came(key: str) -> RunFigures:
        goodput = 9.0 if "first_token_margin = 1 | open" in key else 10.0
        return RunFigures(goodput=goodput, kept=0.99, changes=3, good_each=(50,) * 100)

    @pytest.mark.parametrize("gate", [False, True])
    def test_a_comparison_has_a_row_for_each_scenario(self, gate: bool) -> None:
        made = comparison_tables.tables(compare(Options(quick=True), gate=gate, cases=SCENARIOS[:2]))
        first, second = markdown(made).splitlines()[2:]
        assert first.startswith("|chat|10.00|99.0|32/512|10|1.00|")
        assert second.startswith("|load steps|")
        assert "|the law|1.00|1.00|" in markdown(made, "summary")
        assert ("constant setpoint" in markdown(made, "summary")) is gate
        assert "|at most 6 changes a minute|3|" in markdown(made, "asked")

    def test_several_seeds_have_an_interval(self) -> None:
        made = comparison_tables.tables(compare(Options(seeds=2, quick=True), gate=False, cases=SCENARIOS[:2]))
        assert "|1.00 ± 0|" in markdown(made)

    def test_limits_by_budget_and_margin_are_short(self) -> None:
        values = {"oracle 64/8192, steps × 2.5, gate × 0.85, goodput": 1.0}
        other = {"oracle 64/8192, steps × 2.5, gate × 0.95, goodput": 1.0}
        assert comparison_tables._oracle(values)[0] == "64/8192×2.5"
        assert comparison_tables._oracle(other)[0] == "64/8192×2.5, gate × 0.95"

    def test_rules_that_tie_are_counted(self) -> None:
        values = {"AIMD, C 512 over the oracle": 1.001, "AIMD over the oracle": 0.5, "P-PAS over the oracle": 0.999}
        assert comparison_tables.best_baseline(values) == ("AIMD, P-PAS", 1.0)
        assert comparison_tables.best_baseline(values | {"Gradient2 over the oracle": 1.0}) == ("3 rules", 1.0)

    def test_recorded_traffic_has_a_row_for_each_gate(self) -> None:
        figures = compare(Options(quick=True), gate=False, cases=SCENARIOS[:1])
        made = comparison_tables.traced({f"{title}, open": values for title, values in figures.items()})
        assert markdown(made).splitlines()[2].startswith("|h100 chat, open|32/512, 10.0/s|1.00|")

    def test_constants_that_move_no_run_are_named(self) -> None:
        options = Options(quick=True, ablate=("first_token_margin", "token_margin", "huber"))
        made = ablation.tables(ablation.measure(options))
        assert markdown(made).splitlines()[2:] == [
            "|`first_token_margin`|0.85|1|0.950|0.900 (load steps, queued)|1.000|",
            "|`huber`, `token_margin`|||no run moves by more than 1 %|||",
        ]

    def test_orders_are_beside_the_perfect_scheduler(self) -> None:
        made = order.tables(order.measure(Options(seeds=1)))
        lines = markdown(made).splitlines()
        assert lines[2] == "|chat, bursts|1|10|1.000|1.000|1.000|1.000|1.000|0|0|"
        assert lines[-1].startswith("|the 9 others, below capacity or as Poisson at it|||1.000-1.000|")
        assert len(lines) == 2 + 17 + 1
        assert len(markdown(made, "classes").splitlines()) == 2 + 3
        assert "0.0 %" in markdown(made, "asked")

    def test_troubles_have_the_least_and_the_most_of_the_scenarios(self) -> None:
        made = robust.tables(robust.measure(Options(seeds=1)))
        assert "|40 % slower half-way|1.00-1.00 (1.00-1.00)|1.00-1.00 (1.00-1.00)|" in markdown(made)
        assert "|decisions that raised|0|0|" in markdown(made)


def costs() -> Mapping[str, Mapping[str, float]]:
    added = cost._added([1e-4, 2e-4], 0.02)
    ratio = cost.interval([0.0, 0.01, 0.02])
    return {
        f"{cost.ADDED}2 steps": added,
        "of it on the processor": added,
        f"{cost.THROUGHPUT}, 3 pairs of runs": ratio,
        "tokens per processor second over stock vLLM's, 3 pairs of runs": ratio,
    }


def orders() -> Mapping[str, Mapping[str, float]]:
    fared = [live_order.Fared(requests=10, kept=9, refused=0, firsts=[1.0])]
    return {
        "capacity": {"requests per s": 5.0},
        "stock vLLM, at 1.4 x capacity": live_order._figures(fared, [9], 5.0),
    }


def ticks() -> Mapping[str, Mapping[str, float]]:
    names = ["operator of the tick", "operator while it reads", "read seconds", "prometheus of the tick"]
    names += ["prometheus while it reads", "wall of the tick", "queries of the tick", "writes of the tick"]
    names += ["seconds to all reports"]
    row = dict.fromkeys([*names, "observed", "of", "tuned", "VmRSS MiB", "VmHWM MiB"], 2.0) | {"learning": 0.0}
    return {tick._title(services): tick._figures(services, [row]) for services in (1, 1000)}


OVER_THE_STEP = [f"over the longest step, {share}" for share in ("p50", "p99", "most")]
HOOKS = {"p50 µs": 33.0, "p90 µs": 37.2, "p99 µs": 166.0}
REFLEX = {"mixed steps": 9.0, "p50": 0.9, "p95": 1.1, "p99": 1.2, "spread of steps alike": 1.4}
GATE = {"requests": 9.0, "refused": 1.0, "admitted in time": 1.0, "goodput over capacity": 1.1}


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda: cost.tables(costs()), "|added to a step, p50|100 µs, 0.5 %|1 %|"),
        (lambda: cost.tables(costs()), "|tokens per processor second over stock vLLM's|1.010, 0.986-1.035 (3 pairs)||"),
        (
            lambda: retune.tables(
                {
                    "pushes": {"p50": 32.0, "p99": 99.0} | dict.fromkeys(OVER_THE_STEP, 1.0),
                    "steps after": {"steps": 9.0, "over the limit": 0.0, "most tokens without the limit": 6201.0},
                }
            ),
            "|steps after|0 of 9 disobey|0|",
        ),
        (
            lambda: live_step_budget.tables(
                {live_step_budget.MODEL: {"budget ms": 155.0}, "reflex": REFLEX | {"p95 over that spread": 0.78}}
            ),
            "|reflex|9|0.90/1.10/1.20|1.40|0.78 (asked: 1.15)|",
        ),
        (
            lambda: live_gate.tables(
                {"capacity": {"requests per s": 5.0}, "gate, at 10.00/s": GATE, "warm prefixes": {"refused": 0.0}}
            ),
            "|gate|1 of 9|100 % (asked: 95)|1.10 (asked: 0.85)|",
        ),
        (lambda: live_order.tables(orders()), "|stock vLLM|90.0|90.0|90.0|0.0|1.0/1.0|1.00|0.06|"),
        (lambda: hooks.tables({"warm caches": HOOKS}), "|warm caches|33|37|166|"),
        (lambda: tick.tables(ticks()), "|Prometheus, processor seconds, scrapes and all|2/2|2/2 (40 scraped)|"),
        (
            lambda: live.tables(
                {
                    "governed": {"kept all %": 89.0},
                    "48/256": {"kept all %": 39.0, live.OVER: 2.28, f"{live.OVER} ±": 0.12},
                    f"{live.BEST}48/256": {live.OVER: 2.28},
                }
            ),
            "|48/256, the best that never moves|2.28±0.12|89|39|",
        ),
    ],
)
def test_a_part_says_its_figures_as_the_page_has_them(made: Callable[[], Tables], line: str) -> None:
    assert line in markdown(made()).splitlines()


class TestKeeping:
    def test_a_part_without_tables_has_one_of_all_its_figures(self) -> None:
        figures = {"conversations": {"p95": 1.05}, "prompts": {"p95": 1.09, "p99": float("inf")}}
        ((name, made),) = tables("engine", "reflex", SimpleNamespace(), figures)
        assert name == "engine.reflex"
        assert made.markdown().splitlines()[2:] == ["|conversations|1.05||", "|prompts|1.09|inf|"]

    def test_a_table_is_named_by_bench_part_and_end(self) -> None:
        one = table(["a"], [])
        module = SimpleNamespace(tables=lambda _: {"": one, "asked": one})
        assert [name for name, _ in tables("law", "open", module, {})] == ["law.open", "law.open.asked"]
        assert [name for name, _ in tables("tick", "tick", module, {})] == ["tick", "tick.asked"]

    def test_a_tick_of_1000_services_is_held_against_what_is_asked(self) -> None:
        figures = ticks()
        assert "|memory, MiB|300|2|" in markdown(tick.tables(figures), "asked")
        slow = {title: {**values, "operator processor s p50": 1.8} for title, values in figures.items()}
        assert "|processor seconds of a tick, p50|1|1.8: missed|" in markdown(tick.tables(slow), "asked")
        few = {title: values for title, values in figures.items() if not title.startswith("1000 ")}
        assert "asked" not in tick.tables(few)

    def test_what_is_written_can_be_read(self, tmp_path: Path) -> None:
        made = table(["load", Column(title="ratio", decimals=2)], [["chat", 1.0]])
        file = read(keep("law.open", made, of_today("hack/bench law", gpu="H100"), root=tmp_path))
        assert file.table == made
        assert (file.measured.machine or "").endswith(", H100")

    def test_a_command_has_options_that_differ_and_of_a_path_only_its_end(self) -> None:
        given = {"part": ["open", "gated"], "quick": True, "trace": Path("/home/me/a.csv"), "rate": 4.0, "seeds": None}
        defaults = {"quick": False}
        assert command_line("hack/bench law", given, defaults.get) == (
            "hack/bench law --part open gated --quick --trace a.csv --rate 4"
        )


class TestCommand:
    def test_it_keeps_the_tables_of_the_parts_that_did_not_fail(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        def busy() -> main.Figures:
            raise RuntimeError("too busy")

        for name, measure in {"bad": busy, "good": lambda: {"all": {"steps": 3.0}}}.items():
            monkeypatch.setitem(sys.modules, f"{main.BENCHES}.{name}", SimpleNamespace(measure=measure))
        monkeypatch.setattr(main, "SIMULATED", {"engine": {"bad": "bad", "good": "good"}})
        monkeypatch.setattr(main, "ROOT", tmp_path)
        monkeypatch.setattr(main, "keep", lambda name, made, measured: keep(name, made, measured, root=tmp_path))
        monkeypatch.setattr(sys, "argv", ["bench", "engine", "--part", "bad", "good", "--figures"])
        monkeypatch.setattr("signal.signal", lambda *_: None)
        assert main.run() == 1
        (path,) = (tmp_path / "docs/figures").iterdir()
        file = read(path)
        assert (path.name, file.measured.command) == ("engine.good.json", "hack/bench engine --part bad good")
        assert file.table.rows == (("all", 3.0),)
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["bench"] == "engine"

    @pytest.mark.parametrize("given", [["--part", "open", "--scenario", "h100 chat"], ["--ablate", "huber"]])
    def test_half_a_table_is_not_kept(
        self, given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["bench", "law", *given, "--figures"])
        with pytest.raises(SystemExit):
            main.run()
        assert "--figures keeps whole tables" in capsys.readouterr().err
