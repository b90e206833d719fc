"""A served simulated engine, a process of its own: OpenAI's API, vLLM's metrics, the control port, faults on demand."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from flyball_engine.contract import (
    READY_HEADER,
    Env,
    Generation,
    Metric,
    ObjectiveSpec,
    OnTime,
    OrderKnob,
    Refusal,
    Shed,
)
from flyball_lab.harness.engine import SERVICE, ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.terminal import hear_interrupts
from flyball_lab.harness.waiting import eventually
from flyball_lab.simulator.presets import PRESETS
from support.simulated import a_budget, two_classes
from support.wrong_inputs.openai import SIMULATED, TOO_LARGE

SERVE = [sys.executable, "-m", "flyball_lab.simulator", "serve", "--preset=cpu-small"]


@dataclass
class Served:
    """A running engine and clients of both its ports."""

    process: subprocess.Popen[bytes]
    api: httpx.Client
    control: ControlClient
    log: Path

    def metric(self, name: str) -> float:
        """A sample of vLLM's metrics."""
        lines = self.api.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name}{{")).rsplit(" ", 1)[1])


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Served]:
    signer, port, control = SetpointSigner(), free_port(), free_port()
    environment = {
        **os.environ,
        Env.SERVICE_UID: SERVICE,
        Env.PUBLIC_KEY: signer.public_pem,
        Env.CONTROL_PORT: str(control),
    }
    log = tmp_path / "engine.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*SERVE, "--start-seconds=0", f"--port={port}"],
            stderr=out,
            env=environment,
            preexec_fn=hear_interrupts,  # noqa: PLW1509 – no thread of ours runs yet
        )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as api:

        def up() -> bool:
            assert process.poll() is None
            return api.get("/health").status_code == 200

        client = ControlClient(f"http://127.0.0.1:{control}", signer)
        try:
            eventually(up, expecting="the engine serves")
            yield Served(process, api, client, log)
        finally:
            client.close()
            process.terminate()
            process.wait(20)


