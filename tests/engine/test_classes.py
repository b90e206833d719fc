"""Classes of requests on a real vLLM: a header moves a request before batch work, and changes no token."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest

from flyball_engine.contract import Classes, Metric, ObjectiveSpec, OnTime, RequestClass
from flyball_engine.model import StepModel
from support.greedy import some_prompts, wish
from support.reflexes import a_budget
from support.served import Served

pytestmark = pytest.mark.engine

HEADER = "X-Gateway-Inference-Objective"
#: Steps of few tokens, so that prompts wait.
GUESS = StepModel(t0=0.002, h=0.0, c1=0.0003, c2=0.0003, beta=0.0, g=0.0, kappa=64)
CLASSES = Classes(
    classes=(
        RequestClass(name="chat", value="chat", first_token_deadline_seconds=30.0),
        RequestClass(name="batch", value="batch"),
    )
)
CHAT = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=300.0, of_class="chat")


async def answers(url: str, classes: list[str]) -> tuple[list[list[int]], list[int]]:
    """The tokens of some prompts' completions, sent one after the other; and in which order they came to their end.

    As many as there are classes, all where none is named.
    """
    ended: list[int] = []

    async def one(client: httpx.AsyncClient, number: int, prompt: list[int]) -> list[int]:
        headers = {HEADER: classes[number]} if classes else {}
        answer = await client.post("/v1/completions", json=wish(prompt, max_tokens=8), headers=headers)
        assert answer.status_code == 200, answer.text
        ended.append(number)
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens

    async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
        # Prompts of 375 tokens and more are the batch work, one short one comes last: while most of them wait, however
        # long it takes to send them.
        long = [list(prompt) for prompt in some_prompts(24) if len(prompt) > 250]
        prompts = [prompt[start:] * 3 for start in (0, 1, 2) for prompt in long]
        sent = []
        for number, prompt in enumerate([*prompts, list(range(200, 240))][: len(classes) or None]):
            sent.append(asyncio.create_task(one(client, number, prompt)))
            await asyncio.sleep(0)
        return list(await asyncio.gather(*sent)), ended


def metric(page: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


async def test_a_request_with_a_deadline_overtakes_batch_work_that_waits(served: Served) -> None:
    served.set()
    as_they_came, _ = await answers(served.server.url, [])
    last = len(as_they_came) - 1
    served.set(
        limits={"max_num_active_seqs": 4},
        step=a_budget(0.02, GUESS),
        on_time=OnTime(),
        classes=CLASSES,
        objectives=[CHAT],
    )
    before, behind = served.control.metrics(), served.core().order.moved_behind
    in_order, ended = await answers(served.server.url, [*["batch"] * last, "chat"])
    assert in_order == as_they_came
    assert ended.index(last) < last - 2, "it came last"

    def grown(name: str) -> float:
        return metric(served.control.metrics(), name) - metric(before, name)

    assert grown('flyball_class_requests_total{class="batch",outcome="finished"}') == last
    assert grown('flyball_class_requests_total{class="chat",outcome="finished"}') == 1
    assert grown(f'flyball_objective_requests_total{{objective="{CHAT.id}",outcome="met"}}') == 1
    assert served.core().order.moved_behind == behind, "nobody was late"
    await answers(served.server.url, ["unheard-of"] * 4)
    assert grown("flyball_unknown_class_total") == 4
