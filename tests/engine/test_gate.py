"""A real vLLM refuses by a deadline: on every route that generates, on no other, before anything is answered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball_engine.batching.gate import Reason
from flyball_engine.bench.main import main as flyball_bench
from flyball_engine.bench.report import Report
from flyball_engine.contract import BatchingKnob, QueueKnob, QueueLimits, Shed, StrategyType
from flyball_engine.model import StepModel
from support.reflexes import a_budget
from support.served import Served
from support.streams import StreamLoad
from support.vllm_server import MODEL_NAME
from support.waiting import eventually
from support.wrong_inputs.openai import VLLM

pytestmark = pytest.mark.engine

#: Says that a step takes far longer than any does.
SLOW = StepModel(t0=0.1, h=0.0, c1=1e-3, c2=1e-3, beta=0.0, g=0.0, kappa=1)

SHORT_EXERCISE = ("--concurrency=8", "--requests=2", "--workloads=mixed", "--input-tokens=32", "--output-tokens=8")

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

    def sheds_after(self, deadline: float, *, model: StepModel = SLOW, trusted: bool = True) -> None:
        self.served.set(
            step=a_budget(0.3, model, trusted=trusted), shed=Shed(ttft_deadline_seconds=deadline, margin=1.0)
        )

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(
            f"{self.served.server.url}{path}", json={"model": MODEL_NAME} | body, timeout=120, trust_env=False
        )

    def admissions(self, reason: Reason) -> int:
        found = re.search(
            rf'flyball_admissions_total{{decision="\w+",reason="{reason.value}"}} (\S+)', self.served.control.metrics()
        )
        assert found, "no such counter"
        return int(float(found[1]))


@pytest.fixture
def gated(served: Served) -> Gated:
    return Gated(served)


@pytest.mark.parametrize("route", GENERATING)
def test_late_requests_are_refused_before_anything_is_answered(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    gated.sheds_after(1e-3)
    refused = gated.admissions(Reason.LATE)
    answer = gated.post(path, body)
    if answer.status_code == 404:
        pytest.skip(f"this vLLM has no {path}")
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["Retry-After"]) >= 1
    error = answer.json()["error"]
    assert "overloaded" in error["message"]
    assert gated.admissions(Reason.LATE) == refused + 1


@pytest.mark.parametrize("route", GENERATING)
def test_requests_in_time_are_answered(gated: Gated, route: str) -> None:
    path, body = GENERATING[route]
    gated.sheds_after(1000.0)
    let_in = gated.admissions(Reason.IN_TIME)
    answer = gated.post(path, body)
    if answer.status_code == 404:
        pytest.skip(f"this vLLM has no {path}")
    assert answer.status_code == 200, answer.text
    assert "retry-after" not in answer.headers
    assert gated.admissions(Reason.IN_TIME) == let_in + 1


@pytest.mark.parametrize("route", OTHER)
def test_what_generates_nothing_is_never_refused(gated: Gated, route: str) -> None:
    path, body = OTHER[route]
    gated.sheds_after(1e-3)
    answer = gated.post(path, body)
    assert answer.status_code == 200, answer.text
    assert httpx.get(f"{gated.served.server.url}/health", trust_env=False).status_code == 200


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
    gated.sheds_after(0.8)
    assert gated.post("/v1/completions", {"prompt": warm, "max_tokens": 1}).status_code == 200
    assert gated.post("/v1/completions", {"prompt": [*warm, 5], "max_tokens": 1, "stream": True}).status_code == 200
    assert gated.post("/v1/completions", {"prompt": cold, "max_tokens": 1}).status_code == 503
    salted = gated.post("/v1/completions", {"prompt": warm, "max_tokens": 1, "cache_salt": "another tenant's"})
    assert salted.status_code == 503, "a salt keeps it apart"


def test_a_model_nobody_trusts_refuses_nobody(gated: Gated) -> None:
    gated.sheds_after(1e-3, trusted=False)
    let_in = gated.admissions(Reason.NO_MODEL)
    assert gated.post("/v1/completions", COMPLETION).status_code == 200
    assert gated.admissions(Reason.NO_MODEL) == let_in + 1


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
    refused = gated.admissions(Reason.QUEUE_FULL)
    # It runs for many seconds, and is broken off.
    long = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 3000, "ignore_eos": True, "stream": True}
    with httpx.stream(
        "POST", f"{served.server.url}/v1/completions", json=long, timeout=120, trust_env=False
    ) as running:
        assert running.status_code == 200
        for route in GENERATING.values():
            if (answer := gated.post(*route)).status_code != 404:
                assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), route
                assert "busy" in answer.json()["error"]["message"]
        turned_away = gated.admissions(Reason.QUEUE_FULL)
        assert turned_away > refused + 5
        assert served.set().queue == QueueLimits()
        assert gated.post("/v1/completions", COMPLETION).status_code == 200
    assert gated.admissions(Reason.QUEUE_FULL) == turned_away


def test_past_a_queue_that_takes_too_long_more_are_refused_and_those_let_in_end_well(gated: Gated) -> None:
    # About 0.3 ms a token, as the bias finds out: 64 prompts of 900 tokens are a queue of many seconds.
    gated.sheds_after(2.0, model=StepModel(t0=0.005, h=0.0, c1=3e-4, c2=3e-4, beta=0.0, g=0.0, kappa=1))
    late = gated.admissions(Reason.LATE)
    load = StreamLoad(url=gated.served.server.url, model=MODEL_NAME, concurrency=64, prompt_tokens=900, max_tokens=8)
    with load.running() as totals:
        eventually(lambda: gated.admissions(Reason.LATE) > late + 20, expecting="some are refused", within=120)
    assert totals.finished > 0
    assert not totals.truncated
    assert not totals.failures
    assert totals.refused
    # Nothing of what was refused, or ended, stands in the way of the next.
    eventually(lambda: gated.served.core().running == 0, expecting="the engine is idle", within=60)
    assert gated.post("/v1/completions", COMPLETION).status_code == 200


def test_the_exercise_compares_strategies_without_the_gate_and_puts_it_back(
    gated: Gated, vllm_python: str, model: Path, tmp_path: Path
) -> None:
    gated.sheds_after(1000.0)
    before = gated.served.control.read()
    lacking = {knob.value for knob in before.unsupported if isinstance(knob, BatchingKnob)}
    strategies = [one for one in StrategyType if f"batching.strategy.{one.value}" not in lacking]
    key = tmp_path / "key.pem"
    key.write_bytes(gated.served.server.signer.private_pem)
    where = [f"--url={gated.served.server.url}", f"--control={gated.served.server.control_url}", f"--signing-key={key}"]
    how = [f"--python={vllm_python}", f"--tokenizer={model}", f"--out={tmp_path}"]
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
