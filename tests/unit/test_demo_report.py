"""What the demo makes of the requests its load generator reports."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from flyball_engine.contract import Ceilings, CoreState, Limits, Metric, ObjectiveSpec, ReadBack, Setpoint, Shed
from flyball_lab.benchmark.requests import Percentiles
from flyball_lab.demo import report
from flyball_lab.demo.calibration import Calibration, carries
from flyball_lab.demo.errors import DemoError
from flyball_lab.demo.load import point_of
from flyball_lab.demo.main import counted, example, in_force
from flyball_lab.demo.measure import REFUSED, Measured, MeasuredRequest, measure
from flyball_lab.demo.phases import AT_ONCE, NORMAL, calibration, phases, schedule, warm_up
from flyball_lab.demo.view import Now, View
from flyball_lab.demo.watch import DemoSnapshot, Pod, Watcher, counters_of, pod_of
from flyball_operator.api.v1alpha1 import (
    DecisionStatus,
    InferenceService,
    Mode,
    Objective,
    SetpointStatus,
)

FIRST = Objective(name="first", metric=Metric.TIME_TO_FIRST_TOKEN, threshold="500ms", target="95")
TOKEN = Objective(name="token", metric=Metric.TIME_PER_OUTPUT_TOKEN, threshold="50ms", target="95")
STALL = Objective(name="stall", metric=Metric.INTER_TOKEN_LATENCY, threshold="100ms", target="99")


def request(
    ttft: float = 0.1, gaps: Sequence[float] = (0.02, 0.02), *, start: float = 0.0, asked: int = 0, error: str = ""
) -> MeasuredRequest:
    tokens = len(gaps) + 1
    return MeasuredRequest(
        start=start,
        ttft=ttft,
        gaps=tuple(gaps),
        prompt_tokens=10,
        output_tokens=tokens,
        expected_tokens=asked or tokens,
        error=error,
    )


def test_an_objective_is_the_share_of_requests_within_its_threshold() -> None:
    figures = measure([request(0.1), request(0.5), request(0.6), request(2.0)], [FIRST])
    assert figures.met == {"first": 50.0}


def test_a_failed_request_meets_nothing_and_is_counted() -> None:
    figures = measure([request(), request(error="broke off"), request(ttft=0.0, gaps=())], [FIRST, TOKEN, STALL])
    assert figures.failed == 2
    assert figures.met["first"] == figures.met["token"] == pytest.approx(100 / 3)
    assert figures.met["stall"] == 50.0  # two gaps within it, two failures
    assert figures.good == pytest.approx(100 / 3)


def test_a_refused_request_is_neither_failed_nor_hidden() -> None:
    figures = measure([request(), request(2.0), *[request(ttft=0.0, gaps=(), error=REFUSED)] * 2], [FIRST])
    assert (figures.requests, figures.refused, figures.failed) == (4, 2, 0)
    assert figures.met == {"first": 50.0}
    assert (figures.good_let_in, figures.good) == (50.0, 25.0)
    assert not figures.errors


def test_gaps_are_counted_one_by_one_and_a_request_by_their_mean() -> None:
    stalled = request(gaps=(0.01, 0.01, 0.01, 0.2))
    figures = measure([stalled], [STALL])
    assert figures.met["stall"] == 75.0
    assert figures.good == 100.0


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    figures = measure([request(gaps=()), request(gaps=(0.9,))], [TOKEN])
    assert figures.met["token"] == 0.0
    assert figures.good == 50.0


def test_a_stream_that_ends_early_is_truncated() -> None:
    assert measure([request(asked=3), request(asked=9)], []).truncated == 1


def test_rates_are_over_the_time_from_the_first_start_to_the_last_token() -> None:
    figures = measure([request(0.5, (0.5,), start=100.0), request(0.5, (0.5,), start=103.0)], [FIRST])
    assert figures.seconds == 4.0
    assert figures.goodput == pytest.approx(0.5)
    assert figures.tokens_per_second == pytest.approx(1.0)


def test_nothing_measured_gives_no_figures_rather_than_wrong_ones() -> None:
    figures = measure([], [FIRST])
    assert figures.met == {"first": None}
    assert figures.ttft == Percentiles()


def test_percentiles_are_values_that_occurred() -> None:
    assert Percentiles.of(map(float, range(1, 101))) == Percentiles(p50=50.0, p99=99.0)


def test_each_phase_runs_in_both_modes_with_the_same_seed() -> None:
    runs = list(schedule(NORMAL, carried=10.0))
    assert {(run.phase.name, run.mode) for run in runs} == {
        (phase.name, mode) for phase in phases(10.0) for mode in (Mode.DISABLED, Mode.AUTO)
    }
    assert len({run.name for run in (*calibration(), warm_up(NORMAL, carried=10.0), *runs)}) == len(runs) + 4
    for phase in phases(10.0):
        assert len({run.seed for run in runs if run.phase == phase and run.round == 1}) == 1


def test_loads_are_shares_of_what_the_engine_carries() -> None:
    busy = calibration()[-1].phase.streams[0]
    assert busy.count(0.0) == AT_ONCE
    learnt = (warm_up(NORMAL, carried=each).phase for each in (5.0, 50.0))
    for slow, fast in zip((*phases(5.0), next(learnt)), (*phases(50.0), next(learnt)), strict=True):
        for one, other in zip(slow.streams, fast.streams, strict=True):
            assert other.rate == pytest.approx(10 * one.rate, rel=0.1)


def test_a_stream_is_an_open_loop_and_a_closed_one_at_an_infinite_rate() -> None:
    alone, _, busy = calibration()
    heavy = next(run for run in schedule(NORMAL, carried=10.0) if run.phase.name == "heavy")
    points = [point_of(run.phase.streams[0], run=run, url="http://e", model="m") for run in (heavy, alone, busy)]
    assert [(one.rate, one.workload.burstiness, one.concurrency, one.requests) for one in points] == [
        (6.0, 0.2, None, 216),
        (None, None, 1, 8),
        (None, None, AT_ONCE, AT_ONCE),
    ]


def test_what_was_not_all_answered_does_not_tell_what_the_engine_carries() -> None:
    answered = [request(0.5, (0.5,), start=100.0 + number) for number in range(4)]
    assert carries(measure(answered, [FIRST])) == pytest.approx(4 / 4.0)
    with pytest.raises(DemoError, match="of 4 requests at once 1 were not answered"):
        carries(measure([*answered[:3], request(error="broke off")], [FIRST]))


def service(**spec: object) -> InferenceService:
    """The demo's, with this of its spec changed."""
    manifest = example("engine:1")
    manifest["metadata"]["uid"] = "uid"
    manifest["spec"] |= spec
    return InferenceService.model_validate(manifest)


