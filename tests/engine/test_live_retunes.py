"""A real vLLM is retuned while it serves; once with synchronous scheduling, as on the CPU, once with asynchronous."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball_engine.contract import (
    Batching,
    CoreState,
    MetricName,
    OnTime,
    ReadBack,
    Refusal,
    SchedulingPolicy,
    StepBudget,
    StepKind,
)
from flyball_engine.knobs import Bucketed, Dynamic, NoEvict, Static
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import SERVICE, ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.streams import StreamLoad, StreamTotals
from flyball_lab.harness.vllm_server import MODEL_NAME, VllmServer, make_plugin, started
from flyball_lab.harness.waiting import eventually
from support import forked_processes, vllm_test_plugin
from support.greedy import greedy, some_prompts
from support.reflexes import a_budget
from support.served import Served

pytestmark = pytest.mark.engine

SLOTS, TOKENS = 64, 512
#: Other tests of this folder have synchronous engines, as vLLM makes them on CPUs. On GPUs it schedules asynchronously.
KINDS = (pytest.param("synchronous", marks=pytest.mark.long), "asynchronous")
NO_FLOORS = "no-floors"
#: Somewhat like this machine; what the budgets in here need of it is its shape.
A_GUESS = StepModel(t0=2e-3, h=0.0, c1=1e-4, c2=1e-4, beta=1e-5, g=1e-9, kappa=64, d=1e-8)
#: Two layers without the model's weights: these tests need many steps, not their cost. float32: answers are exact.
SMALL = [
    "--dtype=float32",
    "--load-format=dummy",
    '--hf-overrides={"num_hidden_layers": 2}',
    "--enable-logging-iteration-details",
]
STRATEGIES = (
    Batching(strategy=Static(batch_size=8)),
    Batching(strategy=Dynamic(batch_size=8, max_delay_seconds=0.2, max_batch_tokens=600)),
    Batching(strategy=Bucketed(batch_size=8, boundaries=(100,)), policy=SchedulingPolicy.PRIORITY),
    Batching(strategy=Bucketed(batch_size=8, sorted=True), max_concurrent_prefills=2),
    Batching(admission_delay_seconds=0.2, no_evict=NoEvict(), policy=SchedulingPolicy.PRIORITY),
    Batching(max_concurrent_prefills=1),
)


@dataclass
class Governed(Served):
    """A governed server, and the means to meddle with it."""

    floors_flag: Path = field(kw_only=True)
    asynchronous: bool = field(kw_only=True)
    retunes: list[ReadBack] = field(default_factory=list)

    def retune(self, *, step: StepBudget | None = None, **limits: int) -> ReadBack:
        """Apply limits, and a step budget; the answer must confirm them."""
        return self.set(limits=limits, step=step)

    def use(self, batching: Batching) -> ReadBack:
        """Apply a strategy under the start limits; the answer must confirm it."""
        return self.set(batching=batching)

    def set(self, **fields: Any) -> ReadBack:
        self.retunes.append(super().set(**fields))
        return self.retunes[-1]

    @property
    def strategies(self) -> list[Batching]:
        """Those that this vLLM can do."""
        unsupported = self.control.read().unsupported
        return [batching for batching in STRATEGIES if not any(knob in unsupported for knob in batching.given())]

    @contextmanager
    def under_load(self, concurrency: int, *, prompt: int = 100, output: int = 24) -> Iterator[StreamTotals]:
        """Streams that come and go; when the block ends every one of them must have got all its tokens."""
        load = StreamLoad(
            url=self.server.url, model=MODEL_NAME, concurrency=concurrency, prompt_tokens=prompt, max_tokens=output
        )
        with load.running() as totals:
            eventually(lambda: self.core().running > 0, expecting="a first request runs")
            yield totals
        totals.expect_nothing_lost()

    @contextmanager
    def being_retuned(self, every: float, *, strategies: bool = False) -> Iterator[None]:
        """Limits and budgets of all sizes, or `strategies` in turn, again and again."""
        stop = threading.Event()
        turns = itertools.cycle(self.strategies)

        def meddle() -> None:
            while not stop.wait(every):
                if strategies:
                    self.use(next(turns))
                else:
                    self.retune(step=random_budget(), **random_limits())

        thread = threading.Thread(target=meddle)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def random_limits() -> dict[str, int]:
    return {
        "max_num_active_seqs": random.choice([1, 3, 12, 64, 900]),
        "max_num_scheduled_tokens": random.choice([1, 20, 100, 512, 9000]),
        "long_prefill_token_threshold": random.choice([0, 1, 32, 300, 9000]),
    }


def random_budget() -> StepBudget | None:
    return random.choice([None, a_budget(random.choice([1e-6, 0.01, 0.1, 60.0]), A_GUESS)])


@pytest.fixture(scope="module", params=KINDS)
def started_engine(
    request: pytest.FixtureRequest, server_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Governed]:
    """One of each kind."""
    folder, asynchronous = tmp_path_factory.mktemp(request.param), request.param == "asynchronous"
    with start(server_python, folder, model, asynchronous=asynchronous) as server:
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            yield Governed(server, control, floors_flag=folder / NO_FLOORS, asynchronous=asynchronous)


def start(python: str, folder: Path, model: Path, *, asynchronous: bool) -> AbstractContextManager[VllmServer]:
    return started(
        python,
        folder,
        model=model,
        plugin=make_plugin(folder / "plugin", Path(vllm_test_plugin.__file__), Path(forked_processes.__file__)),
        user=SMALL,
        owned=[f"--max-num-seqs={SLOTS}", f"--max-num-batched-tokens={TOKENS}", "--no-enable-prefix-caching"],
        FLYBALL_TEST_ASYNC="1" if asynchronous else "0",
        FLYBALL_TEST_NO_FLOORS=str(folder / NO_FLOORS),
    )


@pytest.fixture(autouse=True)
def engine(started_engine: Governed) -> Governed:
    """Each test begins at the start values, with nothing running."""
    started_engine.begin()
    return started_engine


def test_it_is_governed_and_says_how_large_it_is(engine: Governed) -> None:
    answer = engine.control.read()
    assert answer.governed
    assert answer.service == SERVICE
    assert answer.engine_version.startswith("vllm ")
    core = engine.core()
    assert core.start == core.effective
    assert (core.ceilings.max_num_seqs, core.ceilings.max_num_batched_tokens) == (SLOTS, TOKENS)
    assert core.kv_cache_tokens > 4096
    governed = re.findall(
        r"Flyball Governing: the (\w+) of engine core 0", engine.server.log.read_text(errors="replace")
    )
    assert governed == ["GovernedAsyncScheduler" if engine.asynchronous else "GovernedScheduler"]


def test_a_hundred_retunes_under_32_streams_lose_nothing(engine: Governed) -> None:
    before, trips = len(engine.retunes), engine.core().watchdog_trips
    with engine.under_load(32):
        while len(engine.retunes) < before + 110:
            engine.retune(step=random_budget(), **random_limits())
        engine.retune()
    assert engine.core().watchdog_trips == trips


def test_the_active_limit_holds_exactly_once_the_rest_drained(engine: Governed) -> None:
    with engine.under_load(32):
        eventually(lambda: engine.core().running > 20, expecting="many run")
        engine.retune(max_num_active_seqs=3)
        eventually(lambda: engine.core().running <= 3, expecting="the rest drained")
        # Those that drained may have ended together, and their clients come again one by one.
        eventually(lambda: engine.core().waiting > 10, expecting="the others wait")
        seen = [engine.core().running for _ in range(200)]
        assert max(seen) == 3
        engine.retune()
        eventually(lambda: engine.core().running > 20, expecting="many run again")


def test_a_token_limit_far_below_the_running_follows_them_down(engine: Governed) -> None:
    with engine.under_load(32, output=64):
        eventually(lambda: engine.core().running > 20, expecting="many run")
        answer = engine.retune(max_num_active_seqs=2, max_num_scheduled_tokens=1)
        (core,) = answer.cores
        reasons = {clamp.knob.value: clamp for clamp in core.clamped}
        assert reasons["max_num_scheduled_tokens"].effective >= core.running
        eventually(lambda: engine.core().running <= 2, expecting="the rest drained")
        eventually(lambda: limit(engine) <= 18, expecting="the limit came down")
        engine.retune()


def limit(engine: Governed) -> int:
    tokens = engine.core().effective.max_num_scheduled_tokens
    assert tokens is not None
    return tokens


def test_switching_the_strategy_every_second_under_32_streams_loses_nothing(engine: Governed) -> None:
    if len(engine.strategies) < 2:
        pytest.skip("this vLLM's scheduler admits no chosen requests")
    before, trips = len(engine.retunes), engine.core().watchdog_trips
    with engine.under_load(16, prompt=20), engine.under_load(16, prompt=200):
        with engine.being_retuned(every=1.0, strategies=True):
            eventually(lambda: len(engine.retunes) >= before + 2 * len(engine.strategies), expecting="two rounds")
        engine.retune()
    assert engine.core().watchdog_trips == trips


def test_requests_come_to_their_end_under_every_strategy(engine: Governed) -> None:
    with engine.under_load(8, prompt=20) as short, engine.under_load(8, prompt=200) as long:
        for batching in engine.strategies:
            engine.use(batching)
            strategy = batching.strategy.type if batching.strategy else "Continuous"
            assert engine.core().strategy == strategy
            assert f'strategy="{strategy}"' in engine.control.metrics()
            expect_more(short, long)
        engine.retune()


def expect_more(*loads: StreamTotals) -> None:
    """Eight more requests of each kind end."""
    goals = [load.finished + 8 for load in loads]
    eventually(
        lambda: all(load.finished >= goal for load, goal in zip(loads, goals, strict=True)),
        expecting="more requests end",
    )


def test_greedy_answers_are_the_same_with_a_retune_every_tenth_second(engine: Governed) -> None:
    prompts = some_prompts(32)
    undisturbed = greedy(engine.server.url, prompts, max_tokens=40)
    before = len(engine.retunes)
    with engine.being_retuned(every=0.1):
        disturbed = greedy(engine.server.url, prompts, max_tokens=40)
    assert len(engine.retunes) > before
    assert disturbed == undisturbed


def test_greedy_answers_are_the_same_in_whatever_order_prompts_are_served(engine: Governed) -> None:
    # None begins like another test's, so that no block of theirs is cached.
    prompts = [[7, *prompt] for prompt in some_prompts(32)]
    moved, metrics = engine.core().order.moved_behind, engine.control.metrics
    # Steps of few tokens, and a deadline that many miss on any machine: prompts are begun, overtaken, taken up again.
    engine.set(step=a_budget(0.01, A_GUESS), on_time=OnTime(first_token_deadline_seconds=0.05))
    in_order = greedy(engine.server.url, prompts, max_tokens=40)
    assert engine.core().order.moved_behind > moved
    assert f'flyball_moved_behind_total{{engine="0"}} {float(engine.core().order.moved_behind)}' in metrics()
    engine.set(step=None, on_time=None)
    as_they_came = greedy(engine.server.url, prompts, max_tokens=40)
    assert in_order == as_they_came


def test_the_sums_are_those_of_vllm_s_own_log_of_every_step(engine: Governed) -> None:
    logged_before, summed_before = logged_steps(engine.server), totals(engine.core())
    with engine.under_load(8), engine.being_retuned(every=0.2):
        eventually(lambda: len(logged_steps(engine.server)) > len(logged_before) + 100, expecting="steps")
    eventually(lambda: engine.core().running == 0, expecting="the engine is idle")
    summed = totals(engine.core()) - summed_before
    eventually(
        lambda: len(logged_steps(engine.server)) == len(logged_before) + summed.steps,
        expecting="every step is logged",
    )
    steps = logged_steps(engine.server)[len(logged_before) :]
    assert summed.tokens == sum(step.context_tokens + step.generation_tokens for step in steps)
    if not engine.asynchronous:
        # Asynchronous, vLLM's log takes a first decode for a prefill: its token is not known yet.
        assert summed.prefill_tokens == sum(step.context_tokens for step in steps)
        assert summed.decodes == sum(step.generation_requests for step in steps)
        assert summed.mixed == sum(step.context_tokens > 0 for step in steps)
        # vLLM's time leaves out scheduling and the handling of outputs.
        assert summed.seconds > sum(step.seconds for step in steps)


@dataclass(frozen=True)
class LoggedStep:
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    seconds: float


@pytest.mark.alone
def test_steps_get_the_tokens_that_fit_into_their_time(engine: Governed) -> None:
    # Steps take far less than this says: the bias goes to its end, 0.5, and a step gets 200 tokens.
    slow = StepModel(t0=0.0, h=0.0, c1=1e-3, c2=1e-3, beta=0.0, g=0.0, kappa=1)
    with engine.under_load(8, prompt=900):
        eventually(lambda: largest_since(engine, 0) > 400, expecting="steps of many tokens")
        engine.retune(step=a_budget(0.1, slow))
        eventually(lambda: (engine.core().local_bias or 1) < 0.51, expecting="the bias is learnt")
        before = len(logged_steps(engine.server))
        eventually(lambda: len(logged_steps(engine.server)) > before + 100, expecting="steps")
        assert 150 < largest_since(engine, before) <= 200
        assert 'flyball_step_budget_seconds{engine="0"} 0.1' in engine.control.metrics()
        engine.retune()
        before = len(logged_steps(engine.server))
        eventually(lambda: largest_since(engine, before) > 400, expecting="steps of many tokens")


def largest_since(engine: Governed, position: int) -> int:
    return max(
        (step.context_tokens + step.generation_tokens for step in logged_steps(engine.server)[position:]), default=0
    )


def logged_steps(server: VllmServer) -> list[LoggedStep]:
    pattern = (
        r"Iteration\(\d+\): \d+ context requests, (\d+) context tokens, (\d+) generation requests, "
        r"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms"
    )
    found = re.findall(pattern, server.log.read_text(errors="replace"))
    return [LoggedStep(int(a), int(b), int(c), float(d) / 1000) for a, b, c, d in found]


@dataclass(frozen=True)
class Totals:
    steps: int
    mixed: int
    seconds: float
    tokens: int
    prefill_tokens: int
    decodes: int

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(mine - theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


def totals(core: CoreState) -> Totals:
    return Totals(
        steps=sum(row.steps for row in core.steps),
        mixed=sum(row.steps for row in core.steps if row.kind is StepKind.MIXED),
        seconds=sum(row.seconds for row in core.steps),
        tokens=sum(row.tokens for row in core.steps),
        prefill_tokens=sum(row.prefill_tokens for row in core.steps),
        decodes=sum(row.decodes for row in core.steps),
    )


def test_requests_that_stand_still_bring_the_start_values_back(engine: Governed) -> None:
    trips = engine.core().watchdog_trips
    # One token a step goes to the first request until it ends: the last waits for 47, over ten thousand steps, however
    # fast they are for longer than the watchdog's patience.
    with engine.under_load(48, output=220):
        eventually(lambda: engine.core().running == 48, expecting="all run")
        engine.floors_flag.touch()
        try:
            engine.retune(max_num_scheduled_tokens=1)
            eventually(lambda: engine.core().watchdog_trips > trips, expecting="the watchdog trips")
        finally:
            engine.floors_flag.unlink()
        core = engine.core()
        assert core.effective == core.start
        assert [clamp.reason for clamp in core.clamped] == ["watchdog"]
    assert 'flyball_retunes_total{outcome="watchdog"}' in engine.control.metrics()


def test_what_is_refused_changes_nothing(engine: Governed) -> None:
    held = engine.retune(max_num_active_seqs=7).accepted
    assert held is not None
    older = setpoint(0)
    other = setpoint(held.generation, limits={"max_num_active_seqs": 8})
    stranger = SetpointSigner().token(older.model_dump_json().encode())
    assert engine.control.refuse(older)[1].error is Refusal.STALE_GENERATION
    assert engine.control.refuse(setpoint(held.generation + 9, epoch=0))[1].error is Refusal.STALE_EPOCH
    assert engine.control.refuse(other)[1].error is Refusal.CONFLICT
    assert engine.control.refuse(setpoint(held.generation + 9, service="x"))[1].error is Refusal.OTHER_SERVICE
    assert engine.control.refuse(older, token=stranger)[1].error is Refusal.BAD_TOKEN
    assert engine.control.refuse(b"{}")[0] == 422
    assert engine.control.read().accepted == held
    assert engine.core().effective.max_num_active_seqs == 7


def test_the_two_ports_keep_their_metrics_apart(engine: Governed) -> None:
    ours = engine.control.metrics()
    theirs = httpx.get(f"{engine.server.url}/metrics", timeout=60, trust_env=False).text
    assert f'flyball_ceiling{{engine="0",knob="max_num_seqs"}} {float(SLOTS)}' in ours
    assert "vllm:" not in ours
    assert "vllm:num_requests_running" in theirs
    assert set(re.findall(r"^flyball_\w+", theirs, flags=re.MULTILINE)) <= {MetricName.HEADROOM_SECONDS.value}
