"""What `hack/bench` reckons with: time between two classes, pairs of runs, arrivals."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flyball_engine.vllm import plugin
from flyball_lab.benches import main
from flyball_lab.benches.engine import bare, cost, fuzz, hooks, timed_steps
from flyball_lab.benches.engine.engines import WarmEngines, Where
from flyball_lab.benches.engine.load import Ask, Prompts, RequestResult, SentLoad, closed, open_loop, poisson
from flyball_lab.benches.engine.step_budget import NEIGHBOUR_STEPS, tokens_kept
from flyball_lab.benches.engine.timed_steps import read_steps
from flyball_lab.harness.scheduler_scenario import Scenario
from flyball_lab.tools.fuzz import Fuzz


class Clock:
    """Time that passes when someone works."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def thread_time(self) -> float:
        return self.now / 2

    def work(self, seconds: float) -> None:
        self.now += seconds


CLOCK = Clock()


class Scheduler:
    """Stands for vLLM's: planning takes a while, and finishing is called from within the update."""

    def __init__(self) -> None:
        self.finished = 0

    def schedule(self) -> Any:
        CLOCK.work(0.004)
        return SimpleNamespace(total_num_scheduled_tokens=20, num_scheduled_tokens={"a": 1, "b": 19})

    def add_request(self, request: str) -> None:
        del request

    def update_from_output(self, scheduler_output: Any) -> None:
        del scheduler_output
        self.finish_requests("a")

    def finish_requests(self, name: str) -> None:
        del name
        self.finished += 1


def governed(base: type[Any]) -> type[Any]:
    """Stands for ours: takes 2 ms of each step, in two places."""

    class Governed(base):  # type: ignore[misc] # that is the point
        def schedule(self) -> Any:
            CLOCK.work(0.001)
            return base.schedule(self)

        def finish_requests(self, name: str) -> None:
            base.finish_requests(self, name)
            CLOCK.work(0.001)

    return Governed


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that the plugin makes of `Scheduler` where the bench looks on."""
    monkeypatch.setenv(timed_steps.VARIABLE, str(tmp_path / "steps"))
    monkeypatch.setattr(plugin, "governed_class", governed)
    monkeypatch.setattr(timed_steps, "time", CLOCK)
    timed_steps.register()
    timed_steps.register()  # vLLM does
    return vars(plugin)["governed_class"](Scheduler)


def test_what_is_added_to_a_step_is_what_the_engine_s_own_methods_do_not_take(timed: Any, tmp_path: Path) -> None:
    scheduler = timed()
    for _ in range(5):
        scheduler.add_request("a")
        scheduler.update_from_output(scheduler.schedule())
    assert scheduler.finished == 5
    steps = read_steps(tmp_path / "steps")
    assert [(step.tokens, step.requests, step.mixed) for step in steps] == [(20, 2, True)] * 5
    assert [step.added for step in steps] == pytest.approx([0.002] * 5)
    assert [step.worked for step in steps] == pytest.approx([0.001] * 5)
    assert [step.seconds for step in steps] == pytest.approx([0.006] * 5)
    assert len(read_steps(tmp_path / "steps", since=(tmp_path / "steps").stat().st_size)) == 0


def test_without_a_file_to_write_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(timed_steps.VARIABLE, raising=False)
    monkeypatch.setattr(plugin, "governed_class", governed)
    timed_steps.register()
    assert vars(plugin)["governed_class"] is governed


def test_an_interval_of_pairs_holds_the_ratio_and_says_how_many_would_be_needed() -> None:
    random = Random(1)
    pairs = [math.log(0.99) + random.gauss(0, 0.05) for _ in range(100)]
    told = cost.interval(pairs)
    assert told["from"] < 0.99 < told["to"]
    needed = told[f"pairs for an interval of ±{cost.HALF_WIDTH:g}"]
    assert 30 < needed < 60
    assert cost.interval(pairs[:10])["to"] > told["to"]


@pytest.mark.parametrize(("freedom", "quantile"), [(7, 2.3646), (15, 2.1314), (60, 2.0003)])
def test_quantiles_of_few_pairs_are_student_s(freedom: int, quantile: float) -> None:
    assert cost.student(0.975, freedom) == pytest.approx(quantile, abs=0.005)


def test_the_processor_time_of_a_session_is_that_of_its_processes() -> None:
    assert cost.processor_seconds(2**30) == 0
    assert cost.processor_seconds(os.getsid(0)) > 0


def test_the_processor_time_of_a_child_that_ended_is_not_lost() -> None:
    work = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    code = f"import subprocess, sys; subprocess.run({work!r}); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert cost.processor_seconds(process.pid) >= 0.45
        process.stdin.close()


@pytest.fixture
def sessions() -> Iterator[list[int]]:
    """Three processes, each with a session of its own."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)) for _ in range(3)
        ]
        for process in started:
            stack.callback(process.kill)
        yield [process.pid for process in started]


def test_clients_share_the_bench_s_processor_while_engines_have_the_others(sessions: Sequence[int]) -> None:
    governed, stock, clients = sessions
    engines = WarmEngines(
        Where("python"),
        cast("Any", SimpleNamespace(server=SimpleNamespace(process=SimpleNamespace(pid=governed)))),
        cast("Any", SimpleNamespace(process=SimpleNamespace(pid=stock))),
        cast("Any", SimpleNamespace(session=clients)),
    )
    everyone = (0, governed, stock, clients)
    before = [os.sched_getaffinity(one) for one in everyone]
    first, *others = engines.processors
    with engines.apart(), engines.apart():
        assert os.sched_getaffinity(0) == os.sched_getaffinity(clients) == {first}
        assert os.sched_getaffinity(governed) == os.sched_getaffinity(stock) == set(others or [first])
    assert [os.sched_getaffinity(one) for one in everyone] == before