def calibrated(*alone: float, carried: float = 10.0) -> Calibration:
    """Of a machine that took so long for prompts sent alone, after a cold one, and 20 ms for a token of a few chats."""
    requests = [request(first, start=100.0 + number) for number, first in enumerate((9.0, *alone))]
    few = measure([request(0.3, (0.02,) * 9)] * 4, ())
    busy = measure([request(1.0, (), start=number / carried) for number in range(96)], ())
    found = Calibration.of(requests, few, busy)
    return Calibration(first=found.first, worst=found.worst, token=found.token, carried=carried)


def test_thresholds_are_multiples_of_what_the_machine_takes() -> None:
    wished = service().spec.objectives
    fast, slow = (list(calibrated(*times).objectives(wished)) for times in ((0.8, 0.8, 0.9), (1.6, 1.6, 1.8)))
    assert [each["threshold"] for each in fast] == ["4s", "80ms", "260ms"]
    assert [each["threshold"] for each in slow] == ["8s", "80ms", "530ms"]
    assert [(each["name"], each["metric"], each["target"]) for each in fast] == [
        (each.name, each.metric.value, each.target) for each in wished
    ]


def test_a_machine_that_cannot_compare_is_told_so_and_what_to_do() -> None:
    assert not calibrated(0.8, 0.8, 0.9).unfair
    for found, why, mend in (
        (calibrated(8.0, 8.0, 8.1, carried=0.6), "too slow", "newer processors"),
        (calibrated(0.8, 0.8, 0.8, 2.4), "too busy", "End what else runs here"),
    ):
        assert why in found.unfair
        assert mend in found.unfair
        assert "hack/demo --anyway" in found.unfair


def test_what_was_not_answered_calibrates_nothing() -> None:
    broken = [request(0.8, error="broke off"), request(0.8, start=1.0)]
    with pytest.raises(DemoError, match="not all requests of the calibration were answered"):
        Calibration.of(broken, measure([request()], ()), measure([request()], ()))


def test_the_engine_counts_by_new_thresholds_once_it_has_them() -> None:
    wished = list(calibrated(0.8, 0.8).objectives(service().spec.objectives))
    patched = service(objectives=wished)
    specs = tuple(
        ObjectiveSpec(metric=each.metric, threshold_seconds=each.threshold_seconds) for each in patched.spec.objectives
    )
    before = snapshot(mode=Mode.DISABLED, accepted=Setpoint(service="uid", epoch=1, generation=1))
    after = snapshot(mode=Mode.DISABLED, accepted=Setpoint(service="uid", epoch=1, generation=2, objectives=specs))
    assert not counted(after, wished), "the service is as it was"
    assert not counted(replace(before, service=patched), wished), "the engine is as it was"
    assert counted(replace(after, service=patched), wished)


