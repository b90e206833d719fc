"""A served padded engine, a process of its own, before a model that only counts: both ports, and how it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from flyball_engine.contract import (
    Batching,
    BatchingKnob,
    Generation,
    Knob,
    OrderKnob,
    QueueKnob,
    Refusal,
    StrategyType,
)
from flyball_engine.knobs import Continuous, Static
from flyball_lab.harness.engine import ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.padded_server import counting
from flyball_lab.harness.vllm_server import MODEL_NAME, VllmServer
from flyball_lab.harness.waiting import eventually
from flyball_lab.padded.batch import ComputePhase, Use
from flyball_lab.padded.metrics import COMPUTED_TOKENS
from support.wrong_inputs.openai import PADDED

#: A client connects and sends in peace, and then does not wait for the answer.
GIVE_UP = httpx.Timeout(60, read=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with counting(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """Of the setpoints that all tests send."""
    return count(1)


@pytest.fixture
def api(server: VllmServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
def control(server: VllmServer) -> Iterator[ControlClient]:
    client = ControlClient(server.control_url, server.signer)
    yield client
    client.close()


def sample(text: str, name: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith(name)).rsplit(" ", 1)[1])


def events(text: str) -> list[dict[str, Any]]:
    """Of a stream that ended as it should."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def generated(api: httpx.Client) -> float:
    return sample(api.get("/metrics").text, "vllm:generation_tokens_total")


def test_completions_and_chats_whole_and_streamed(api: httpx.Client) -> None:
    before = generated(api)
    body = {"model": MODEL_NAME, "prompt": [[5], [996, 997]], "max_tokens": 4, "return_token_ids": True}
    answer = api.post("/v1/completions", json=body).json()
    assert [(each["token_ids"], each["finish_reason"]) for each in answer["choices"]] == [
        ([6, 7, 8, 9], "length"),
        ([998, 999, 0], "stop"),
    ]
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 7
    assert answer["choices"][0]["text"] == " 6 7 8 9"
    chat = {"messages": [{"role": "user", "content": "41"}], "max_tokens": 3, "stream": True}
    streamed = events(api.post("/v1/chat/completions", json=chat | {"stream_options": {"include_usage": True}}).text)
    begin, *tokens, usage = streamed
    assert begin["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [token["choices"][0]["delta"]["content"] for token in tokens] == [" 42", " 43", " 44"]
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None, None, "length"]
    assert usage["usage"]["completion_tokens"] == 3
    assert api.get("/v1/models").json()["data"][0]["max_model_len"] == 512
    assert generated(api) == before + 10


@pytest.mark.parametrize(("path", "body", "status", "says"), PADDED)
def test_what_cannot_be_served_is_refused_as_openai_does(
    api: httpx.Client, path: str, body: str, status: int, says: tuple[str, ...]
) -> None:
    answer = api.post(path, content=body)
    assert answer.status_code == status, answer.text
    told = answer.json()["error"]["message"] if status != 404 or "model" in body else answer.text
    assert [words for words in says if words not in told] == [], told


def test_setpoints_are_signed_moved_live_and_refused_by_name(control: ControlClient, numbers: Iterator[int]) -> None:
    assert control.read().unsupported.keys() == {
        Knob.MAX_NUM_SCHEDULED_TOKENS,
        Knob.LONG_PREFILL_TOKEN_THRESHOLD,
        Knob.NUM_SPECULATIVE_TOKENS,
        BatchingKnob.CONTINUOUS,
        BatchingKnob.NO_EVICT,
        BatchingKnob.MAX_CONCURRENT_PREFILLS,
        QueueKnob.MAX_NUM_QUEUED_REQS,
        QueueKnob.MAX_NUM_QUEUED_TOKENS,
        *OrderKnob,
    }
    own = control.put(setpoint(next(numbers)))
    assert (own.cores[0].strategy, own.cores[0].effective.max_num_active_seqs) == (StrategyType.DYNAMIC, 8)
    static = Batching(strategy=Static(batch_size=3))
    wanted = setpoint(next(numbers), limits={"max_num_active_seqs": 2}, batching=static)
    answer = control.put(wanted)
    assert answer.confirmed(Generation(epoch=wanted.epoch, generation=wanted.generation))
    assert (answer.cores[0].strategy, answer.cores[0].effective.max_num_active_seqs) == (StrategyType.STATIC, 2)
    status, why = control.refuse(setpoint(next(numbers), batching=Batching(strategy=Continuous())))
    assert (status, why.error) == (422, Refusal.UNSUPPORTED)
    assert "batching.strategy.Continuous: a padded batch runs to the end" in why.message
    status, why = control.refuse(wanted, token=SetpointSigner().token(wanted.model_dump_json().encode()))
    assert (status, why.error) == (401, Refusal.BAD_TOKEN)
    text = control.metrics()
    assert 'flyball_strategy{engine="0",policy="fcfs",strategy="Static"} 1.0' in text
    assert 'flyball_unsupported{knob="batching.no_evict"' in text


