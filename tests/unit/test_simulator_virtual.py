"""Runs of the simulated engine in virtual time: loads, traces, and what happens to an engine."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median, quantiles

import pytest

from flyball_engine.contract import Metric, ObjectiveSpec, QueueLimits, Shed
from flyball_lab.simulator.lengths import SHAPES, around
from flyball_lab.simulator.main import main
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Fate
from flyball_lab.simulator.virtual import build, crash, retune, run, slow_down
from flyball_lab.simulator.workload import ArrivalPhase, TraceError, read_trace, workload
from support.simulated import a_budget, a_core, a_request, a_setpoint, submitted

CHAT = SHAPES["conversation"]


def test_conversations_are_as_long_as_those_of_the_trace() -> None:
    random = Random(1)
    prompts = [CHAT.prompt.draw(random) for _ in range(40_000)]
    outputs = [CHAT.output.draw(random) for _ in range(40_000)]
    assert fmean(prompts) == pytest.approx(1155, rel=0.03)
    assert fmean(outputs) == pytest.approx(211, rel=0.03)
    assert median(prompts) == pytest.approx(1020, rel=0.05)
    assert quantiles(prompts, n=100)[89] == pytest.approx(2734, rel=0.05)
    assert quantiles(outputs, n=100)[98] == pytest.approx(601, rel=0.08)


@pytest.mark.parametrize(
    ("name", "prompt", "output"), [("code", 1500, 28), ("long-chat", 6900, 340), ("retrieval", 25_000, 32)]
)
def test_other_loads_have_the_published_lengths(name: str, prompt: int, output: int) -> None:
    random, shape = Random(2), SHAPES[name]
    assert median(shape.prompt.draw(random) for _ in range(20_000)) == pytest.approx(prompt, rel=0.05)
    assert fmean(shape.output.draw(random) for _ in range(20_000)) == pytest.approx(output, rel=0.15)


@pytest.mark.parametrize("variation", [0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_variation_asked_for(variation: float) -> None:
    found = workload([ArrivalPhase(seconds=4000, rate=5, shape=around(10, 10), variation=variation)], Random(3))
    assert len(found) == pytest.approx(20_000, rel=0.1)
    gaps = [later.arrival - earlier.arrival for earlier, later in pairwise(found)]
    mean = fmean(gaps)
    assert (fmean((gap - mean) ** 2 for gap in gaps) ** 0.5) / mean == pytest.approx(variation, rel=0.1)


def test_phases_follow_each_other_and_groups_run_side_by_side() -> None:
    shape = around(10, 10)
    both = [ArrivalPhase(seconds=10, rate=2, shape=shape), ArrivalPhase(seconds=10, rate=3, shape=shape, burst=5)]
    found = workload([ArrivalPhase(seconds=10, rate=0, shape=shape), both], Random(4))
    assert 10 < found[0].arrival < found[-1].arrival < 20
    assert [request.arrival for request in found] == sorted(request.arrival for request in found)


def test_the_same_seed_is_the_same_run() -> None:
    def play(*, arrivals: int = 5, steps: int = 7) -> list[tuple[float, float]]:
        requests = workload([ArrivalPhase(seconds=20, rate=10, shape=CHAT)], Random(arrivals))
        run(build(PRESETS["h100-8b"], seed=steps), requests, until=60)
        return [(request.first_token or 0.0, request.ended) for request in requests]

    assert play() == play()
    assert play(arrivals=6) != play()
    assert play(steps=8) != play()


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_a_trace_is_read_by_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"{HEADER}2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
    first, second = read_trace(path)
    assert (first.arrival, first.prompt, first.output) == (0.0, 374, 44)
    assert second.arrival == pytest.approx(4.314579)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEADER, "has no requests"),
        ("", "no column TIMESTAMP, ContextTokens, GeneratedTokens in its first line; accepted: CSV with columns"),
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n",
            "trace.csv has no column GeneratedTokens in its first line; accepted: CSV with columns TIMESTAMP,",
        ),
        (HEADER + "2023-11-16 18:15:46,374,many\n", "line 2: GeneratedTokens: 'many'; accepted: a whole number"),
        (HEADER + "2023-11-16 18:15:46,374\n", "line 2: GeneratedTokens: 'nothing'; accepted: a whole number"),
        (
            HEADER + "2023-11-16 18:15:46,374,44\n2023-11-16 18:15:45,374,44\n",
            "line 3: TIMESTAMP is before that of the line above; accepted: in order",
        ),
        (HEADER + "yesterday,374,44\n", "line 2: TIMESTAMP: 'yesterday'; accepted: a time such as 2023-11-16"),
    ],
)
def test_a_trace_of_another_form_is_refused_by_its_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=why):
        read_trace(path)


def test_an_absent_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*absent\.csv"):
        read_trace(tmp_path / "absent.csv")


def test_clients_give_up_while_they_wait_and_make_room_for_others() -> None:
    core = a_core(seqs=1)
    requests = [a_request(16, 200), a_request(16, 10, patience=0.5), a_request(16, 10)]
    core.follow(a_setpoint(objectives=(ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.3),)))
    played = run(core, requests, until=100)
    assert [request.fate for request in requests] == [Fate.FINISHED, Fate.LEFT, Fate.FINISHED]
    assert requests[1].ended == 0.5
    assert played.counts.requests["abandoned"] == 1


def test_a_client_that_has_its_first_token_stays() -> None:
    core = a_core()
    (request,) = requests = [a_request(16, 300, patience=0.1)]
    run(core, requests, until=100)
    assert request.fate is Fate.FINISHED


def test_a_client_may_leave_in_the_middle_of_its_answer() -> None:
    core = a_core()
    core.submit([request := a_request(16, 300)])
    core.run(1.0)
    core.leave(request, 1.0)
    core.run(10.0)
    assert request.fate is Fate.LEFT
    assert 50 < request.made < 150
    assert core.scheduler.used_blocks() == 0
    assert core.ledger.collect().requests["aborted"] == 1


def test_setpoints_take_effect_on_the_way() -> None:
    requests = [a_request(16, 100, at=at) for at in (0.0, 0.0, 0.0, 0.0, 5.0, 5.0, 5.0, 5.0)]
    core = a_core()
    run(core, requests, until=100, events=[retune(4.0, a_setpoint(active=1))])
    assert len({request.first_token for request in requests[:4]}) == 1, "together before"
    assert len({request.first_token for request in requests[4:]}) == 4, "one by one after"


def test_a_deadline_refuses_what_would_come_too_late_and_keeps_the_others_in_time() -> None:
    first = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=2.0)
    goodput = {}
    for shed in (None, Shed(ttft_deadline_seconds=2.0)):
        core = a_core(seqs=16, tokens=512)
        overload = workload([ArrivalPhase(seconds=60, rate=20, shape=around(200, 20))], Random(6))
        setpoint = a_setpoint(objectives=(first,), step=a_budget(0.3), shed=shed)
        played = run(core, overload, until=120, events=[retune(0.0, setpoint)])
        goodput[shed is not None] = played.counts.objectives[first.id, "met"]
        refused = [request for request in overload if request.fate is Fate.SHED]
        assert played.counts.requests["refused"] == len(refused)
        assert bool(refused) == (shed is not None)
    assert played.counts.objectives[first.id, "violated"] < 0.2 * goodput[True]
    assert goodput[True] > 2 * goodput[False]


def test_a_slow_down_lasts_until_it_is_lifted() -> None:
    requests = [a_request(16, 100, at=at) for at in (0.0, 10.0, 20.0)]
    run(a_core(), requests, until=100, events=[slow_down(9.0, 2.0), slow_down(19.0, 1.0)])
    first, slowed, last = (request.ended - request.arrival for request in requests)
    assert slowed == pytest.approx(2 * first)
    assert last == pytest.approx(first)


def test_a_crash_fails_what_runs_and_refuses_until_it_is_back() -> None:
    requests = [a_request(16, 1000), a_request(16, 10, at=4.0), a_request(16, 10, at=9.0)]
    core = a_core()
    events = [retune(1.0, a_setpoint(active=1)), crash(3.0, start_seconds=5.0)]
    played = run(core, requests, until=100, events=events)
    assert [request.fate for request in requests] == [Fate.FAILED, Fate.REFUSED, Fate.FINISHED]
    assert requests[0].ended == 3.0
    assert core.governed.applied is None, "a restarted engine has no setpoint"
    assert (played.counts.requests["error"], played.counts.requests["refused"]) == (1, 1)


def test_what_no_context_can_hold_is_refused() -> None:
    (request,) = requests = [a_request(4000, 200)]
    run(a_core(model_len=4096), requests, until=10)
    assert request.fate is Fate.REFUSED


def test_the_command_line_plays_a_load_and_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--seconds", "30", "--rate", "4", "--tokens", "1024"])
    told = capsys.readouterr().out
    assert "finished" in told
    assert "met TimeToFirstToken/0.5" in told
    assert "requests a step" in told
    assert "times real time" in told


def test_the_command_line_plays_a_trace_and_refuses_what_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:20:46,374,44\n")
    main(["run", "--seconds", "60", "--trace", str(path)])
    assert "requests   1 in 60 s: 1 finished" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", "--trace", str(tmp_path / "absent.csv")])
    assert "cannot read" in capsys.readouterr().err


def test_the_limits_of_the_queue_refuse_until_prompts_are_processed_or_the_setpoint_expires() -> None:
    core = a_core(seqs=1, tokens=128)
    tokens = QueueLimits(max_num_queued_tokens=500)
    held = a_setpoint(1, expires=60.0).model_copy(update={"queue": tokens})
    core.follow(held)
    fates = [one.fate for one in submitted(core, *(a_request(400, 8) for _ in range(3)))]
    assert fates == [Fate.OPEN, Fate.OPEN, Fate.SHED], "the last one let in may pass the limit"
    core.run(50.0)
    (later,) = submitted(core, a_request(400, 8, at=50.0))
    assert later.fate is Fate.OPEN
    core.follow(held.model_copy(update={"queue": QueueLimits(max_num_queued_reqs=0)}))
    (refused, expired) = submitted(core, a_request(at=100.0), a_request(at=111.0))
    assert refused.fate is Fate.SHED
    assert expired.fate is Fate.OPEN