def test_counters_are_read_from_an_exposition() -> None:
    exposition = (
        "# TYPE flyball_objective_requests_total counter\n"
        'flyball_objective_requests_total{objective="TimeToFirstToken/0.5",outcome="met"} 7.0\n'
        "flyball_running 3.0\n"
    )
    assert counters_of(exposition) == {("flyball_objective_requests_total", "TimeToFirstToken/0.5", "met"): 7.0}


def test_a_pod_says_why_it_does_not_run() -> None:
    waiting = {
        "name": "engine",
        "ready": False,
        "restartCount": 2,
        "state": {"waiting": {"reason": "ImagePullBackOff"}},
    }
    pod = pod_of({"metadata": {"name": "chat-1", "uid": "u"}, "status": {"containerStatuses": [waiting]}})
    assert pod == Pod(name="chat-1", uid="u", ready=False, restarts=2, problem="ImagePullBackOff")


def snapshot(
    *,
    mode: Mode,
    setpoint: tuple[int, int] = (128, 2048),
    effective: tuple[int, int] = (128, 2048),
    deadline: str | None = None,
    accepted: Setpoint | None = None,
) -> DemoSnapshot:
    manifest = example("engine:1")
    manifest["metadata"]["uid"] = "uid"
    named = SetpointStatus(
        max_num_active_seqs=setpoint[0], max_num_scheduled_tokens=setpoint[1], first_token_deadline=deadline
    )
    manifest["status"] = {"tuning": {"mode": mode.value, "setpoint": named.model_dump(by_alias=True)}}
    limits = Limits(max_num_active_seqs=effective[0], max_num_scheduled_tokens=effective[1])
    core = CoreState(
        engine=0,
        applied=None,
        effective=limits,
        start=limits,
        ceilings=Ceilings(max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=4096),
        running=0,
        waiting=0,
        kv_cache_usage=0.0,
        kv_cache_tokens=1000,
        watchdog_trips=0,
        longest_step_seconds=0.0,
    )
    engine = ReadBack(
        service="uid", plugin_version="1", engine_version="1", governed=True, accepted=accepted, cores=(core,)
    )
    return DemoSnapshot(service=InferenceService.model_validate(manifest), engine=engine)


def test_a_mode_is_in_force_when_the_engine_runs_under_the_limits_of_the_status() -> None:
    assert in_force(snapshot(mode=Mode.AUTO, setpoint=(16, 256), effective=(16, 256)), Mode.AUTO)
    assert not in_force(snapshot(mode=Mode.AUTO, setpoint=(16, 256), effective=(128, 2048)), Mode.AUTO)
    assert not in_force(snapshot(mode=Mode.DISABLED, setpoint=(128, 2048), effective=(128, 2048)), Mode.AUTO)


def test_disabled_is_in_force_only_at_the_upper_bounds() -> None:
    assert in_force(snapshot(mode=Mode.DISABLED, setpoint=(128, 2048), effective=(128, 2048)), Mode.DISABLED)
    assert not in_force(snapshot(mode=Mode.DISABLED, setpoint=(16, 256), effective=(16, 256)), Mode.DISABLED)


def test_a_deadline_is_in_force_when_the_engine_has_it_and_gone_when_not() -> None:
    gated = Setpoint(service="uid", epoch=1, generation=2, shed=Shed(ttft_deadline_seconds=4.0, margin=0.85))
    assert in_force(snapshot(mode=Mode.AUTO, deadline="4s", accepted=gated), Mode.AUTO)
    assert not in_force(snapshot(mode=Mode.AUTO, deadline="4s"), Mode.AUTO)
    assert not in_force(snapshot(mode=Mode.DISABLED, accepted=gated), Mode.DISABLED)


def result(mode: Mode, requests: Sequence[MeasuredRequest], counted: float) -> report.RunResult:
    return report.RunResult(
        phase="long prompts",
        mode=mode,
        round=1,
        began=0.0,
        measured=measured(requests),
        counted={"first": counted},
        setpoint=SetpointStatus(max_num_active_seqs=16, max_num_scheduled_tokens=256),
    )


def measured(requests: Sequence[MeasuredRequest]) -> Measured:
    return measure(requests, [FIRST])


