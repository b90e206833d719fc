"""Prompts of which the prefix cache has more of some than of others: what is computed of them is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from flyball_lab.benches.law.closed_loop import sample, signals_between
from flyball_lab.harness.tuning import TPOT, TTFT, tuning
from flyball_lab.simulator.presets import PRESETS
from flyball_lab.simulator.requests import Prefix, Request
from flyball_lab.simulator.virtual import build, run
from flyball_operator.cli.plan.modelled import capacity_of
from flyball_operator.tuning.control_input import Workload
from flyball_operator.tuning.decide import decide
from flyball_operator.tuning.estimate.workload import WorkloadEstimator
from flyball_operator.tuning.observe.signals import PromptSums, RequestLoad, Signals, StepWindow
from flyball_operator.tuning.spec import TuningSpec
from flyball_operator.tuning.state import start

SECONDS = 240.0


def chats() -> list[Request]:
    """First turns of 8,000 tokens, and nine later ones of 200 more, which find all that was said before."""
    random, requests = Random(1), list[Request]()
    for number in range(60):
        prefix, began = Prefix(f"chat-{number}", 8000), random.uniform(0.0, SECONDS)
        requests.append(Request(began, 8001, 50, prefix=prefix))
        requests += [Request(began + 10.0 * turn, 8200, 50, prefix=prefix) for turn in range(1, 10)]
    return sorted(requests, key=lambda request: request.arrival)


def short_and_long() -> list[Request]:
    """Prompts of 120 and of 1,500 tokens; all of one length begin with the same half."""
    random, requests = Random(2), list[Request]()
    for prompt, rate in ((120, 3.0), (1500, 2.0)):
        prefix, at = Prefix(f"all of {prompt}", prompt // 2), 0.0
        while (at := at + random.expovariate(rate)) < SECONDS:
            requests.append(Request(at, prompt, 20, prefix=prefix))
    return sorted(requests, key=lambda request: request.arrival)


def instructed(prompt: int = 8200, output: int = 300) -> list[Request]:
    """All begin with the same 8,000 tokens; ten come in a second."""
    prefix = Prefix("instructions", 8000)
    return [Request(0.1 * number, prompt, output, prefix=prefix) for number in range(int(10 * SECONDS))]


def computed(requests: Sequence[Request]) -> float:
    """Tokens that are computed of the prompt that a computed token is in, in the mean."""
    each = [request.prompt - (request.cached or 0) for request in requests]
    return sum(tokens**2 for tokens in each) / sum(each)


def seen(requests: Sequence[Request]) -> Signals:
    """What an engine shows of them, over the whole time."""
    core = build(PRESETS["h100-8b"])
    before = sample(core)
    run(core, requests, until=max(request.arrival for request in requests) + 60.0)
    return signals_between(before, sample(core), core, tuning(TTFT, TPOT), cores=1)


def estimated(*windows: Signals) -> Workload:
    """What the law makes of windows, one after the other."""
    estimator = WorkloadEstimator()
    for number, signals in enumerate(windows):
        assert isinstance(signals.load, RequestLoad)
        assert isinstance(signals.steps, StepWindow)
        estimator = estimator.after(signals.load, signals.steps, at=15.0 * number, seconds=15.0)
    assert isinstance(windows[-1].load, RequestLoad)
    found = estimator.workload(windows[-1].load, cores=1)
    assert found is not None
    return found


def older(signals: Signals) -> Signals:
    """The same of a plugin that does not count what is computed of each prompt."""
    assert isinstance(signals.steps, StepWindow)
    return replace(signals, steps=replace(signals.steps, prompts=None))


def test_the_long_first_turns_of_chats_are_what_others_wait_for() -> None:
    requests = chats()
    signals = seen(requests)
    assert computed(requests) > 6000
    assert estimated(signals).weighted_prompt == pytest.approx(computed(requests), rel=0.01)
    assert estimated(older(signals)).weighted_prompt < 2000, "as if first turns had as much in the cache as the others"


def test_of_long_prompts_what_is_cached_is_not_waited_for_though_short_ones_have_less_there() -> None:
    requests = short_and_long()
    signals = seen(requests)
    assert computed(requests) < 760
    assert estimated(signals).weighted_prompt == pytest.approx(computed(requests), rel=0.01)
    assert estimated(older(signals)).weighted_prompt > 1200, "as if all had as much in the cache as the mean prompt"


def test_before_a_request_ended_prompts_are_as_long_as_steps_show_but_for_what_was_cached() -> None:
    signals = seen(short_and_long())
    assert isinstance(signals.load, RequestLoad)
    assert isinstance(signals.steps, StepWindow)
    nobody = replace(signals.load, finished=0.0, prompt_tokens=0.0, cached_tokens=0.0, generated_tokens=0.0)
    estimator = WorkloadEstimator().after(nobody, signals.steps, at=0.0, seconds=15.0)
    first = estimator.first_workload(nobody, cores=1)
    assert first is not None
    assert first.uncached == pytest.approx(first.weighted_prompt)
    assert first.uncached < 760
    assert 1300 < first.prompt < 1500
    assert estimator.workload(nobody, cores=1) is None


def test_once_the_engines_are_older_ones_what_newer_ones_counted_is_forgotten() -> None:
    signals = seen(short_and_long())
    assert estimated(older(signals), signals).weighted_prompt < 760
    assert estimated(signals, older(signals)).weighted_prompt == pytest.approx(
        estimated(older(signals)).weighted_prompt
    )


@pytest.mark.parametrize("squares", [0.0, 1e300])
def test_of_what_cannot_be_no_prompt_is_longer_than_where_its_tokens_stand(squares: float) -> None:
    signals = seen(short_and_long())
    assert isinstance(signals.steps, StepWindow)
    claimed = replace(signals.steps, prompts=PromptSums(tokens=1.0, squares=squares))
    found = estimated(replace(signals, steps=claimed))
    assert found.uncached <= found.weighted_prompt <= 2.0 * found.attention


def test_a_prefix_that_running_requests_share_takes_memory_once() -> None:
    core, requests, windows = build(PRESETS["h100-8b"]), instructed(), list[Signals]()
    run(core, requests[:600], until=60.0)
    for end in (75.0, 90.0, 105.0):
        before = sample(core)
        run(core, [request for request in requests if end - 15.0 <= request.arrival < end], until=end)
        windows.append(signals_between(before, sample(core), core, tuning(TTFT, TPOT), cores=1))
    running = len(core.scheduler.running)
    found = estimated(*windows)
    assert found.kv_tokens / found.context < 60, "as if each had the prefix for itself"
    assert found.fits == pytest.approx(running * found.kv_tokens / core.scheduler.used_blocks() / 16, rel=0.3)
    assert running < found.fits < found.kv_tokens / (8200 - 8000), "no more than have room beside the prefix"


def test_in_a_pipeline_it_is_not_known_what_takes_memory() -> None:
    """What requests hold is told of one step, what is used is of all in flight."""
    signals, whole = seen(short_and_long()), tuning(TTFT, TPOT)
    assert isinstance(signals.load, RequestLoad)
    shared = replace(signals, load=replace(signals.load, held_tokens=500.0, used_tokens=300.0))
    assert shares(shared, whole) == [0.6]
    assert shares(shared, replace(whole, stages=2)) == [None]
    assert shares(shared, whole, replace(whole, stages=2)) == [0.6, None], "the pipeline is new"


def test_nor_does_a_plan_of_pipelines_go_by_it() -> None:
    signals, whole = seen(short_and_long()), tuning(TTFT, TPOT)
    assert isinstance(signals.load, RequestLoad)
    unknown = replace(signals.load, kv_tokens=5000.0, held_tokens=500.0, used_tokens=None)
    shared = replace(unknown, used_tokens=100.0)

    def rate(load: RequestLoad, spec: TuningSpec) -> float:
        found = capacity_of(PRESETS["h100-8b"].step_times.model, signals, load, spec)
        assert found is not None
        return found.rate

    assert rate(shared, whole) > 1.5 * rate(unknown, whole), "memory is what bounds it"
    two = replace(whole, stages=2)
    assert rate(shared, two) == rate(unknown, two)


def test_once_it_is_not_known_what_takes_memory_what_was_known_is_forgotten() -> None:
    signals = seen(short_and_long())
    assert isinstance(signals.load, RequestLoad)
    shared = replace(signals, load=replace(signals.load, held_tokens=500.0, used_tokens=300.0))
    unknown = replace(signals, load=replace(signals.load, held_tokens=500.0, used_tokens=None))
    nobody_runs = replace(signals, load=replace(signals.load, held_tokens=0.0, used_tokens=0.0))
    assert estimated(shared, nobody_runs).kv_share == pytest.approx(0.6)
    assert estimated(shared, unknown).kv_share is None


def shares(signals: Signals, *specs: TuningSpec) -> list[float | None]:
    """The share that is known after a tick under each of these specs."""
    state, found = start(specs[0]), list[float | None]()
    for number, spec in enumerate(specs):
        at = signals.at + 30.0 * number
        state, _ = decide(state, replace(signals, at=at), spec, at)
        assert isinstance(signals.load, RequestLoad)
        workload = state.workload.workload(signals.load, cores=1)
        assert workload is not None
        found.append(workload.kv_share)
    return found


def test_where_it_is_not_known_what_takes_memory_all_that_is_held_does() -> None:
    signals = seen(short_and_long())
    assert isinstance(signals.load, RequestLoad)
    used: tuple[float | None, ...] = (None, 0.0)
    unknown = [replace(signals.load, held_tokens=500.0, used_tokens=tokens) for tokens in used]
    for load in (*unknown, replace(signals.load, held_tokens=0.0)):
        found = estimated(replace(signals, load=load))
        assert (found.kv_share, found.fits) == (None, found.kv_tokens / found.context)
    blocks = replace(signals.load, held_tokens=500.0, used_tokens=512.0)
    assert estimated(replace(signals, load=blocks)).kv_share == 1.0, "the last block of each is not full"