def events(text: str) -> list[dict[str, object]]:
    """Of a stream that ended as it should."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_completions_are_as_long_as_asked_for(engine: Served) -> None:
    body = {"prompt": "four" * 50, "max_tokens": 7, "n": 2}
    answer = engine.api.post("/v1/completions", json=body).json()
    assert answer["usage"] == {
        "prompt_tokens": 50,
        "completion_tokens": 14,
        "total_tokens": 64,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert [(choice["index"], choice["finish_reason"]) for choice in answer["choices"]] == [
        (0, "length"),
        (1, "length"),
    ]
    assert len(answer["choices"][0]["text"].split()) == 7


def test_token_ids_count_as_they_are_and_several_prompts_are_one_request(engine: Served) -> None:
    body = {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 3}
    answer = engine.api.post("/v1/completions", json=body).json()
    assert answer["usage"]["prompt_tokens"] == 5
    assert len(answer["choices"]) == 2


def test_a_chat_streams_token_by_token_and_ends_with_its_usage(engine: Served) -> None:
    body = {
        "messages": [{"role": "system", "content": "be brief " * 40}, {"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first = events(engine.api.post("/v1/chat/completions", json=body).text)
    begin, *tokens, usage = first
    assert begin["choices"][0]["delta"] == {"role": "assistant", "content": ""}  # type: ignore[index]
    assert len(tokens) == 9
    assert all(token["choices"][0]["delta"] == {"content": " tok"} for token in tokens)  # type: ignore[index]
    ends = [token["choices"][0]["finish_reason"] for token in tokens]  # type: ignore[index]
    assert ends == [None] * 8 + ["length"], "told with the last token"
    assert usage["usage"]["completion_tokens"] == 9  # type: ignore[index]
    again = events(engine.api.post("/v1/chat/completions", json=body).text)
    assert again[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 80  # type: ignore[index]


def test_what_cannot_be_served_is_refused_as_openai_does(engine: Served) -> None:
    for path, body, status, says in SIMULATED:
        answer = engine.api.post(path, content=body)
        assert answer.status_code == status, body
        error = answer.json()["error"]
        assert [words for words in says if words not in error["message"]] == [], f"{body}: {error}"


def test_a_body_too_large_is_refused_while_it_is_read(engine: Served) -> None:
    answer = engine.api.post("/v1/completions", json={"prompt": "x" * 17_000_000, "max_tokens": 1})
    said, status, words = TOO_LARGE
    assert answer.status_code == status, said
    assert words in answer.json()["error"]["message"]


def test_signed_setpoints_move_limits_and_everything_is_counted(engine: Served) -> None:
    objective = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=30.0)
    wanted = setpoint(1, limits={"max_num_active_seqs": 3}, objectives=(objective,))
    answer = engine.control.put(wanted)
    assert answer.confirmed(Generation(epoch=wanted.epoch, generation=wanted.generation))
    read = engine.control.read()
    assert read.cores[0].effective.max_num_active_seqs == 3
    assert read.engine_version == "flyball simulator cpu-small"
    engine.api.post("/v1/completions", json={"prompt": "x" * 400, "max_tokens": 5})
    text = engine.control.metrics()
    assert f'flyball_objective_requests_total{{objective="{objective.id}",outcome="met"}} 1.0' in text
    assert 'flyball_requests_total{outcome="finished"} 1.0' in text
    assert 'flyball_tokens_total{engine="0",phase="prefill"} 100.0' in text
    assert 'flyball_tokens_total{engine="0",phase="decode"} 4.0' in text
    assert 'flyball_cohort_tokens_total{engine="0",phase="output"} 5.0' in text
    assert sum(sums.steps for sums in engine.control.read().cores[0].steps) == 5
    assert engine.metric("vllm:generation_tokens_total") == 5


def test_a_deadline_nobody_can_keep_is_answered_with_retry_after(engine: Served) -> None:
    shed = Shed(ttft_deadline_seconds=0.01)
    engine.control.put(setpoint(1, step=a_budget(0.2, PRESETS["cpu-small"].step_times), shed=shed))
    late = {"prompt": "x" * 8000, "max_tokens": 5, "stream": True}
    assert engine.api.post("/v1/completions", json=late).status_code == 200, "an idle engine serves"
    assert 'flyball_admissions_total{decision="admitted",reason="idle"} 1.0' in engine.control.metrics()
    with engine.api.stream("POST", "/v1/completions", json={"prompt": "x" * 400, "max_tokens": 3900, "stream": True}):
        eventually(lambda: engine.metric("vllm:num_requests_running") == 1, expecting="another runs")
        answer = engine.api.post("/v1/completions", json=late)
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert "overloaded" in answer.json()["error"]["message"]
    assert 'flyball_admissions_total{decision="refused",reason="late"} 1.0' in engine.control.metrics()


def test_a_response_begins_when_its_first_token_is_sure_to_come(engine: Served) -> None:
    order = OnTime(first_token_deadline_seconds=2.0)
    shed = Shed(ttft_deadline_seconds=2.0)
    step = a_budget(0.05, PRESETS["cpu-small"].step_times)
    answer = engine.control.put(setpoint(1, step=step, shed=shed, on_time=order))
    assert OrderKnob.ON_TIME not in answer.unsupported

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=engine.api.base_url, timeout=60) as client:
            body = {"prompt": "x" * 4000, "max_tokens": 3, "stream": True}
            return list(await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(30))))

    answers = asyncio.run(crowd())
    refused = [one for one in answers if one.status_code != 200]
    assert 0 < len(refused) < len(answers)
    assert all(one.status_code == 503 and "Retry-After" in one.headers for one in refused)
    assert all(one.text.endswith("data: [DONE]\n\n") for one in answers if one.status_code == 200)


def test_the_header_of_a_request_names_its_class(engine: Served) -> None:
    engine.control.put(setpoint(1, classes=two_classes(1.0)))
    for value in ("Chat", "unheard-of"):
        headers = {"X-Gateway-Inference-Objective": value}
        body = {"prompt": "x" * 40, "max_tokens": 2}
        assert engine.api.post("/v1/completions", json=body, headers=headers).status_code == 200
    page = engine.control.metrics()
    assert 'flyball_class_requests_total{class="chat",outcome="finished"} 1.0' in page
    assert 'flyball_class_requests_total{class="default",outcome="finished"} 1.0' in page
    assert "flyball_unknown_class_total 1.0" in page


def test_without_a_header_the_priority_of_a_request_names_its_class(engine: Served) -> None:
    engine.control.put(setpoint(1, classes=two_classes(1.0)))
    for priority in (5, 7, 0):
        body = {"prompt": "x" * 40, "max_tokens": 2, "priority": priority}
        assert engine.api.post("/v1/completions", json=body).status_code == 200
    page = engine.control.metrics()
    assert 'flyball_class_requests_total{class="batch",outcome="finished"} 1.0' in page
    assert 'flyball_class_requests_total{class="default",outcome="finished"} 2.0' in page
    assert "flyball_unknown_class_total 1.0" in page


def test_an_unsigned_setpoint_is_refused(engine: Served) -> None:
    wanted = setpoint(1)
    status, reason = engine.control.refuse(wanted, token=SetpointSigner().token(wanted.model_dump_json().encode()))
    assert (status, reason.error) == (401, Refusal.BAD_TOKEN)


def test_a_client_that_goes_frees_its_place(engine: Served) -> None:
    body = {"prompt": "x" * 400, "max_tokens": 3900, "stream": True}
    with engine.api.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        eventually(lambda: engine.metric("vllm:num_requests_running") == 1, expecting="it runs")
    eventually(lambda: engine.metric("vllm:num_requests_running") == 0, expecting="its place is free")
    assert 'flyball_requests_total{outcome="aborted"} 1.0' in engine.control.metrics()


def test_a_client_that_goes_before_its_response_begins_frees_its_place(engine: Served) -> None:
    shed, step = Shed(ttft_deadline_seconds=600.0), a_budget(0.2, PRESETS["cpu-small"].step_times)
    engine.control.put(setpoint(1, limits={"max_num_active_seqs": 1}, step=step, shed=shed))
    body = {"prompt": "x" * 400, "max_tokens": 3900, "stream": True}
    with engine.api.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # held: it ends the stream when it goes
        next(lines)
        # It may still be refused, so no response begins.
        with pytest.raises(httpx.ReadTimeout):
            engine.api.post("/v1/completions", json=body, timeout=0.5)
        eventually(lambda: engine.metric("vllm:num_requests_waiting") == 0, expecting="it waits no more", within=30)
        assert engine.metric("vllm:num_requests_running") == 1
        eventually(
            lambda: 'flyball_requests_total{outcome="aborted"} 1.0' in engine.control.metrics(),
            expecting="it is counted",
        )


def test_requests_run_together_in_real_time(engine: Served) -> None:
    async def load() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=engine.api.base_url, timeout=60) as client:
            body = {"prompt": "x" * 80, "max_tokens": 20}
            return list(await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(12))))

    answers = asyncio.run(load())
    assert [answer.status_code for answer in answers] == [200] * 12
    steps = sum(sums.steps for sums in engine.control.read().cores[0].steps)
    assert 20 <= steps < 12 * 20, "they shared steps"


def test_it_slows_down_and_crashes_on_demand(engine: Served) -> None:
    assert engine.api.put("/simulator/slow-down", json={"factor": 0}).status_code == 400
    unknown = engine.api.put("/simulator/slow-down", json={"factor": 2, "seconds": 5})
    assert unknown.status_code == 400
    assert "seconds: Extra inputs" in unknown.json()["error"]["message"]
    assert engine.api.put("/simulator/slow-down", json={"factor": 30}).status_code == 204
    engine.api.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
    assert engine.control.read().cores[0].longest_step_seconds > 0.2
    with pytest.raises(httpx.TransportError):
        engine.api.post("/simulator/crash")
    assert engine.process.wait(20) == 137
    assert "POST /simulator/crash: the process ends here, as by SIGKILL" in engine.log.read_text()


def test_ctrl_c_ends_it_without_a_traceback(engine: Served) -> None:
    engine.process.send_signal(signal.SIGINT)
    assert engine.process.wait(20) == 130
    assert "Traceback" not in engine.log.read_text()


def test_a_probe_of_readiness_waits_for_a_setpoint(engine: Served) -> None:
    probe = {READY_HEADER: "yes"}
    answer = engine.api.get("/health", headers=probe)
    assert answer.status_code == 503
    assert "no setpoint yet" in answer.text
    engine.control.put(setpoint(1))
    assert engine.api.get("/health", headers=probe).status_code == 200


def test_open_answers_end_before_it_does() -> None:
    port = free_port()
    process = subprocess.Popen(
        [*SERVE, "--start-seconds=0", f"--port={port}", "--drain-timeout=60"],
        env={**os.environ, Env.CONTROL_PORT: str(free_port())},
    )
    body = {"prompt": "x" * 400, "max_tokens": 400, "stream": True}
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as api:
            eventually(lambda: api.get("/health").status_code == 200, expecting="the engine serves")
            with api.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                first = next(lines)
                process.terminate()
                found = events("\n".join([first, *lines]))
        assert len(found) == 400
        process.wait(20)
    finally:
        process.kill()
        process.wait()


def test_it_says_when_its_ports_will_be_open_and_ctrl_c_ends_it_before_that(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*SERVE, "--start-seconds=600", f"--port={free_port()}"],
            stderr=out,
            env={**os.environ, Env.CONTROL_PORT: str(free_port())},
            preexec_fn=hear_interrupts,  # noqa: PLW1509 – no thread of ours runs yet
        )
    seen = "starting; ports open in 600 s"
    try:
        eventually(lambda: seen in log.read_text(), expecting=seen)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
