"""A real vLLM refuses by a deadline: on every route that generates, on no other, before anything is answered."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from flyball_engine.batching.gate import MOST_LATE_SECONDS, QUEUE_FULL_SECONDS, AdmissionReason
from flyball_engine.contract import (
    BatchingKnob,
    Classes,
    Metric,
    ObjectiveSpec,
    OnTime,
    QueueKnob,
    QueueLimits,
    RequestClass,
    Shed,
    ShedKnob,
    StrategyType,
)
from flyball_engine.model import StepModel
from flyball_engine.vllm.routes import unasked
from flyball_lab.benchmark.main import main as flyball_bench
from flyball_lab.benchmark.report import Report
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.vllm_server import MODEL_NAME
from flyball_lab.harness.waiting import eventually
from support.reflexes import a_budget
from support.served import Served
from support.wrong_inputs.openai import VLLM

pytestmark = pytest.mark.engine

T = TypeVar("T")

#: Says that a step takes far longer than any does.
SLOW = StepModel(t0=0.1, h=0.0, c1=1e-3, c2=1e-3, beta=0.0, g=0.0, kappa=1)

#: The same ten times over.
VERY_SLOW = StepModel(t0=1.0, h=0.0, c1=1e-2, c2=1e-2, beta=0.0, g=0.0, kappa=1)

#: Says that a step takes next to nothing.
INSTANT = StepModel(t0=1e-6, h=0.0, c1=1e-9, c2=1e-9, beta=0.0, g=0.0, kappa=1)

SHORT_EXERCISE = ("--concurrency=8", "--requests=2", "--workloads=mixed", "--input-tokens=32", "--output-tokens=8")

#: Tokens of an answer that fills what the model can hold, beside a prompt; it takes 20 s and more.
_LONGEST = 3900
_ATTEMPTS = 5

PROMPT = "the quick brown fox " * 20
MESSAGES = [{"role": "user", "content": PROMPT}]
COMPLETION = {"prompt": PROMPT, "max_tokens": 3}
CHAT = {"messages": MESSAGES, "max_tokens": 3}
GENERATING: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", COMPLETION),
    "streamed completion": ("/v1/completions", COMPLETION | {"stream": True}),
    "several completions": ("/v1/completions", COMPLETION | {"n": 3, "temperature": 1.0}),
    "several prompts": ("/v1/completions", COMPLETION | {"prompt": [PROMPT, PROMPT]}),
    "prompt of tokens": ("/v1/completions", COMPLETION | {"prompt": [[5] * 50]}),
    "chat": ("/v1/chat/completions", CHAT),
    "streamed chat": ("/v1/chat/completions", CHAT | {"stream": True}),
    "batch of chats": ("/v1/chat/completions/batch", CHAT | {"messages": [MESSAGES, MESSAGES]}),
    "response": ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16}),
    "streamed response": ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16, "stream": True}),
    "message": ("/v1/messages", CHAT),
    "streamed message": ("/v1/messages", CHAT | {"stream": True}),
    "tokens": ("/inference/v1/generate", {"token_ids": [5] * 50, "sampling_params": {"max_tokens": 3}}),
}
OTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "tokenize": ("/tokenize", {"prompt": PROMPT}),
    "tokenize a chat": ("/tokenize", {"messages": MESSAGES}),
    "count tokens": ("/v1/messages/count_tokens", {"messages": MESSAGES}),
}


@dataclass
class Gated:
    """A server with a gate, and the means to close it."""

    served: Served

    def sheds_after(
        self, deadline: float, *, model: StepModel = SLOW, budget: float = 0.3, trusted: bool = True, **shed: Any
    ) -> None:
        self.served.set(
            step=a_budget(budget, model, trusted=trusted), shed=Shed(ttft_deadline_seconds=deadline, margin=1.0, **shed)
        )

    def orders_and_sheds_after(self, deadline: float, model: StepModel) -> None:
        """As the operator sends it: who can be in time first, and the others are refused while they wait."""
        self.served.set(
            step=a_budget(0.3, model),
            shed=Shed(ttft_deadline_seconds=deadline),
            on_time=OnTime(first_token_deadline_seconds=deadline),
            objectives=(ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=deadline),),
        )

    def lets_nobody_run_beside_another(self, *, deadline: float, **shed: Any) -> None:
        """Whoever comes waits, and nobody thinks so: the model says that a step takes no time."""
        self.served.set(
            limits={"max_num_active_seqs": 1},
            step=a_budget(0.3, INSTANT),
            shed=Shed(ttft_deadline_seconds=deadline, margin=1.0, **shed),
        )

    def seconds_of_a_prompt(self, tokens: int) -> float:
        """What a prompt of so many tokens takes alone, at best."""
        self.served.set()
        found = []
        for number in range(4):
            began = time.monotonic()
            answer = self.post("/v1/completions", {"prompt": a_prompt(number, tokens), "max_tokens": 1})
            assert answer.status_code == 200, answer.text
            found.append(time.monotonic() - began)
        return min(found)

    def first_tokens(self, outcome: str, deadline: float) -> int:
        """Requests that the engine has counted against the objective."""
        identity = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=deadline).id
        name = rf'flyball_objective_requests_total{{objective="{re.escape(identity)}",outcome="{outcome}"}} (\S+)'
        found = re.search(name, self.served.control.metrics())
        return int(float(found[1])) if found else 0

    def requests(self, outcome: str) -> int:
        found = re.search(rf'flyball_requests_total{{outcome="{outcome}"}} (\S+)', self.served.control.metrics())
        assert found, "no such counter"
        return int(float(found[1]))

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        url, body = f"{self.served.server.url}{path}", {"model": MODEL_NAME} | body
        return httpx.post(url, json=body, headers=headers, timeout=120, trust_env=False)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A request runs, for many seconds if it is not broken off."""
        long = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": _LONGEST, "ignore_eos": True, "stream": True}
        with httpx.stream(
            "POST", f"{self.served.server.url}/v1/completions", json=long, timeout=120, trust_env=False
        ) as running:
            assert running.status_code == 200
            # The gate decides by what the core published last: idle, and of the setpoint before, until its first step.
            eventually(lambda: self.served.core().running > 0, expecting="the core says that it is busy")
            yield

    def beside_another(self, act: Callable[[], T]) -> T:
        """What comes of an act while a request runs. Where that came to its end first, it is done again.

        A machine that does other things may hold up a client for longer than the longest answer takes. So whatever an
        act leaves behind must not matter to the next.
        """
        for _ in range(_ATTEMPTS):
            with self.busy():
                done = act()
                if self.served.core().running > 0:
                    return done
        raise AssertionError(f"{_ATTEMPTS} times an answer of {_LONGEST} tokens was whole before the test was done")

    def posted_beside_another(
        self, path: str, body: dict[str, Any], *counted: Callable[[], int]
    ) -> tuple[httpx.Response, list[int]]:
        """The answer, and how much more each counter shows after it."""

        def post() -> tuple[httpx.Response, list[int]]:
            before = [count() for count in counted]
            answer = self.post(path, body)
            return answer, [count() - earlier for count, earlier in zip(counted, before, strict=True)]

        return self.beside_another(post)

    def admissions(self, reason: AdmissionReason) -> int:
        found = re.search(
            rf'flyball_admissions_total{{decision="\w+",reason="{reason.value}"}} (\S+)', self.served.control.metrics()
        )
        assert found, "no such counter"
        return int(float(found[1]))


