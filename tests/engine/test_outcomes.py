"""What a real vLLM counts of its requests, against what their clients measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection
from random import Random
from urllib.parse import urlsplit

import httpx
import pytest

from flyball_engine.contract import Metric, MetricName, ObjectiveSpec
from flyball_lab.harness.vllm_server import MODEL_NAME, VllmServer
from flyball_lab.harness.waiting import eventually
from support.counted import Counted, disagreements, near_what_was_seen
from support.measured import Measurement, Wish, measure, mixed
from support.served import Served

pytestmark = [pytest.mark.engine, pytest.mark.alone]

STREAMS = 32
REQUESTS = 96
ATTEMPTS = 3
EASY = (ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=1000.0),)
IMPOSSIBLE = (ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=1e-6),)


@pytest.fixture
def counted(served: Served) -> Counted:
    return Counted(served)


async def under_load(server: VllmServer, wishes: Sequence[Wish]) -> Measurement:
    return await measure(server.url, MODEL_NAME, wishes, concurrency=STREAMS)


async def test_counts_agree_with_what_clients_measured(counted: Counted, note_figure: Callable[[str], None]) -> None:
    await under_load(counted.server, mixed(STREAMS, seed=0))  # a server's first steps take longer
    # What is counted wrongly is so every time; clients that other processes hold up see less of the engine.
    for attempt in range(ATTEMPTS):
        apart = await a_load_that_is_counted(counted, attempt, note_figure)
        if not apart:
            return
    pytest.fail("; ".join(apart))


async def a_load_that_is_counted(counted: Counted, attempt: int, note: Callable[[str], None]) -> list[str]:
    """Where counts and clients disagree on latencies; on requests and tokens they do not."""
    first = await under_load(counted.server, mixed(2 * STREAMS, seed=1 + 2 * attempt))
    near = Measurement(first.seen[STREAMS:])  # the first of them met an empty server
    objectives = near_what_was_seen(near)
    counted.against(objectives)

    wishes = mixed(REQUESTS, seed=2 + 2 * attempt)
    seen = await under_load(counted.server, wishes)

    counted.expect_outcomes(finished=REQUESTS)
    answers = [wish.n * wish.prompts for wish in wishes]
    prompts = sum(wish.prompt_tokens * number for wish, number in zip(wishes, answers, strict=True))
    assert counted(MetricName.PROMPT_TOKENS) == prompts
    assert 0 < counted(MetricName.CACHED_PROMPT_TOKENS) < prompts
    assert counted(MetricName.GENERATED_TOKENS) == sum(
        wish.max_tokens * number for wish, number in zip(wishes, answers, strict=True)
    )
    return disagreements(counted, seen, objectives, note)


LEAVING = [Wish(prompt_tokens=400, max_tokens=3600, leave_after=after) for after in (0.2, 0.4, 0.6)]


async def test_clients_that_leave_in_time_violate_nothing(counted: Counted) -> None:
    counted.against(EASY)
    await under_load(counted.server, LEAVING)
    counted.expect_outcomes(aborted=len(LEAVING))
    assert counted(MetricName.OBJECTIVE_REQUESTS, objective=EASY[0].id, outcome="violated") == 0


async def test_clients_that_leave_past_a_deadline_are_violations(counted: Counted) -> None:
    counted.against(IMPOSSIBLE)
    await under_load(counted.server, LEAVING)
    counted.expect_outcomes(abandoned=len(LEAVING))
    assert counted(MetricName.OBJECTIVE_REQUESTS, objective=IMPOSSIBLE[0].id, outcome="violated") == len(LEAVING)


def test_a_client_that_leaves_an_answer_in_one_piece(counted: Counted) -> None:
    counted.against(EASY)
    body = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 3000, "ignore_eos": True}
    with closing(HTTPConnection(urlsplit(counted.server.url).netloc, timeout=120)) as client:
        client.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        # How long the answer takes is the machine's: so the client leaves once it is begun, not after some time.
        eventually(lambda: counted(MetricName.RUNNING, engine="0"), expecting="the request runs", within=60, every=0.01)
    counted.expect_outcomes(aborted=1)


def test_beams_are_one_request(counted: Counted) -> None:
    counted.against(EASY)
    assert post(counted, prompt="hello", max_tokens=3, use_beam_search=True, n=2).status_code == 200
    counted.expect_outcomes(finished=1)
    assert counted(MetricName.OBJECTIVE_REQUESTS, objective=EASY[0].id, outcome="met") == 1


def test_what_is_computed_of_a_prompt_is_squared_but_for_what_the_prefix_cache_has(counted: Counted) -> None:
    random = Random(11)
    first, more = ([random.randrange(100, 250) for _ in range(tokens)] for tokens in (900, 70))
    counted.against(EASY)
    for prompt in (first, first[:800] + more):
        assert post(counted, prompt=prompt, max_tokens=4).status_code == 200
    counted.expect_outcomes(finished=2)
    cached = counted(MetricName.CACHED_PROMPT_TOKENS)
    assert 600 < cached <= 800, "of the second"
    rest = 870 - cached
    assert counted(MetricName.TOKENS, engine="0", phase="prefill") == 900 + rest
    assert counted(MetricName.COMPUTED_PROMPT_TOKENS_SQUARED, engine="0") == 900**2 + rest**2


def test_refusals_are_counted_apart_and_what_generates_nothing_not_at_all(counted: Counted) -> None:
    counted.against(EASY)
    assert post(counted, prompt="hello", max_tokens=-4).status_code == 400
    assert post(counted, prompt="hello", model="no-such-model").status_code == 404
    assert post(counted, path="/tokenize", prompt="hello").status_code == 200
    counted.expect_outcomes(refused=1)


def post(counted: Counted, *, path: str = "/v1/completions", **body: object) -> httpx.Response:
    """One request, with the answer in one piece."""
    return httpx.post(f"{counted.server.url}{path}", json={"model": MODEL_NAME, **body}, timeout=120.0, trust_env=False)
