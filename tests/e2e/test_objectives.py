"""What status says of objectives and of the load, held against what the clients measure for themselves."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import lt

import pytest

from flyball_engine.contract import Metric, MetricName, ObjectiveSpec
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.quantities import parse_duration
from support.cluster import Object, patch
from support.counted import POINTS, between_clocks, moved
from support.live import ANSWER, MODEL, PROMPTS, RESOURCE, Service
from support.measured import Measurement, Wish, measure
from support.scraped import scraped

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

#: Seconds between two scrapes, and between two looks of the tuner.
PERIOD = 5.0
#: Status tells budgets in steps of five percent.
BUDGET_STEP = 5.0
#: Objectives for the time of a token, over what few clients see: the first may be kept by the largest steps where a
#: processor is fast, and the last by none where it is slow.
TIGHTER = (6.0, 3.0, 1.5)


@pytest.fixture
def tuned(chat: Service) -> Service:
    """The service with its model learnt, which takes steps of many sizes."""
    with chat.streams(6).running() as totals:
        chat.expect_condition("Tuned", "True", within=300)
    assert not totals.failures, totals.failures[0]
    return chat


@pytest.fixture
def asked(chat: Service) -> Iterator[Callable[[list[Object]], None]]:
    """Asks for other objectives, which restarts nothing; the scenario's own are put back at its end."""
    before, pod = chat.read()["spec"]["objectives"], chat.pod()

    def ask(objectives: list[Object]) -> None:
        patch(RESOURCE, chat.name, {"spec": {"objectives": objectives}}, namespace=chat.namespace)
        wanted = {(one["metric"], float(parse_duration(one["threshold"]))) for one in objectives}
        eventually(lambda: counted_against(chat) == wanted, expecting="the engine counts against them")

    yield ask
    patch(RESOURCE, chat.name, {"spec": {"objectives": before}}, namespace=chat.namespace)
    assert chat.pod()["metadata"]["uid"] == pod["metadata"]["uid"]


def counted_against(service: Service) -> set[tuple[str, float]]:
    return {(one["metric"], one["threshold_seconds"]) for one in service.read_back()["accepted"]["objectives"]}


def objective(name: str, metric: Metric, seconds: float, target: str) -> Object:
    return {"name": name, "metric": metric.value, "threshold": f"{seconds * 1000:.0f}ms", "target": target}


def test_an_edited_objective_is_answered_by_another_batch(
    tuned: Service, asked: Callable[[list[Object]], None], note_figure: Callable[[str], None]
) -> None:
    few = clients(tuned, 24).median(Metric.TIME_PER_OUTPUT_TOKEN)

    def ask(share: float) -> None:
        asked([objective("token", Metric.TIME_PER_OUTPUT_TOKEN, share * few, "90")])

    with tuned.streams(6).running() as load:
        ask(60.0)
        wide = eventually(lambda: wide_limits(tuned), expecting="steps of many requests and tokens", within=300)

        def smaller() -> bool:
            return any(map(lt, limits(tuned), wide))

        for share in TIGHTER:
            ask(share)
            began = time.time()
            with suppress(AssertionError):
                eventually(smaller, expecting="smaller steps", within=60)
                break
        answered = time.time()
        assert smaller(), "steps are as large as before"
        reason = tuned.tuning()["decisions"][0]["trigger"]
    assert not load.failures, load.failures[0]
    note_figure(f"{(answered - began) / PERIOD:.1f} control periods from the edit to smaller steps: {reason}")


def limits(service: Service) -> tuple[int, int]:
    """Requests and tokens of a step."""
    effective = service.effective()
    return int(effective["max_num_active_seqs"]), int(effective["max_num_scheduled_tokens"])


def wide_limits(service: Service) -> tuple[int, int] | None:
    """The limits, once they are as far apart from tight ones as the engine's ceilings let them be."""
    seqs, tokens = limits(service)
    return (seqs, tokens) if seqs >= 40 and tokens >= 1024 else None


@pytest.fixture
def untuned(tuned: Service) -> Iterator[Service]:
    """The service under limits that nobody moves, so that one load says of the next what its latencies will be."""
    mode = tuned.read()["spec"]["tuning"]["mode"]

    def put(wanted: str) -> None:
        patch(RESOURCE, tuned.name, {"spec": {"tuning": {"mode": wanted}}}, namespace=tuned.namespace)

    put("Disabled")
    tuned.expect_condition("Tuned", "False", reason="Disabled")
    yield tuned
    put(mode)