def test_padding_is_counted(api: httpx.Client, control: ControlClient) -> None:
    keys = [f'{COMPUTED_TOKENS}{{phase="{phase}",use="{use}"}}' for phase in ComputePhase for use in Use]
    before = [sample(control.metrics(), key) for key in keys]
    api.post("/v1/completions", json={"prompt": [[1, 2, 3], [999]], "max_tokens": 3})
    after = [sample(control.metrics(), key) for key in keys]
    assert [now - then for now, then in zip(after, before, strict=True)] == [4, 2, 2, 2]


def test_a_client_that_goes_in_the_middle_of_a_stream_ends_its_row(api: httpx.Client, control: ControlClient) -> None:
    before = aborted(control)
    body = {"prompt": "1", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with api.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert shown(api, "running", 1)()
    eventually(lambda: aborted(control) == before + 1, expecting="its row ends")
    assert shown(api, "running", 0)()


def test_a_client_that_waits_for_a_whole_answer_is_missed_too(api: httpx.Client, control: ControlClient) -> None:
    before = aborted(control)
    with pytest.raises(httpx.ReadTimeout):
        api.post("/v1/completions", json={"prompt": "1", "max_tokens": 500, "ignore_eos": True}, timeout=GIVE_UP)
    eventually(lambda: aborted(control) == before + 1, expecting="its row ends")


def aborted(control: ControlClient) -> float:
    return sample(control.metrics(), 'flyball_requests_total{outcome="aborted"}')


def shown(api: httpx.Client, state: str, sequences: int) -> Callable[[], bool]:
    """So many are `running`, or `waiting`."""
    return lambda: sample(api.get("/metrics").text, f"vllm:num_requests_{state}") == sequences


def test_a_full_queue_is_answered_with_retry_after(api: httpx.Client) -> None:
    body = {"prompt": "1", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with api.stream("POST", "/v1/completions", json=body) as running:
        lines = running.iter_lines()
        next(lines)
        with api.stream("POST", "/v1/completions", json=body | {"n": 4}) as waiting:
            assert waiting.status_code == 200
            refused = api.post("/v1/completions", json=body)
    assert refused.status_code == 503
    assert int(refused.headers["Retry-After"]) >= 1
    assert "4 sequences may wait" in refused.json()["error"]["message"]
    eventually(shown(api, "running", 0), expecting="nobody waits for any of it")


def test_a_signal_ends_it_when_all_are_answered(tmp_path: Path) -> None:
    body = {"prompt": "1", "max_tokens": 50, "ignore_eos": True, "stream": True, "n": 4}
    with (
        counting(tmp_path) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as api,
        api.stream("POST", "/v1/completions", json=body) as running,
    ):
        lines = running.iter_lines()
        begun = next(lines)
        with api.stream("POST", "/v1/completions", json=body) as waiting:
            server.process.send_signal(signal.SIGTERM)
            assert len(events("\n".join([begun, *lines]))) == 4 * 50
            assert len(events("\n".join(waiting.iter_lines()))) == 4 * 50
        assert server.process.wait(60) == -signal.SIGTERM, server.tail()


def test_an_engine_that_ends_by_itself_ends_the_process_and_says_why(tmp_path: Path) -> None:
    body = {"prompt": "1", "max_tokens": 50, "stream": True}
    with (
        counting(tmp_path, "--panics") as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as api,
    ):
        with api.stream("POST", "/v1/completions", json=body) as running:
            assert "the engine is ending" in "".join(running.iter_lines())
        assert server.process.wait(60) == 1, server.tail()
        log = server.log.read_text()
    assert "the engine ended by itself" in log
    assert 'raise Panic("index out of bounds")' in log, "a traceback"