def test_what_the_generator_is_told_of_a_load() -> None:
    wanted = [Ask([1, 2], 3, 0.5)]
    told = {"url": "http://there", "model": "chat", "requests": [([1, 2], 3, 0.5)]}
    assert open_loop("http://there", wanted, patience=7.0).order() == told | {
        "streams": None,
        "seconds": None,
        "patience": 7.0,
    }
    loop = closed("http://there", wanted, streams=4).order()
    assert loop == told | {"streams": 4, "seconds": None, "patience": 0.0}
    endless = closed("http://there", itertools.repeat(wanted[0]), streams=4, seconds=2.0)
    assert endless.order()["seconds"] == 2.0


def test_what_the_generator_says_of_a_load() -> None:
    answered = {"status": 200, "ttft": 0.2, "latency": 0.5, "output_tokens": 3}
    refused = {"status": 503, "ttft": None, "latency": None, "output_tokens": 0}
    stream = {"duration": 1.5, "requests": [answered, refused]}
    sent = SentLoad.of(open_loop("http://there", [Ask([1], 3)] * 2, patience=7.0), stream)
    assert sent == SentLoad([RequestResult(200, 0.2, 0.5, 3), RequestResult(503)], 1.5)
    assert [(result.refused, result.in_time(0.2), result.in_time(0.1)) for result in sent.results] == [
        (False, True, False),
        (True, False, False),
    ]


def test_a_closed_loop_that_had_too_few_requests_for_its_time_is_no_measurement() -> None:
    load = closed("http://there", [Ask([1], 3)], streams=1, seconds=2.0)
    answered = {"status": 200, "ttft": 0.1, "latency": 0.2, "output_tokens": 3}
    with pytest.raises(RuntimeError, match="1 requests were too few for 2 s"):
        SentLoad.of(load, {"duration": 1.9, "requests": [answered]})
    with pytest.raises(RuntimeError, match="http://there answered none of 1 requests"):
        SentLoad.of(load, {"duration": 1.9, "requests": [{**answered, "status": -1}]})
    assert SentLoad.of(load, {"duration": 2.1, "requests": []}).seconds == 2.1


def test_arrivals_come_at_their_rate_and_prompts_share_what_they_should() -> None:
    random = Random(2)
    arrivals = list(poisson(random, rate=10.0, seconds=100.0))
    assert arrivals == sorted(arrivals)
    assert 850 < len(arrivals) < 1150
    prompts = Prompts(random, shared=[7, 8])
    first, second = prompts.of(5), prompts.of(5)
    assert (first[:2], len(first)) == ([7, 8], 7)
    assert first[2:] != second[2:]


@pytest.mark.parametrize(("name", "accepted"), [("engine", "vllm-gate"), ("gpu", "fuzz")])
def test_a_part_that_there_is_none_of_is_named_with_those_there_are(
    name: str, accepted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", name, "--part", "speed"])
    assert main.run() == 2
    told = capsys.readouterr().err
    assert "no part speed" in told
    assert accepted in told


def test_every_part_can_be_measured() -> None:
    for modules in (*main.SIMULATED.values(), *main.REAL.values(), *main.BARE.values()):
        for module in modules.values():
            assert callable(importlib.import_module(f"{main.BENCHES}.{module}").measure)


def test_a_part_that_fails_loses_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy() -> main.Figures:
        raise RuntimeError("too busy")

    for name, measure in {"bad": busy, "good": lambda: {"all": {"steps": 3.0}}}.items():
        monkeypatch.setitem(sys.modules, f"{main.BENCHES}.{name}", SimpleNamespace(measure=measure))
    monkeypatch.setattr(main, "SIMULATED", {"engine": {"bad": "bad", "good": "good"}})
    monkeypatch.setattr(sys, "argv", ["bench", "engine", "--part", "bad", "good"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main.run() == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["figures"] == {"good": {"all": {"steps": 3.0}}}
    assert said["failed"] == {"bad": "RuntimeError: too busy"}


def test_a_scenario_in_which_vllm_itself_raises_is_named() -> None:
    def asserts(_: Scenario) -> dict[str, Any]:
        raise AssertionError("running > slots")

    fuzz = Fuzz()
    fuzz.play(Scenario(seed=7), asserts)
    (failure,) = fuzz.failures
    assert failure["scenario"]["seed"] == 7
    assert failure["wrong"] == {"raised": "AssertionError: running > slots"}


@pytest.mark.parametrize("part", [hooks, fuzz])
def test_what_the_python_of_vllm_runs_is_there(part: Any) -> None:
    assert importlib.util.find_spec(f"{bare.TOOLS}.{part.MODULE}") is not None


@pytest.mark.parametrize("steps", NEIGHBOUR_STEPS)
def test_short_answers_keep_their_time_beside_a_neighbour_that_comes_and_goes(steps: int) -> None:
    assert tokens_kept(steps, seed=1, seconds=30.0) >= 0.95
    assert tokens_kept(steps, seed=1, seconds=30.0, biased=False) < 0.85, "the load is one that needs it"
