"""The reader against a real Prometheus that scrapes real control ports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.contract import Metric, MetricName, OrderCounts
from flyball_lab.harness.engines import ServedEngine, objective, serving
from flyball_lab.harness.plant import CPU, PlantPhase
from flyball_lab.harness.prometheus import Prometheus, ScrapeJob, ScrapeTarget, prometheus
from flyball_lab.harness.tuners import PATIENCE, TunerEnvironment
from flyball_operator.prometheus import queries
from flyball_operator.prometheus.client import PrometheusClient, PrometheusError
from flyball_operator.prometheus.reader import ATTAINMENT_WINDOW, LEAST_WINDOW, PrometheusReader, window_of
from flyball_operator.tuning.observe.signals import (
    Applied,
    Attainment,
    Identity,
    Missing,
    Observation,
    OrderOutcome,
    PodCounts,
    PodOutcomes,
    RequestLoad,
    Signals,
    StepWindow,
    Unobserved,
)

CHAT: Identity = ("team", "uid-1")
WINDOW = 3


def target(engine: ServedEngine, **changed: str) -> ScrapeTarget:
    labels = {"address": f"{engine.ip}:{engine.port}", "uid": engine.service, "pod": engine.name} | changed
    return ScrapeTarget(**labels)


@asynccontextmanager
async def scraping(
    folder: Path, *targets: ScrapeTarget, scrape: str = "500ms"
) -> AsyncIterator[tuple[Prometheus, PrometheusReader]]:
    """Prometheus over targets, and a reader of it."""
    with ExitStack() as stack:
        running = stack.enter_context(prometheus(folder, targets, scrape=scrape))
        yield (
            running,
            stack.enter_context(
                closing(PrometheusReader(PrometheusClient(running.url, timeout=2.0), timeout=2.0, least_window=WINDOW))
            ),
        )


async def read_until(
    reader: PrometheusReader, holds: Callable[[Observation], bool], pods: Mapping[Identity, int] | None = None
) -> Observation:
    """Read until the first service's observation satisfies."""
    wanted = pods or {CHAT: 1}
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await reader.read(wanted))[next(iter(wanted))]
            if holds(found):
                return found
            await asyncio.sleep(0.1)


def complete(found: Observation) -> bool:
    return (
        isinstance(found, Signals)
        and isinstance(found.steps, StepWindow)
        and isinstance(found.load, RequestLoad)
        and found.load.finished > 3
    )


async def test_sums_are_those_of_the_engines_whatever_the_window_extrapolates(tmp_path: Path) -> None:
    world = TunerEnvironment()
    engines = [world.engine("chat-0"), world.engine("chat-1")]
    async with serving(*engines), scraping(tmp_path, *(target(engine) for engine in engines)) as (_, reader):
        for seed, engine in enumerate(engines):
            engine.engine.plant.noise = engine.engine.plant.stall = 0.0
            engine.engine.set_objectives((objective(Metric.TIME_PER_OUTPUT_TOKEN, 0.06),))
            engine.load([PlantPhase(3600, 4, 100, 16)], seed=seed)

        def complete_and_busy(seen: Observation) -> bool:
            # Gauges are of one moment: by chance nothing runs in it.
            if not (complete(seen) and isinstance(seen, Signals) and isinstance(seen.load, RequestLoad)):
                return False
            return seen.cores == 2 and seen.load.held_tokens > 0

        found = await read_until(reader, complete_and_busy, {CHAT: 2})
        assert isinstance(found, Signals)
        assert isinstance(found.steps, StepWindow)
        assert isinstance(found.load, RequestLoad)
        # Ratios are exact although increase() extrapolates: the mean step of every cell is the plant's.
        for key, sums in found.steps.cells.items():
            if sums.steps < 5:
                continue
            attention, prefill = sums.prefill_attention / sums.steps, sums.prefill_tokens / sums.steps
            tokens, decodes = sums.tokens / sums.steps, sums.decodes / sums.steps
            expected = CPU.t0 + CPU.c1 * min(tokens, 64) + CPU.c2 * max(0.0, tokens - 64) + CPU.beta * decodes
            assert sums.seconds / sums.steps == pytest.approx(expected + CPU.g * attention, rel=0.02), (key, prefill)
        assert found.load.used_tokens == pytest.approx(found.load.held_tokens), "nothing is shared"
        assert found.load.generated_tokens / found.load.finished == pytest.approx(16, rel=0.5)
        assert found.load.arrivals == pytest.approx(8.0, rel=0.9)
        assert set(found.outcomes) == {"TimePerOutputToken/0.06"}
        assert found.applied == Applied(0, 0, 0), "no setpoint yet"