def a_prompt(number: int, tokens: int) -> list[int]:
    """A prompt that no other begins like."""
    return [(number * 7919 + position * 37) % 4000 + 100 for position in range(tokens)]


def tokens_of(answer: httpx.Response) -> int:
    """The tokens of a completion, streamed or not."""
    if answer.headers["content-type"] == "application/json":
        return int(answer.json()["usage"]["completion_tokens"])
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", answer.text
    return int(json.loads(events[-2])["usage"]["completion_tokens"])


def expect_route(answer: httpx.Response) -> None:
    """Skip a test of a route that this vLLM does not have: the versions that are supported differ in them."""
    if answer.status_code == 404:
        pytest.skip(f"this vLLM has no {answer.url.path}")


@pytest.fixture
def gated(served: Served) -> Gated:
    return Gated(served)


@pytest.mark.parametrize("route", GENERATING)
def test_late_requests_are_refused_before_anything_is_answered(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    gated.sheds_after(1e-3)
    answer, refused = gated.posted_beside_another(path, body, lambda: gated.admissions(AdmissionReason.LATE))
    expect_route(answer)
    assert answer.status_code == 503, answer.text
    assert 1 <= int(answer.headers["Retry-After"]) <= 2 * MOST_LATE_SECONDS
    error = answer.json()["error"]
    assert "overloaded" in error["message"]
    assert f"retry after {answer.headers['Retry-After']} s" in error["message"]
    assert refused == [1]


@pytest.mark.parametrize("route", GENERATING)
def test_a_request_whose_priority_names_batch_work_is_not_refused(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    batch = Classes(classes=(RequestClass(name="batch", value="batch", priority=5),))
    gated.served.set(step=a_budget(0.3, SLOW), shed=Shed(ttft_deadline_seconds=1e-3), classes=batch)
    # That of Anthropic's form has no place for it in the body.
    said = {"X-Vllm-Priority": "5"} if "message" in route else {}

    def both() -> tuple[httpx.Response, httpx.Response, int]:
        before = gated.admissions(AdmissionReason.NO_DEADLINE)
        refused = gated.post(path, body)
        answer = gated.post(path, body | ({} if said else {"priority": 5}), **said)
        return refused, answer, gated.admissions(AdmissionReason.NO_DEADLINE) - before

    refused, answer, let_in = gated.beside_another(both)
    expect_route(refused)
    assert refused.status_code == 503, refused.text
    assert answer.status_code == 200, answer.text
    assert let_in == 1


def test_an_answer_that_will_be_too_long_is_refused_where_it_is_to_be_whole_in_time(gated: Gated) -> None:
    whole = ObjectiveSpec(metric=Metric.END_TO_END_LATENCY, threshold_seconds=1e-3)
    gated.served.set(step=a_budget(0.3, INSTANT), shed=Shed(ttft_deadline_seconds=1000.0), objectives=(whole,))
    long = COMPLETION | {"max_tokens": 256, "ignore_eos": True}
    eventually(lambda: gated.served.core().running == 0, expecting="the engine is idle")
    for body in (COMPLETION, long, COMPLETION, long, COMPLETION):
        answer = gated.post("/v1/completions", body)
        assert answer.status_code in (200, 503), answer.text

    def both() -> tuple[httpx.Response | None, httpx.Response]:
        # Where the other answer once came to its end, a mean answer is long. So many short ones make it short again.
        for _ in range(60):
            gated.post("/v1/completions", COMPLETION)
        # One in 30 s is let in, whatever is expected of it.
        asked = (gated.post("/v1/completions", long) for _ in range(2))
        refused = next((answer for answer in asked if answer.status_code != 200), None)
        return refused, gated.post("/v1/completions", COMPLETION)

    refused, answered = gated.beside_another(both)
    assert refused is not None
    assert refused.status_code == 503, refused.text
    assert answered.status_code == 200, answered.text


@pytest.mark.parametrize("route", GENERATING)
def test_an_idle_engine_answers_what_is_late_anyway(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    gated.sheds_after(1e-3)
    eventually(lambda: gated.served.core().running == 0, expecting="the engine is idle")
    let_in = gated.admissions(AdmissionReason.IDLE)
    answer = gated.post(path, body)
    expect_route(answer)
    assert answer.status_code == 200, answer.text
    assert gated.admissions(AdmissionReason.IDLE) == let_in + 1


@pytest.mark.parametrize("route", GENERATING)
def test_requests_in_time_are_answered(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    gated.sheds_after(1000.0)
    let_in = gated.admissions(AdmissionReason.IN_TIME)
    answer = gated.post(path, body)
    expect_route(answer)
    assert answer.status_code == 200, answer.text
    assert "retry-after" not in answer.headers
    assert gated.admissions(AdmissionReason.IN_TIME) == let_in + 1


def test_the_routes_that_the_gate_is_not_asked_about_are_named(gated: Gated) -> None:
    served = httpx.get(f"{gated.served.server.url}/openapi.json", timeout=120, trust_env=False).json()["paths"]
    said = gated.served.control.read()
    assert said.unsupported.get(ShedKnob.ROUTES) == unasked(served)
    assert said.ungated is None, "on all others it refuses"


@pytest.mark.parametrize("route", OTHER)
def test_what_generates_nothing_is_never_refused(gated: Gated, route: str) -> None:
    path, body = OTHER[route]
    gated.sheds_after(1e-3)
    answer = gated.post(path, body)
    assert answer.status_code == 200, answer.text
    assert httpx.get(f"{gated.served.server.url}/health", timeout=120, trust_env=False).status_code == 200


def test_what_is_wrong_is_answered_as_vllm_does_and_never_taken_for_overload(gated: Gated) -> None:
    gated.sheds_after(1000.0)
    for path, body, status, says in VLLM:
        named = body if '"model"' in body else body.replace("{", f'{{"model": "{MODEL_NAME}", ', 1).replace(", }", "}")
        content = body if body == "{not json" else named
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(
            f"{gated.served.server.url}{path}", content=content, headers=headers, timeout=120, trust_env=False
        )
        assert answer.status_code == status, f"{body}: {answer.text}"
        assert "retry-after" not in answer.headers
        assert [words for words in says if words not in answer.text] == [], f"{body}: {answer.text}"


def test_of_two_long_prompts_the_one_that_is_cached_is_let_in(gated: Gated) -> None:
    warm, cold = ([token + index % 97 for index in range(1500)] for token in (1000, 3000))
    gated.served.set()
    assert gated.post("/v1/completions", {"prompt": warm, "max_tokens": 1}).status_code == 200
    # Of the model's steps the cold prompt takes eight, the warm one the least there is.
    # A wait of seconds leaves room for a machine that is busy with other things.
    gated.sheds_after(8.0, model=VERY_SLOW, budget=3.0)
    tenants = itertools.count()

    def statuses() -> list[int]:
        tenant = next(tenants)
        never = {"prompt": [token + tenant for token in cold]}
        salted = {"prompt": warm, "cache_salt": f"tenant {tenant}"}
        asked = ({"prompt": warm}, {"prompt": [*warm, 5], "stream": True}, never, salted)
        return [gated.post("/v1/completions", one | {"max_tokens": 1}).status_code for one in asked]

    assert gated.beside_another(statuses) == [200, 200, 503, 503], "cached twice, cold, and apart by a salt"


def test_a_model_nobody_trusts_refuses_nobody(gated: Gated) -> None:
    gated.sheds_after(1e-3, trusted=False)
    let_in = gated.admissions(AdmissionReason.NO_MODEL)
    assert gated.post("/v1/completions", COMPLETION).status_code == 200
    assert gated.admissions(AdmissionReason.NO_MODEL) == let_in + 1


def test_without_a_deadline_everything_is_queued(gated: Gated) -> None:
    gated.served.set(step=a_budget(0.3, SLOW))
    assert gated.post("/v1/completions", COMPLETION).status_code == 200


def test_vllm_s_own_queue_limits_move_live_and_what_they_refuse_is_its_answer_and_counted(gated: Gated) -> None:
    served, limited = gated.served, QueueLimits(max_num_queued_reqs=1)
    if lacking := served.control.read().unsupported.get(QueueKnob.MAX_NUM_QUEUED_REQS):
        _, error = served.control.refuse(served.setpoint(queue=limited))
        assert error.message == f"queue.max_num_queued_reqs: {lacking}"
        return
    assert served.control.read().queue == QueueLimits()
    assert served.set(queue=limited).queue == limited
    refused = gated.admissions(AdmissionReason.QUEUE_FULL)
    answers = gated.beside_another(lambda: {route: gated.post(*asked) for route, asked in GENERATING.items()})
    for route, answer in answers.items():
        if answer.status_code != 404:
            assert answer.status_code == 503, route
            assert QUEUE_FULL_SECONDS <= int(answer.headers["Retry-After"]) <= 2 * QUEUE_FULL_SECONDS, route
            assert "busy" in answer.json()["error"]["message"]
    turned_away = gated.admissions(AdmissionReason.QUEUE_FULL)
    assert turned_away > refused + 5
    assert served.set().queue == QueueLimits()
    answer, _ = gated.posted_beside_another("/v1/completions", COMPLETION)
    assert answer.status_code == 200
    assert gated.admissions(AdmissionReason.QUEUE_FULL) == turned_away


@pytest.mark.alone
def test_past_a_queue_that_takes_too_long_all_come_in_and_the_late_ones_are_refused_before_they_begin(
    gated: Gated,
) -> None:
    # About 0.3 ms a token, as the bias finds out: 64 prompts of 900 tokens are a queue of many seconds.
    deadline = 2.0
    gated.orders_and_sheds_after(deadline, StepModel(t0=0.005, h=0.0, c1=3e-4, c2=3e-4, beta=0.0, g=0.0, kappa=1))
    expired = gated.admissions(AdmissionReason.EXPIRED)
    load = StreamLoad(url=gated.served.server.url, model=MODEL_NAME, concurrency=64, prompt_tokens=900, max_tokens=8)
    with load.running() as totals:
        eventually(lambda: gated.admissions(AdmissionReason.EXPIRED) > expired + 20, expecting="some are refused")
        eventually(lambda: gated.first_tokens("met", deadline) > 20, expecting="some are in time")
    assert totals.finished > 0
    assert not totals.truncated
    assert not totals.failures
    assert totals.refused
    # Nothing of what was refused, or ended, stands in the way of the next.
    eventually(lambda: gated.served.core().running == 0, expecting="the engine is idle")
    assert gated.post("/v1/completions", COMPLETION).status_code == 200


@pytest.mark.parametrize("route", GENERATING)
def test_what_becomes_late_while_it_waits_is_refused_while_nothing_was_sent(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    gated.lets_nobody_run_beside_another(deadline=0.5)
    answer, more = gated.posted_beside_another(
        path, body, lambda: gated.admissions(AdmissionReason.EXPIRED), lambda: gated.requests("refused")
    )
    expect_route(answer)
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert 1 <= int(answer.headers["Retry-After"]) <= 2 * MOST_LATE_SECONDS
    error = answer.json()["error"]
    assert f"retry after {answer.headers['Retry-After']} s" in error["message"]
    assert more == [1, 1]


def test_both_kinds_of_refusals_have_the_status_that_the_setpoint_names(gated: Gated) -> None:
    gated.lets_nobody_run_beside_another(deadline=0.5, refusal_status=429)
    waited, _ = gated.posted_beside_another(*GENERATING["streamed chat"])
    gated.sheds_after(1e-3, refusal_status=429)
    came, _ = gated.posted_beside_another(*GENERATING["chat"])
    for answer in (waited, came):
        assert answer.status_code == 429, answer.text
        assert answer.json()["error"]["code"] == 429
        assert "Retry-After" in answer.headers


@pytest.mark.alone
def test_of_a_burst_that_a_model_takes_too_lightly_each_is_answered_whole_or_refused(gated: Gated) -> None:
    alone = gated.seconds_of_a_prompt(900)
    believed = StepModel(t0=alone / 1000, h=0.0, c1=alone / 9000, c2=alone / 9000, beta=0.0, g=0.0, kappa=1)
    # All of them look as if they took 6.4 times as long as one, and take 64 times as long.
    gated.sheds_after(8 * alone, model=believed)
    expired, late = gated.admissions(AdmissionReason.EXPIRED), gated.admissions(AdmissionReason.LATE)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    bodies = [
        {"prompt": a_prompt(100 + number, 900), "max_tokens": 8, "ignore_eos": True} | (streamed if number % 2 else {})
        for number in range(64)
    ]
    with ThreadPoolExecutor(len(bodies)) as clients:
        answers = list(clients.map(lambda body: gated.post("/v1/completions", body), bodies))
    refused = [answer for answer in answers if answer.status_code == 503]
    whole = [answer for answer in answers if answer.status_code == 200]
    assert len(refused) + len(whole) == len(bodies), {answer.status_code for answer in answers}
    for answer in refused:
        assert 1 <= int(answer.headers["Retry-After"]) <= 2 * MOST_LATE_SECONDS
        assert "overloaded" in answer.json()["error"]["message"]
    assert [tokens_of(answer) for answer in whole] == [8] * len(whole)
    expired = gated.admissions(AdmissionReason.EXPIRED) - expired
    assert len(refused) == expired + gated.admissions(AdmissionReason.LATE) - late
    assert expired >= 10, "the model was right"
    assert {answer.request.content.count(b'"stream":true') for answer in refused} == {0, 1}
    # Nothing of what was refused stands in the way of the next, or holds a block.
    eventually(lambda: gated.served.core().running == 0, expecting="the engine is idle")
    core = gated.served.core()
    assert (core.waiting, core.kv_cache_usage) == (0, 0)
    assert gated.post("/v1/completions", COMPLETION).status_code == 200


def test_the_exercise_compares_strategies_without_the_gate_and_puts_it_back(
    gated: Gated, server_python: str, model: Path, tmp_path: Path
) -> None:
    gated.sheds_after(1000.0)
    before = gated.served.control.read()
    lacking = {knob.value for knob in before.unsupported if isinstance(knob, BatchingKnob)}
    strategies = [one for one in StrategyType if f"batching.strategy.{one.value}" not in lacking]
    key = tmp_path / "key.pem"
    key.write_bytes(gated.served.server.signer.private_pem)
    where = [f"--url={gated.served.server.url}", f"--control={gated.served.server.control_url}", f"--signing-key={key}"]
    how = [f"--python={server_python}", f"--tokenizer={model}", f"--out={tmp_path}"]
    what = [f"--strategies={','.join(strategies)}", *SHORT_EXERCISE]
    assert flyball_bench(["run", *where, *how, *what]) == 0
    series = Report.model_validate_json((tmp_path / "report.json").read_bytes()).series
    assert [line.setting.strategy for line in series] == strategies
    for line in series:
        (point,) = line.measurements
        assert (point.completed, point.failed, point.truncated) == (16, 0, 0), point
    held, after = before.accepted, gated.served.control.read().accepted
    assert held is not None
    assert after is not None
    assert after == held.model_copy(update={"generation": after.generation})