def test_the_report_names_retunes_ratios_and_the_pod() -> None:
    pod = report.PodIdentity(name="chat-1", uid="uid", restarts=0)
    results = report.Results(
        objectives=(FIRST,),
        runs=[
            result(Mode.DISABLED, [request(0.6), request(0.1)], 50.0),
            result(Mode.AUTO, [request(0.1), request(0.1)], 98.0),
        ],
        decisions=[DecisionStatus(time="2026-11-21T10:00:05Z", trigger="gaps were too long")],
        carried=10.0,
        pod_before=pod,
        pod_after=pod,
    )
    out = io.StringIO()
    report.show(results, Console(file=out, width=150))
    text = out.getvalue()
    assert "gaps were too long" in text
    assert "+50.0 points" in text
    assert "0 restarts" in text
    assert "at most 2.0 points apart (long prompts, Auto, first)" in text


def crowded() -> report.Results:
    """As wide as it gets: the demo's objectives and phases, long latencies, all kinds of limits."""
    objectives = tuple(Objective.model_validate(each) for each in example("engine:1")["spec"]["objectives"])
    ends = SetpointStatus(
        max_num_active_seqs=128,
        max_num_scheduled_tokens=2048,
        long_prefill_token_threshold=1024,
        step_budget="1250ms",
        first_token_deadline="4s",
    )
    slow = [request(27.79, (1.996, 1.2)), *[request(ttft=0.0, gaps=(), error=REFUSED)] * 1221]
    fast = [request(0.01, (0.01,) * 23, start=number / 10) for number in range(1222)]
    runs = [
        report.RunResult(
            phase=run.phase.title,
            mode=run.mode,
            round=1,
            began=0.0,
            measured=measure(slow if run.mode is Mode.DISABLED else fast, objectives),
            counted={},
            setpoint=ends,
        )
        for run in schedule(NORMAL, carried=10.0)
    ]
    trigger = "tpot binds at 5/s per core of 1280+360 tokens, 120 waiting; predicted ttft 3300ms, tpot 180ms"
    decision = DecisionStatus(time="2026-11-21T10:00:05Z", trigger=trigger, before=ends, after=ends)
    pod = report.PodIdentity(name="chat-1", uid="uid", restarts=0)
    return report.Results(
        objectives=objectives, carried=10.0, runs=runs, decisions=[decision], pod_before=pod, pod_after=pod
    )


def test_the_readme_has_a_row_for_each_run() -> None:
    lines = report.figure_table(crowded()).markdown().splitlines()
    assert lines[0].startswith("|phase|tuning|first-token ")
    assert lines[2].startswith("|light chat|Disabled|")
    assert lines[2].endswith("|1221/1222|0|")
    assert len(lines) == 2 + len(crowded().runs)


class Seen(Watcher):
    """A watcher that has read this, and reads no more."""

    def __init__(self, latest: DemoSnapshot, decisions: Sequence[DecisionStatus]) -> None:
        self.latest = latest
        self.decisions = {(each.time, each.trigger): each for each in decisions}


@pytest.mark.parametrize("width", [80, 100, 150])
def test_every_cell_is_readable_on_a_narrow_terminal(width: int) -> None:
    out = io.StringIO()
    results = crowded()
    report.show(results, Console(file=out, width=width))
    text = out.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    rows = [line for line in text.splitlines() if line.startswith("│")]
    words = " ".join(text.replace("│", " ").split())
    for phase in {run.phase for run in results.runs}:
        assert sum(phase in row and "Disabled" in row for row in rows) == 4, phase
    for cell in (
        "first-token",
        "4s, 95 %",
        "refused",
        "failed",
        "1222",
        "1221",
        "0.0 %",
        "100.0 %",
        "27800 / 27800",
        "1200 / 2000",
        "128 seqs",
        "1250ms",
    ):
        assert cell in words, cell
    for word in results.decisions[0].trigger.split():
        assert word in words, word


def test_what_is_shown_meanwhile_is_readable_on_a_narrow_terminal() -> None:
    results, seen = crowded(), snapshot(mode=Mode.AUTO)
    view = View(Console(file=io.StringIO(), width=80), Seen(seen, results.decisions))
    view.objectives = results.objectives
    for run in (*calibration(), warm_up(NORMAL, carried=10.0), *schedule(NORMAL, carried=10.0)):
        view.now = Now(run=run)
        out = io.StringIO()
        Console(file=out, width=80).print(view.panel())
        assert "…" not in out.getvalue()
        assert max(map(len, out.getvalue().splitlines())) <= 80


def test_the_report_says_when_the_pod_changed() -> None:
    results = report.Results(
        objectives=(FIRST,),
        carried=10.0,
        pod_before=report.PodIdentity(name="chat-1", uid="a", restarts=0),
        pod_after=report.PodIdentity(name="chat-1", uid="a", restarts=1),
    )
    assert any("CHANGED" in line for line in report.closing_lines(results))