async def test_what_is_computed_of_prompts_is_that_of_the_engines_that_tell_of_it(tmp_path: Path) -> None:
    world = TunerEnvironment()
    present, older = world.engine("chat-0"), world.engine("chat-1")
    older.lacks = frozenset({MetricName.COMPUTED_PROMPT_TOKENS_SQUARED})
    async with serving(present, older), scraping(tmp_path, target(present), target(older)) as (_, reader):
        present.load([PlantPhase(3600, 4, 100, 16, spread=0.0)], seed=1)
        older.load([PlantPhase(3600, 1, 1000, 16, spread=0.0)], seed=2)
        found = await read_until(reader, lambda seen: complete(seen) and seen.cores == 2, {CHAT: 2})  # type: ignore[union-attr]
        assert isinstance(found, Signals)
        assert isinstance(found.steps, StepWindow)
        assert found.steps.prompts is not None
        assert found.steps.prompts.squares / found.steps.prompts.tokens == pytest.approx(100, rel=0.1)


async def test_where_no_engine_tells_what_is_computed_of_prompts_it_is_not_known(tmp_path: Path) -> None:
    world = TunerEnvironment()
    older = world.engine("chat-0")
    older.lacks = frozenset({MetricName.COMPUTED_PROMPT_TOKENS_SQUARED})
    async with serving(older), scraping(tmp_path, target(older)) as (_, reader):
        older.load([PlantPhase(3600, 4, 100, 16)], seed=1)
        found = await read_until(reader, complete)
        assert isinstance(found, Signals)
        assert isinstance(found.steps, StepWindow)
        assert found.steps.prompts is None


async def test_of_a_pod_that_is_gone_neither_prompts_nor_their_squares_are_lost(tmp_path: Path) -> None:
    """A scrape that fails ends its series at once; what they grew by stays in the window."""
    world = TunerEnvironment()
    engines = [world.engine("chat-0"), world.engine("chat-1")]
    async with serving(*engines), scraping(tmp_path, *(target(engine) for engine in engines)) as (_, reader):
        for seed, engine in enumerate(engines):
            engine.load([PlantPhase(3600, 4, 100, 16, spread=0.0)], seed=seed)
        await read_until(reader, lambda seen: complete(seen) and seen.cores == 2, {CHAT: 2})  # type: ignore[union-attr]
        await engines[1].stop()
        seen = await read_until(reader, lambda seen: isinstance(seen, Signals) and seen.cores == 1, {CHAT: 2})
        assert isinstance(seen, Signals)
        then = reader.read_at(seen.at, {CHAT: 2})[CHAT]
        assert isinstance(then, Signals)
        assert isinstance(then.steps, StepWindow)
        assert then.steps.prompts is not None
        assert then.steps.prompts.squares / then.steps.prompts.tokens == pytest.approx(100, rel=0.1)


async def test_identity_is_the_target_labels_namespace_and_all(tmp_path: Path) -> None:
    world = TunerEnvironment()
    ours, foreign = world.engine("chat-0"), world.engine("chat-0", "uid-9")
    # A pod elsewhere carries our service's label: its namespace tells it apart.
    targets = (target(ours), target(foreign, uid="uid-1", namespace="elsewhere"))
    async with serving(ours, foreign), scraping(tmp_path, *targets) as (_, reader):
        found = await read_until(reader, lambda seen: isinstance(seen, Signals))
        assert isinstance(found, Signals)
        assert found.cores == 1