@pytest.mark.long  # what engines count is compared with clients in tests/engine, too
def test_attained_fractions_are_what_the_clients_measure(
    untuned: Service, asked: Callable[[list[Object]], None], note_figure: Callable[[str], None]
) -> None:
    before = clients(untuned, 24)
    # Half of the requests or so keep the first two; what a verdict hangs on is far from what they see. The API server
    # takes a later first token than a whole answer only where more of the first tokens must come in time.
    targets = {
        name: (ObjectiveSpec(metric=metric, threshold_seconds=round(part * before.median(metric), 3)), target)
        for name, metric, part, target in (
            ("first", Metric.TIME_TO_FIRST_TOKEN, 1.1, 4.0),
            ("token", Metric.TIME_PER_OUTPUT_TOKEN, 1.1, 50.0),
            ("whole", Metric.END_TO_END_LATENCY, 0.02, 2.0),
        )
    }
    asked(
        [objective(name, one.metric, one.threshold_seconds, f"{target:g}") for name, (one, target) in targets.items()]
    )
    for one, _ in targets.values():
        expect_scraped(untuned, one, 0)
    seen = clients(untuned, 60)
    for name, (one, target) in targets.items():
        expect_scraped(untuned, one, len(seen.finished))
        note_figure(expect_agreement(untuned, name, one, target, seen))
    violated = untuned.expect_condition("ObjectivesMet", "False")
    assert "whole" in violated["message"], "what 2 % should have met, and nobody did"
    assert "first" not in violated["message"], "what 4 % should have met"


def expect_agreement(service: Service, name: str, one: ObjectiveSpec, target: float, seen: Measurement) -> str:
    """Status tells of an objective what the clients saw; both, in words."""
    less, exact, more = (100 * seen.met(moved(one, sign * between_clocks(one, seen))) for sign in (-1, 0, 1))
    low, high = less - 100 * POINTS, more + 100 * POINTS

    def agrees() -> Object | None:
        row: Object = next(row for row in service.read()["status"]["objectives"] if row["name"] == name)
        return row if low <= float(row.get("attained") or -1) <= high else None

    row = eventually(agrees, expecting=f"{name} attained between {low:.1f} and {high:.1f}", within=240)
    left = [100 * (1 - (100 - share) / (100 - target)) for share in (low, exact, high)]
    assert left[0] - BUDGET_STEP / 2 <= float(row["budgetRemaining"]) <= left[2] + BUDGET_STEP / 2
    return (
        f"{name} within {one.threshold_seconds:g} s: {row['attained']} % by status, {exact:.1f} % by the clients of"
        f" {len(seen.finished)} requests; remaining budget {row['budgetRemaining']} % and {left[1]:.0f} %"
    )


def clients(service: Service, number: int) -> Measurement:
    """What clients measure of so many requests, six at a time."""
    wishes = [Wish(prompt_tokens=PROMPTS[one % len(PROMPTS)], max_tokens=ANSWER) for one in range(number)]
    return asyncio.run(measure(service.url(), MODEL, wishes, concurrency=6))


def expect_scraped(service: Service, one: ObjectiveSpec, number: int) -> None:
    """The newest scrape has so many requests counted against an objective."""

    def newest() -> bool:
        counts = scraped(MetricName.OBJECTIVE_REQUESTS, uid=service.uid, seconds=30, objective=one.id)
        return next(reversed(counts.values()), None) == number

    eventually(newest, expecting=f"a scrape with {number} requests counted against {one.id}")


@pytest.mark.long
def test_objectives_that_nobody_can_keep_are_named_with_what_can(
    tuned: Service, asked: Callable[[list[Object]], None], note_figure: Callable[[str], None]
) -> None:
    hopeless, token = 0.005, objective("token", Metric.TIME_PER_OUTPUT_TOKEN, 0.5, "90")
    with tuned.streams(1, pause=0.5).running() as totals:
        asked([objective("first", Metric.TIME_TO_FIRST_TOKEN, hopeless, "90"), token])
        found = tuned.expect_condition("CapacitySufficient", "False", reason="Infeasible", edited=True, within=300)
        named = re.search(
            r"cannot keep first within 5ms, the least that it can keep is ([\d.]+[a-z]+)", found["message"]
        )
        assert named, found["message"]
        kept = float(parse_duration(named[1]))
        alone = sorted(first.seconds for first in totals.first_tokens)
        note_figure(
            f"asked for {hopeless * 1000:g} ms: {found['message']}; a client alone saw"
            f" {1000 * alone[len(alone) // 2]:.0f} ms in the median, {1000 * alone[-1]:.0f} ms at most"
        )
        assert kept > hopeless
    assert not totals.failures
