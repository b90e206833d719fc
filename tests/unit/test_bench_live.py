"""`hack/bench live` without engines: its load, what counts, whose turn it is, and what it says of it all."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.intervals import WIDTH
from flyball_lab.benches.live import compare, other_load
from flyball_lab.benches.live.calibration import Calibration
from flyball_lab.benches.live.command import write_report
from flyball_lab.benches.live.compare import Ground, ground_key, jobs
from flyball_lab.benches.live.goodput import ClientRecord, Held, LiveRun, Objectives, figures, goodput
from flyball_lab.benches.live.governed import LoopbackEnvironment, service
from flyball_lab.benches.live.load import CHAT, LONG, PHASES, QUICK, PlannedRequest, arrivals, length, phases, starts
from flyball_lab.benches.live.other_load import busy
from flyball_lab.benches.live.page import PartRuns, page
from flyball_lab.benches.live.variants import GOVERNED, STOCK, Variant
from flyball_lab.benches.main import run as command
from flyball_lab.benches.options import Options
from flyball_lab.benches.rows import Rows
from flyball_lab.harness.engine import SERVICE
from flyball_lab.harness.recordings import RecordingReader
from flyball_lab.harness.tuners import ScriptedReader
from flyball_lab.harness.tuning import signals
from flyball_operator.api.v1alpha1 import DecisionStatus, Overload, SetpointStatus, StepModelStatus, TuningStatus

OBJECTIVES = Objectives(ttft=2.0, tpot=0.05)
BUSY = {CHAT.name: 10.0, LONG.name: 2.0}
GROUND = Ground(Calibration(OBJECTIVES, BUSY), TuningStatus(), {"trusted after s": 12.0})


def seen(**fields: Any) -> ClientRecord:
    """A request that kept all: its first of 11 tokens after 1 s, the others 40 ms each."""
    kept: dict[str, Any] = {"at": 1.0, "phase": "calm", "output": 11, "status": 200, "first": 1.0, "ended": 1.4}
    return ClientRecord(**kept | fields)


REFUSED: dict[str, Any] = {"status": 503, "first": None, "ended": None}


def played(*requests: ClientRecord, **fields: Any) -> LiveRun:
    """A run of 10 s."""
    given: dict[str, Any] = {"seconds": 10.0, "seen": requests}
    return LiveRun(**given | fields)


class TestTheLoad:
    def test_all_policies_of_a_repetition_meet_the_same_and_another_repetition_others(self) -> None:
        assert arrivals(PHASES, BUSY, seed=1) == arrivals(PHASES, BUSY, seed=1)
        assert arrivals(PHASES, BUSY, seed=1) != arrivals(PHASES, BUSY, seed=2)

    def test_each_phase_has_its_shares_of_what_the_engine_answers(self) -> None:
        found = [one for seed in range(200) for one in arrivals(PHASES, BUSY, seed=seed)]
        for phase in PHASES:
            wanted = sum(share * BUSY[kind] for kind, share in phase.shares.items())
            per_second = sum(one.phase == phase.name for one in found) / 200 / phase.seconds
            assert per_second == pytest.approx(wanted, rel=0.1), phase.name

    def test_requests_come_in_order_within_their_phase_and_as_long_as_their_kind(self) -> None:
        found = arrivals(PHASES, BUSY, seed=3)
        assert found == sorted(found, key=lambda one: one.at)
        for phase, start in zip(PHASES, starts(PHASES), strict=True):
            mine = [one for one in found if one.phase == phase.name]
            assert all(start <= one.at < start + phase.seconds for one in mine)
            long = [one for one in mine if one.prompt >= LONG.prompt[0]]
            assert bool(long) is (LONG.name in phase.shares)
            assert all(one.prompt <= CHAT.prompt[1] for one in mine if one not in long)

    def test_one_phase_is_beyond_what_the_engine_answers_and_the_others_are_not(self) -> None:
        assert [sum(phase.shares.values()) > 1 for phase in PHASES] == [False, False, True, False]

    def test_a_first_look_is_shorter(self) -> None:
        assert length(phases(quick=True)) == pytest.approx(QUICK * length(phases(quick=False)))


class TestGoodput:
    @pytest.mark.parametrize(
        ("request_", "kept"),
        [
            (seen(), (True, True)),
            (seen(first=2.1, ended=2.5), (False, True)),
            (seen(ended=1.6), (True, False)),
            (seen(output=1, ended=1.0), (True, True)),
            (seen(ended=None), (True, False)),
            (seen(status=0, first=None, ended=None), (False, False)),
            (seen(**REFUSED), (False, False)),
        ],
        ids=["kept", "late first token", "slow tokens", "one token", "cut off", "left waiting", "refused"],
    )
    def test_a_request_counts_if_it_kept_every_objective(self, request_: ClientRecord, kept: tuple[bool, bool]) -> None:
        assert (request_.first_kept(OBJECTIVES), request_.tokens_kept(OBJECTIVES)) == kept
        assert request_.good(OBJECTIVES) is all(kept)

    def test_it_is_per_second_of_the_load(self) -> None:
        assert goodput(played(seen(), seen(), seen(ended=9.0)), OBJECTIVES) == pytest.approx(0.2)

    def test_shares_are_of_all_that_arrived_by_objective_and_phase(self) -> None:
        late = seen(phase="beyond capacity", at=5.0, first=3.0, ended=3.4)
        told = figures([played(seen(), late), played(seen(), seen())], OBJECTIVES)
        assert told["goodput"] == pytest.approx(0.15)
        assert (told["kept all %"], told["first token %"], told["per token %"]) == (75.0, 75.0, 100.0)
        assert (told["calm %"], told["beyond capacity %"]) == (100.0, 0.0)
        assert "refused %" not in told

    def test_who_was_refused_is_told_apart_from_who_was_let_in(self) -> None:
        told = figures([played(seen(), seen(first=3.0, ended=3.4), seen(**REFUSED), seen(**REFUSED))], OBJECTIVES)
        assert (told["refused %"], told["kept all of those let in %"], told["kept all %"]) == (50.0, 50.0, 25.0)

    def test_answers_of_no_kind_are_told(self) -> None:
        assert figures([played(seen(), seen(status=500, first=None, ended=None))], OBJECTIVES)["failed"] == 1.0

    def test_the_engine_s_own_count_stands_beside_it_where_it_counts(self) -> None:
        told = figures([played(seen(), counted=(1, 2)), played(seen(), counted=(3, 4))], OBJECTIVES)
        assert told["the engine's own count, kept all /s"] == pytest.approx(0.2)
        assert "the engine's own count, kept all /s" not in figures([played(seen())], OBJECTIVES)

    def test_a_run_is_the_same_after_it_was_kept(self) -> None:
        run = played(
            seen(), seen(**REFUSED), counted=(1, 2), others=0.1, held=(Held(0.0, 8, 512, 0.05, 2.0),), decisions=("a",)
        )
        assert LiveRun.of(json.loads(json.dumps(run.row()))) == run
        assert LiveRun.of(json.loads(json.dumps(played().row()))) == played()


class TestOtherWork:
    def test_idle_and_waiting_processors_do_not_work(self) -> None:
        assert busy("cpu  100 20 30 9999 8888 4 5 6 7 8\ncpu0 1 1 1 1 1 1 1 1 1 1", ticks=100) == pytest.approx(1.65)

    def test_what_is_ours_is_not_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        worked, ours, now = iter([10.0, 14.0]), iter([2.0, 5.0]), iter([0.0, 2.0])
        monkeypatch.setattr(other_load, "busy", lambda *_, **__: next(worked))
        monkeypatch.setattr(other_load, "processor_seconds", lambda _: next(ours))
        monkeypatch.setattr("flyball_lab.benches.live.other_load.time.monotonic", lambda: next(now))
        assert other_load.OtherLoad([]).share() == pytest.approx(0.5), "one second of two"

    def test_it_stands_beside_the_figures(self) -> None:
        told = figures([played(seen(), others=0.25), played(seen(), others=0.05)], OBJECTIVES)
        assert told["other work, % of a processor"] == pytest.approx(15.0)


class TestWhoseTurnItIs:
    @pytest.mark.parametrize("gate", [False, True])
    def test_every_policy_has_its_turn_in_each_repetition_and_none_always_follows_the_same(self, gate: bool) -> None:
        wanted = jobs(gate=gate, quick=False)
        assert set(Counter(job.variant for job in wanted).values()) == {compare.REPETITIONS}
        assert len({job.key for job in wanted}) == len(wanted)
        assert len({tuple(job.variant for job in wanted if job.repetition == one) for one in (1, 2, 3)}) == 3

    def test_runs_of_other_parts_and_of_a_first_look_are_others(self) -> None:
        keys = [{job.key for job in jobs(gate=gate, quick=quick)} for gate in (False, True) for quick in (False, True)]
        assert sum(map(len, keys)) == len(set.union(*keys))
        assert ground_key(quick=True) != ground_key(quick=False)

    def test_what_runs_have_in_common_is_the_same_after_it_was_kept(self) -> None:
        assert Ground.of(json.loads(json.dumps(GROUND.row()))) == GROUND


class Engine:
    """Stands for the runner: the tuner keeps 3 requests, others as many as their repetition; Ctrl-C at a run."""

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.runs: list[str] = []
        self._interrupted_at = interrupted_at

    def play(self, variant: Variant, load: Sequence[PlannedRequest], *_: object, **given: Any) -> tuple[LiveRun, None]:
        if len(self.runs) == self._interrupted_at:
            raise KeyboardInterrupt
        self.runs.append(variant.name)
        repetition = next(one for one in (1, 2, 3) if load == arrivals(phases(quick=False), BUSY, seed=one))
        return played(*[seen()] * (3 if variant.governed else repetition), seconds=given["seconds"]), None

    def measure(self, monkeypatch: pytest.MonkeyPatch, out: Path | None, *, gate: bool = False) -> compare.Figures:
        @contextlib.contextmanager
        def runner(_: object) -> Iterator[Engine]:
            yield self

        monkeypatch.setattr(compare, "runner", runner)
        monkeypatch.setattr(compare, "_measured", lambda *_: GROUND)
        return compare.measure(self, Options(out=out), gate=gate)  # type: ignore[arg-type]  # it stands for them


class TestTheComparison:
    def test_the_tuner_is_held_against_each_and_against_the_best_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told = Engine().measure(monkeypatch, None)
        others = [name for name in told if "goodput" in told[name] and name != GOVERNED.name]
        assert STOCK.name in others
        assert [told[name][compare.OVER] for name in others] == [pytest.approx((3 / 1 + 3 / 2 + 3 / 3) / 3)] * len(
            others
        )
        assert all(told[name][compare.OVER + WIDTH] > 0 for name in others)
        assert any(name.startswith("the best that never moves") for name in told)

    def test_it_goes_on_where_it_was_interrupted(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        tried = len(jobs(gate=True, quick=False)) // compare.REPETITIONS
        with pytest.raises(InterruptedPart) as stopped:
            Engine(interrupted_at=tried + 2).measure(monkeypatch, tmp_path, gate=True)
        first = stopped.value.figures
        assert compare.OVER + WIDTH not in first["256/8192"], "one repetition is whole"
        assert first["256/8192"][compare.OVER] == 3.0
        again = Engine()
        again.measure(monkeypatch, tmp_path, gate=True)
        assert len(again.runs) == 2 * tried - 2
        assert Engine(interrupted_at=0).measure(monkeypatch, tmp_path, gate=True), "all of it is known"

    def test_an_interrupt_before_any_repetition_ended_leaves_no_figures_but_the_load(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(InterruptedPart) as stopped:
            Engine(interrupted_at=0).measure(monkeypatch, None)
        assert list(stopped.value.figures) == ["the load and the tuner's model"]


class TestTheReport:
    def test_it_shows_what_was_kept_and_what_the_tuner_held(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        figures_ = Engine().measure(monkeypatch, tmp_path)
        rows = Rows(tmp_path, compare.SOURCES)
        rows.add(ground_key(quick=False), GROUND.row())
        said = {"bench": "live", "figures": {"open": figures_}}
        html = write_report(tmp_path, said).read_text()
        assert json.loads((tmp_path / "live.json").read_text()) == said
        for words in ("overload: Queue", "within 2s", "50ms per token", "long prompts", "stock vLLM 256/8192"):
            assert words in html
        for outside in ("<script", "http://", "https://"):
            assert outside not in html

    def test_limits_are_drawn_over_the_phases_and_decisions_are_told(self) -> None:
        rows = (Held(0.0, 256, 8192), Held(5.0, 64, 512, 0.05, 2.0))
        run = played(seen(), held=rows, decisions=("256/8192 to 64/512: per-token binds",))
        html = page({"gated": PartRuns({}, {GOVERNED.name: [run]})}, OBJECTIVES, quick=False, interrupted=True)
        for words in ("max_num_scheduled_tokens", "Step budget", "beyond capacity", "per-token binds", "Interrupted"):
            assert words in html


class TestTheTunersSurroundings:
    async def test_what_it_holds_and_decides_is_noted_once(self) -> None:
        world = LoopbackEnvironment()
        wanted = service(OBJECTIVES, sheds=True, tuning=TuningStatus(generation=7, decisions=(decision("old"),)))
        assert wanted.spec.tuning.overload is Overload.SHED
        assert wanted.status.tuning.generation == 7, "it resumes"
        world.serve(wanted)
        setpoint = SetpointStatus(max_num_active_seqs=8, max_num_scheduled_tokens=512, step_budget="50ms")
        for trusted, observed in ((False, ""), (True, "token 40ms")):
            tuning = TuningStatus(
                setpoint=setpoint,
                model=StepModelStatus(trusted=trusted),
                decisions=(decision("a queue", observed=observed),),
            )
            await world.write(
                wanted, tuning=tuning, objectives=(), objectives_met="", desired_replicas=None, conditions=()
            )
        assert [(row.seqs, row.tokens, row.budget, row.deadline) for row in world.held] == [(8, 512, 0.05, None)] * 2
        (told,) = world.decisions
        assert "a queue" in told
        assert "token 40ms" in told
        assert world.trusted_at == world.held[1].at

    def test_what_the_tuner_sees_is_kept_to_be_replayed(self, tmp_path: Path) -> None:
        world = LoopbackEnvironment()
        world.serve(service(OBJECTIVES, sheds=True, tuning=TuningStatus()))
        identity = ("team", SERVICE)
        reader = RecordingReader(ScriptedReader(signals(time.time())), identity)

        async def ticks(number: int) -> None:
            for _ in range(number):
                await reader.read({identity: 1})
                await reader.attainment()

        asyncio.run(ticks(3))
        world.steps = reader.steps
        recording = world.recording("live-gated")
        recording.write(tmp_path)
        outcome = (tmp_path / "live-gated.jsonl").read_text().splitlines()
        assert len(outcome) == 3
        assert outcome == recording.replayed()
        assert '"overload"' in gzip.decompress((tmp_path / "live-gated.inputs.jsonl.gz").read_bytes()).decode()


def decision(trigger: str, *, observed: str = "") -> DecisionStatus:
    """One of the tuner's."""
    return DecisionStatus(time="2026-11-22T10:00:00Z", trigger=trigger, observed=observed)


@pytest.mark.parametrize("asked", ["--help", "live --help"])
def test_help_says_what_there_is_and_how_long_it_takes(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", *asked.split()])
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "under a load that shifts, in some 50 minutes" in said
    assert "short phases, in some six" in said