async def test_a_past_time_is_answered_as_it_was_then(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), scraping(tmp_path, target(pod)) as (_, reader):
        pod.load([PlantPhase(3600, 4, 100, 16)], seed=1)
        seen = await read_until(reader, complete)
        assert isinstance(seen, Signals)
        await read_until(reader, lambda later: isinstance(later, Signals) and later.at >= seen.at + 5)
        then = reader.read_at(seen.at, {CHAT: 1})[CHAT]
        assert isinstance(then, Signals)
        assert then.at == pytest.approx(seen.at, abs=1e-3)
        assert then.age_seconds < 5, "by the clock of then"
        assert isinstance(then.load, RequestLoad)
        assert then.load.generated_tokens == pytest.approx(seen.load.generated_tokens, rel=0.5)  # type: ignore[union-attr]
        assert reader.ran_at(seen.at)[CHAT]["max_num_active_seqs"] == (128, 128)
        assert _reason(reader.read_at(seen.at - 3600, {CHAT: 1})[CHAT]) is Missing.NOT_SCRAPED
        assert reader.ran_at(seen.at - 3600) == {}


async def test_requests_are_counted_for_each_pod_and_a_pod_without_any_is_there_too(tmp_path: Path) -> None:
    world = TunerEnvironment()
    busy, idle, other = world.engine("chat-0"), world.engine("chat-1"), world.engine("code-0", "uid-2")
    engines = (busy, idle, other)
    async with serving(*engines), scraping(tmp_path, *map(target, engines)) as (_, reader):
        for engine in engines:
            engine.engine.set_objectives((objective(Metric.TIME_PER_OUTPUT_TOKEN, 0.06),))
        for engine in (busy, other):
            engine.load([PlantPhase(3600, 4, 100, 16)], seed=1)
        async with asyncio.timeout(PATIENCE):
            while True:
                found = (await reader.pod_outcomes({CHAT: 60}))[CHAT]
                assert not isinstance(found, Unobserved)
                busiest = found.get("chat-0", PodCounts())
                if busiest.answered > 3 and sum(one.total for one in busiest.objectives.values()) > 3:
                    break
                await asyncio.sleep(0.1)
        assert found.keys() == {"chat-0", "chat-1"}
        assert sum(one.total for one in found["chat-1"].objectives.values()) == 0
        assert found["chat-1"].answered == 0
        assert busiest.objectives.keys() == {"TimePerOutputToken/0.06"}
        assert busiest.failed == 0


async def test_requests_of_a_pod_that_is_scraped_slowly_are_counted_over_its_window(tmp_path: Path) -> None:
    world = TunerEnvironment()
    slow = world.engine("chat-0")
    async with serving(slow), scraping(tmp_path, target(slow), scrape="6s") as (_, reader):
        slow.engine.set_objectives((objective(Metric.TIME_PER_OUTPUT_TOKEN, 0.06),))
        slow.load([PlantPhase(3600, 4, 100, 16)], seed=1)
        await read_until(reader, lambda found: (_seconds(found) or 0) > 2 * 6)
        async with asyncio.timeout(PATIENCE):
            found: PodOutcomes | Unobserved = {}
            while isinstance(found, Unobserved) or not found.get("chat-0", PodCounts()).answered:
                await asyncio.sleep(0.1)
                # It was Ready a second ago: between two scrapes there is no increase.
                found = (await reader.pod_outcomes({CHAT: 1}))[CHAT]


async def test_requests_count_while_they_are_open_once_it_is_certain_that_they_are_late(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine("chat-0")
    first_token = objective(Metric.TIME_TO_FIRST_TOKEN, 0.5)
    async with serving(pod):
        pod.engine.set_objectives((first_token,))
        pod.engine.open_objectives = {(first_token.id, "violated"): 500}
        async with scraping(tmp_path, target(pod)) as (_, reader), asyncio.timeout(PATIENCE):
            await read_until(reader, lambda found: not isinstance(found, Unobserved))
            pod.engine.open_objectives = {(first_token.id, "violated"): 504}
            violated = 0.0
            while not violated:
                await asyncio.sleep(0.1)
                violated = _violated((await reader.pod_outcomes({CHAT: 60}))[CHAT], "chat-0", first_token.id)
    assert violated < 100, "500 were late before"


def _violated(found: PodOutcomes | Unobserved, pod: str, identity: str) -> float:
    if isinstance(found, Unobserved) or pod not in found:
        return 0.0
    counted = found[pod].objectives.get(identity)
    return 0.0 if counted is None else counted.violated


async def test_of_pods_that_nobody_answers_for_it_is_said_why(tmp_path: Path) -> None:
    async with scraping(tmp_path) as (running, reader):
        running.end()
        found = (await reader.pod_outcomes({CHAT: 60}))[CHAT]
        assert _reason(found) is Missing.UNREACHABLE


async def test_who_asks_for_one_service_is_told_of_no_other(tmp_path: Path) -> None:
    world = TunerEnvironment()
    ours, other = world.engine("chat-0"), world.engine("code-0", "uid-2")
    async with serving(ours, other), scraping(tmp_path, target(ours), target(other)) as (running, reader):
        both = {CHAT: 1, ("team", "uid-2"): 1}
        await read_until(reader, lambda seen: isinstance(seen, Signals), both)
        await read_until(reader, lambda seen: isinstance(seen, Signals), dict(reversed(both.items())))
        with closing(PrometheusReader(PrometheusClient(running.url, timeout=2.0), only=CHAT)) as alone:
            found = await alone.read(both)
        assert isinstance(found[CHAT], Signals)
        assert _reason(found["team", "uid-2"]) is Missing.NOT_SCRAPED


async def test_what_gates_refuse_is_read_beside_what_they_let_in(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine()

    def refused(seen: Observation) -> bool:
        pod.engine.gate.queue_full()
        return isinstance(seen, Signals) and isinstance(seen.load, RequestLoad) and seen.load.refused > 0

    async with serving(pod), scraping(tmp_path, target(pod)) as (_, reader):
        pod.load([PlantPhase(3600, 4, 100, 16)], seed=1)
        found = await read_until(reader, refused)
        assert isinstance(found, Signals)
        assert found.pods == 1


async def test_what_the_on_time_order_did_is_added_up_over_the_pods_and_outlives_one_of_them(tmp_path: Path) -> None:
    world = TunerEnvironment()
    engines = [world.engine("chat-0"), world.engine("chat-1")]

    async def read_order(reader: PrometheusReader, holds: Callable[[OrderOutcome], bool]) -> OrderOutcome:
        async with asyncio.timeout(PATIENCE):
            while True:
                await reader.read({CHAT: 2})
                found = await reader.attainment()
                mine = None if isinstance(found, Unobserved) else found.get(CHAT)
                order = mine.order if isinstance(mine, Attainment) else None
                if order is not None and holds(order):
                    return order
                for engine in engines[:1]:
                    engine.engine.order = grown(engine.engine.order)
                await asyncio.sleep(0.1)

    async with serving(*engines), scraping(tmp_path, *(target(engine) for engine in engines)) as (_, reader):
        engines[1].engine.order = OrderCounts(behind=1, longest_wait_seconds=40.0)
        seen = await read_order(reader, lambda order: order.moved_behind >= 10 and order.longest_wait == 40.0)
        assert seen.in_time_after_all == pytest.approx(seen.moved_behind / 2, rel=0.3)
        await engines[1].stop()
        later = await read_order(reader, lambda order: order.moved_behind >= 2 * seen.moved_behind)
        assert later.longest_wait == 40.0, "as long as the window lasts"


async def test_how_slow_each_pod_is_is_read_of_those_that_tell(tmp_path: Path) -> None:
    world = TunerEnvironment()
    engines = [world.engine("chat-0"), world.engine("chat-1"), world.engine("chat-2")]
    async with serving(*engines), scraping(tmp_path, *(target(engine) for engine in engines)) as (_, reader):
        engines[0].engine.bias, engines[1].engine.bias = 1.0, 1.5
        async with asyncio.timeout(PATIENCE):
            while True:
                await reader.read({CHAT: 3})
                found = await reader.attainment()
                mine = None if isinstance(found, Unobserved) else found.get(CHAT)
                if isinstance(mine, Attainment) and len(mine.biases) == 2:
                    break
                await asyncio.sleep(0.1)
        assert mine.biases == {"chat-0": 1.0, "chat-1": 1.5}


def grown(order: OrderCounts) -> OrderCounts:
    return OrderCounts(moved_behind=order.moved_behind + 2, in_time_after_all=order.in_time_after_all + 1)


async def test_cores_with_different_loads_are_seen_to_be_uneven(tmp_path: Path) -> None:
    world = TunerEnvironment()
    engines = [world.engine("chat-0"), world.engine("chat-1")]
    async with serving(*engines), scraping(tmp_path, *(target(engine) for engine in engines)) as (_, reader):
        # One has all: twice what the mean one has.
        engines[0].load([PlantPhase(3600, 8, 100, 64)], seed=1)
        await read_until(
            reader,
            lambda seen: isinstance(seen, Signals) and isinstance(seen.load, RequestLoad) and seen.load.uneven == 2.0,
            {CHAT: 2},
        )


async def test_what_is_not_scraped_is_unobserved_not_zero(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), scraping(tmp_path, target(pod)) as (_, reader):
        await read_until(reader, lambda seen: isinstance(seen, Signals))
        answers = await reader.read({("team", "uid-7"): 1, CHAT: 4})
        assert _reason(answers["team", "uid-7"]) is Missing.NOT_SCRAPED
        assert _reason(answers[CHAT]) is Missing.PARTIAL, "one pod of four does not speak for all"
        half = (await reader.read({CHAT: 2}))[CHAT]
        assert isinstance(half, Signals)
        assert (half.pods, half.unseen) == (1, 1)


async def test_too_few_scrapes_leave_the_load_unknown(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), scraping(tmp_path, target(pod), scrape="4s") as (_, reader):
        found = await read_until(reader, _has_steps)
        assert isinstance(found, Signals)
        assert _reason(found.load) is Missing.TOO_FEW_SAMPLES
        assert _reason(found.steps) is Missing.TOO_FEW_SAMPLES


async def test_slow_scrapes_widen_the_window_of_their_service_alone(tmp_path: Path) -> None:
    world = TunerEnvironment()
    fast, slow = world.engine("fast", "0a"), world.engine("slow", "0b")
    # Both are in the same part of all services.
    one, other = ("team", "0a"), ("team", "0b")
    jobs = [ScrapeJob(pod.name, [target(pod).labels()], scrape=each) for pod, each in ((fast, "500ms"), (slow, "8s"))]
    async with serving(fast, slow):
        with prometheus(tmp_path, jobs=jobs) as running:
            client = PrometheusClient(running.url, timeout=2.0)
            with closing(PrometheusReader(client, timeout=2.0, least_window=WINDOW)) as reader:
                every = {one: 1, other: 1}
                await read_until(reader, lambda found: _seconds(found) == 45, {other: 1, **every})
                fast.load([PlantPhase(3600, 4, 100, 16)])
                await read_until(reader, lambda found: complete(found) and _seconds(found) == LEAST_WINDOW, every)
                both = await reader.read(every)
                assert {identity: _seconds(found) for identity, found in both.items()} == {one: LEAST_WINDOW, other: 45}


@pytest.mark.parametrize(
    ("interval", "window"),
    # As jobs have it, with a scrape in six missed, and slower still.
    [(5, 15), (6, 15), (10, 45), (15, 45), (18, 45), (30, 90), (36, 90), (60, 300), (600, 300)],
)
def test_a_window_spans_three_scrapes_of_which_one_in_six_may_be_missed(interval: float, window: int) -> None:
    assert window_of(interval, LEAST_WINDOW) == window


async def test_a_dead_pod_is_not_counted(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod, dead = world.engine("chat-0"), world.engine("chat-1")
    async with serving(pod, dead), scraping(tmp_path, target(pod), target(dead)) as (_, reader):
        await read_until(reader, lambda seen: isinstance(seen, Signals) and seen.cores == 2, {CHAT: 2})
        await dead.stop()
        await read_until(reader, lambda seen: isinstance(seen, Signals) and seen.cores == 1, {CHAT: 2})


async def test_a_frozen_prometheus_times_out_and_is_not_asked_again_meanwhile(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), scraping(tmp_path, target(pod)) as (running, reader):
        await read_until(reader, lambda seen: isinstance(seen, Signals))
        running.freeze()
        first = (await reader.read({CHAT: 1}))[CHAT]
        assert _reason(first) is Missing.TIMED_OUT
        # The client's own time-out, which ends the call in its thread, says the same.
        with pytest.raises(PrometheusError) as late:
            await asyncio.to_thread(reader._query, ("up", str))
        assert late.value.missing is Missing.TIMED_OUT
        running.thaw()
        await read_until(reader, lambda seen: isinstance(seen, Signals))


async def test_prometheus_gone_is_unreachable(tmp_path: Path) -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), scraping(tmp_path, target(pod)) as (running, reader):
        await read_until(reader, lambda seen: isinstance(seen, Signals))
        running.end()
        assert _reason((await reader.read({CHAT: 1}))[CHAT]) is Missing.UNREACHABLE
        attained = await reader.attainment()
        assert isinstance(attained, Unobserved)
        assert attained.reason is Missing.UNREACHABLE


class Limited(PrometheusClient):
    """Behind a gateway that answers no query of one part of all services while it is `limited`."""

    limited = False

    def query(self, text: str, at: float | None = None) -> Any:
        if self.limited and queries.part(1) in text:
            raise PrometheusError(Missing.UNREACHABLE, "the gateway answered 422: too many samples")
        return super().query(text, at)


async def test_a_query_that_fails_blinds_the_services_of_its_part_alone(tmp_path: Path) -> None:
    world, names = TunerEnvironment(), {uid: ("team", uid) for uid in ("0a", "5a", "fa")}
    pods = [world.engine(f"chat-{uid}", uid) for uid in names]
    every = dict.fromkeys(names.values(), 1)
    async with serving(*pods), scraping(tmp_path, *map(target, pods)) as (running, _):
        client = Limited(running.url, timeout=2.0)
        with closing(PrometheusReader(client, timeout=2.0, least_window=WINDOW)) as reader:
            for identity in every:
                first = {identity: 1, **every}
                await read_until(reader, lambda seen: isinstance(seen, Signals), first)
            client.limited = True
            seen = await reader.read(every)
            assert {uid: _reason(seen[identity]) for uid, identity in names.items()} == {
                "0a": None,
                "5a": Missing.UNREACHABLE,
                "fa": None,
            }
            attained = await reader.attainment()
            assert not isinstance(attained, Unobserved)
            assert [uid for uid, identity in names.items() if isinstance(attained.get(identity), Unobserved)] == ["5a"]


class SideBySide:
    """Answers no query before so many wait for their answers."""

    def __init__(self, waiting: int) -> None:
        self._all_there = threading.Barrier(waiting)

    def query(self, text: str, at: float | None = None) -> Any:
        self._all_there.wait(timeout=60.0)
        return []

    def close(self) -> None:
        self._all_there.abort()


async def test_each_query_of_a_read_has_all_of_its_time() -> None:
    with closing(PrometheusReader(SideBySide(3), timeout=60.0)) as reader:
        seen = await reader.read({("team", "0a"): 0})
    assert _reason(seen["team", "0a"]) is not Missing.TIMED_OUT


@dataclass
class Asked:
    """Answers each query with nothing, and takes down the number of the part that was asked one of these texts."""

    texts: list[str]
    parts: list[int] = field(default_factory=list)

    def query(self, text: str, at: float | None = None) -> Any:
        if text in self.texts:
            self.parts.append(self.texts.index(text))
        return []

    def close(self) -> None:
        """Nothing is held."""


STEPS = [queries.steps(15, queries.part(number)) for number in range(queries.PARTS)]
ATTAINMENT = [queries.attainment(ATTAINMENT_WINDOW, queries.part(number)) for number in range(queries.PARTS)]


async def test_what_came_of_requests_is_asked_for_once_per_window_by_turns_and_of_new_services_at_once() -> None:
    source, now = Asked(ATTAINMENT), 1000.0
    every = dict.fromkeys((("team", uid) for uid in ("0a", "5a", "fa")), 1)
    with closing(PrometheusReader(source, least_window=15, clock=lambda: now)) as reader:
        rounds = []
        for number in range(8):
            now = 1000.0 + 5 * number
            await reader.read(every if number < 7 else {**every, ("team", "5b"): 1})
            await reader.attainment()
            rounds.append(sorted(source.parts))
            source.parts.clear()
    assert rounds == [[0, 1, 2], [0], [1], [2], [0], [1], [2], [0, 1]]


async def test_of_many_services_no_read_asks_for_the_steps_of_all_parts() -> None:
    source, now = Asked(STEPS), 1000.0
    many = {("team", f"{number:02x}"): 1 for number in range(256)}
    with closing(PrometheusReader(source, least_window=15, clock=lambda: now)) as reader:
        rounds = []
        for number in range(6):
            now = 1000.0 + 5 * number
            await reader.read(many)
            rounds.append(list(source.parts))
            source.parts.clear()
    assert rounds == [[0], [1], [2], [0], [1], [2]]


async def test_parts_that_a_late_read_brought_together_take_turns_again() -> None:
    source, every = Asked(STEPS), dict.fromkeys((("team", uid) for uid in ("0a", "5a", "fa")), 1)
    now, times = 0.0, [0, 5, 10, 15, *range(35, 80, 5)]
    with closing(PrometheusReader(source, least_window=15, clock=lambda: now)) as reader:
        rounds = {}
        for at in times:
            now = float(at)
            await reader.read(every)
            rounds[at] = sorted(source.parts)
            source.parts.clear()
    assert [rounds[at] for at in times[:5]] == [[0, 1, 2], [0], [1], [2], [0, 1, 2]]
    assert [rounds[at] for at in (50, 55, 60, 65, 70, 75)] == [[0, 1, 2], [], [], [0], [1], [2]]


async def test_parts_are_asked_together_where_reads_are_as_seldom_as_windows() -> None:
    source, every = Asked(STEPS), dict.fromkeys((("team", uid) for uid in ("0a", "5a", "fa")), 1)
    now = 0.0
    with closing(PrometheusReader(source, least_window=15, clock=lambda: now)) as reader:
        rounds = []
        for at in range(0, 75, 15):
            now = float(at)
            await reader.read(every)
            rounds.append(sorted(source.parts))
            source.parts.clear()
    assert rounds == [[0, 1, 2]] * 5


async def test_steps_are_asked_for_once_per_window_by_turns(tmp_path: Path) -> None:
    world, names = TunerEnvironment(), {uid: ("team", uid) for uid in ("0a", "5a", "fa")}
    pods = [world.engine(f"chat-{uid}", uid) for uid in names]
    every, now = dict.fromkeys(names.values(), 1), 1000.0
    async with serving(*pods), scraping(tmp_path, *map(target, pods)) as (running, other):
        for identity in every:
            await read_until(other, lambda seen: isinstance(seen, Signals), {identity: 1, **every})
        client = PrometheusClient(running.url, timeout=2.0)
        with closing(PrometheusReader(client, timeout=2.0, clock=lambda: now)) as reader:
            told = []
            for _ in range(8):
                seen = await reader.read(every)
                told.append([uid for uid, identity in names.items() if _has_steps(seen[identity])])
                now += 5.0
    assert told == [["0a", "5a", "fa"], ["0a"], ["5a"], ["fa"], ["0a"], ["5a"], ["fa"], ["0a"]]


def _seconds(found: Observation) -> float | None:
    """Seconds of the window."""
    return found.window_seconds if isinstance(found, Signals) else None


def _has_steps(found: Observation) -> bool:
    return isinstance(found, Signals) and found.steps is not None


def _reason(found: object) -> Missing | None:
    return found.reason if isinstance(found, Unobserved) else None
