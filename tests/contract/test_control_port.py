"""The control port as an operator, a stranger and Prometheus meet it: real HTTP, plain cores behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from flyball_engine.contract import (
    HEALTH_PATH,
    METRICS_PATH,
    NO_STEPS_HEADER,
    SETPOINT_PATH,
    TRIAL_HEADER,
    Clamp,
    Generation,
    Knob,
    Metric,
    MetricName,
    ObjectiveSpec,
    ReadBack,
    Refusal,
    Shed,
)
from flyball_engine.control.server import bind
from flyball_engine.model import StepModel
from flyball_lab.harness.engine import SERVICE, ControlClient, setpoint
from flyball_lab.harness.waiting import eventually
from support.control_port import Port, an_engine, control_port
from support.reflexes import a_budget

MODEL = StepModel(t0=0.01, h=0.0, c1=1e-4, c2=1e-4, beta=0.0, g=0.0, kappa=1)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    with control_port(an_engine(tmp_path)) as running:
        yield running


def scraped(port: Port) -> dict[tuple[str, tuple[str, ...]], float]:
    """Samples by name and label values, in the order of the labels' names."""
    families = text_string_to_metric_families(port.client.metrics())
    return {
        (sample.name, tuple(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def test_a_setpoint_is_applied_and_read_back(port: Port) -> None:
    wanted = setpoint(1, limits={"max_num_active_seqs": 4, "max_num_scheduled_tokens": 5000})
    answer = port.client.put(wanted)
    assert answer.confirmed(Generation(epoch=1, generation=1))
    assert answer.accepted == wanted
    assert answer.cores[0].effective.max_num_active_seqs == 4
    assert answer.cores[0].clamped == (
        Clamp(knob=Knob.MAX_NUM_SCHEDULED_TOKENS, requested=5000, effective=256, reason="ceiling"),
    )
    assert port.client.read() == answer


def test_who_needs_no_steps_is_told_all_but_these(port: Port) -> None:
    core = port.engine.cores[0]
    core.scheduler.add("a", prompt=40, output=3)
    core.step()
    core.hooks.touch()
    whole = port.client.read()
    url = f"http://{port.address[0]}:{port.address[1]}{SETPOINT_PATH}"
    light = ReadBack.model_validate_json(
        httpx.get(url, headers={NO_STEPS_HEADER: "yes"}, timeout=60, trust_env=False).content
    )
    assert whole.cores[0].steps
    assert light == whole.without_steps()


def test_before_the_first_setpoint_nothing_is_accepted(port: Port) -> None:
    answer = port.client.read()
    assert answer.accepted is None
    assert answer.cores[0].applied is None
    assert answer.service == SERVICE


def test_the_same_setpoint_again_is_accepted_and_counted_as_unchanged(port: Port) -> None:
    for _ in range(3):
        port.client.put(setpoint(1))
    assert scraped(port)[MetricName.RETUNES, ("applied",)] == 1
    assert scraped(port)[MetricName.RETUNES, ("unchanged",)] == 2


def test_with_the_header_of_a_key_trial_no_setpoint_is_applied_and_none_is_counted(port: Port) -> None:
    body = setpoint(1).model_dump_json().encode()
    for token, refusal in ((port.signer.token(body), Refusal.INVALID), ("none", Refusal.BAD_TOKEN)):
        headers = {"Authorization": f"Bearer {token}", TRIAL_HEADER: "yes"}
        assert port.client.refuse(body, headers=headers)[1].error is refusal
    assert port.client.read().accepted is None
    assert not any(value for (name, _), value in scraped(port).items() if name == MetricName.RETUNES)


@pytest.mark.parametrize(
    ("offered", "refusal"),
    [
        (setpoint(4, epoch=2), Refusal.STALE_GENERATION),
        (setpoint(99, epoch=1), Refusal.STALE_EPOCH),
        (setpoint(5, epoch=2, limits={"max_num_active_seqs": 9}), Refusal.CONFLICT),
    ],
)
def test_what_is_out_of_order_is_refused_with_what_applies(port: Port, offered: object, refusal: Refusal) -> None:
    port.client.put(setpoint(5, epoch=2))
    status, error = port.client.refuse(offered)  # type: ignore[arg-type] # parametrised
    assert (status, error.error) == (409, refusal)
    assert error.applied == Generation(epoch=2, generation=5)
    assert scraped(port)[MetricName.RETUNES, (refusal.value,)] == 1


def test_another_service_is_refused_although_its_token_is_ours(port: Port) -> None:
    status, error = port.client.refuse(setpoint(1, service="another"))
    assert (status, error.error) == (409, Refusal.OTHER_SERVICE)


def test_a_step_budget_is_refused_where_steps_cannot_be_fitted(port: Port) -> None:
    port.engine.unsupported = {Knob.MAX_NUM_SCHEDULED_TOKENS: "every rank schedules for itself"}
    status, error = port.client.refuse(setpoint(1, step=a_budget(0.05, MODEL)))
    assert (status, error.error) == (422, Refusal.UNSUPPORTED)
    assert error.message == "step: every rank schedules for itself"


def test_a_deadline_is_refused_where_nobody_can_be_refused(port: Port) -> None:
    port.engine.ungated = "BaseRenderer has no process_for_engine_async"
    status, error = port.client.refuse(setpoint(1, shed=Shed(ttft_deadline_seconds=1.0)))
    assert (status, error.error) == (422, Refusal.UNSUPPORTED)
    assert error.message == "shed: BaseRenderer has no process_for_engine_async"
    assert port.client.read().ungated == "BaseRenderer has no process_for_engine_async"


def test_a_knob_this_engine_lacks_is_refused_by_name(port: Port) -> None:
    port.engine.unsupported = {Knob.LONG_PREFILL_TOKEN_THRESHOLD: "chunked prefill is off"}
    status, error = port.client.refuse(setpoint(1, limits={"long_prefill_token_threshold": 64}))
    assert (status, error.error) == (422, Refusal.UNSUPPORTED)
    assert "long_prefill_token_threshold" in error.message
    assert scraped(port)[MetricName.UNSUPPORTED, ("long_prefill_token_threshold", "chunked prefill is off")] == 1


def test_cores_that_do_not_answer_are_unknown_and_may_be_asked_again(tmp_path: Path) -> None:
    engine = an_engine(tmp_path, cores=2)
    with control_port(engine, timeout=2.0) as port:  # the last write must be answered within it
        engine.answers = False
        status, error = port.client.refuse(setpoint(3))
        assert (status, error.error) == (504, Refusal.UNKNOWN)
        # The call may still land: what is older must not overtake it.
        assert port.client.refuse(setpoint(2))[1].error is Refusal.STALE_GENERATION
        engine.answers = True
        assert port.client.put(setpoint(3)).confirmed(Generation(epoch=1, generation=3))


def test_a_write_in_flight_when_the_engine_ends_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    async def never_answers(_: object) -> None:
        asked.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("flyball_engine.control.server._GRACE_SECONDS", 0.2)
    engine = an_engine(tmp_path)
    monkeypatch.setattr(engine, "apply", never_answers)
    answers: list[tuple[int, Refusal]] = []

    def write(port: Port) -> None:
        # A client of its own: the port's is closed with the port.
        client = ControlClient(f"http://{port.address[0]}:{port.address[1]}", port.signer)
        status, error = client.refuse(setpoint(1))
        client.close()
        answers.append((status, error.error))

    with control_port(engine, timeout=60) as port:
        writer = threading.Thread(target=write, args=(port,))
        writer.start()
        assert asked.wait(20)
    writer.join(20)
    assert answers == [(504, Refusal.UNKNOWN)]


def test_a_core_that_hears_a_newer_leader_elsewhere_refuses(tmp_path: Path) -> None:
    engine = an_engine(tmp_path, cores=2)
    with control_port(engine) as port:
        engine.cores[1].hooks.apply(setpoint(9, epoch=5))
        status, error = port.client.refuse(setpoint(3))
        assert (status, error.error) == (409, Refusal.STALE_EPOCH)


def test_every_core_confirms(tmp_path: Path) -> None:
    with control_port(an_engine(tmp_path, cores=3)) as port:
        answer = port.client.put(setpoint(1, limits={"max_num_active_seqs": 4}))
        assert [core.effective.max_num_active_seqs for core in answer.cores] == [4, 4, 4]
        assert answer.confirmed(Generation(epoch=1, generation=1))


def test_an_idle_core_is_told_that_its_setpoint_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_engine.control.service._EXPIRY_SLACK_SECONDS", -59.9)
    engine = an_engine(tmp_path)
    with control_port(engine) as port:
        port.client.put(setpoint(1, limits={"max_num_active_seqs": 4}, expires_seconds=60.0))
        engine.cores[0].now += 60
        eventually(lambda: port.client.read().cores[0].applied is None, expecting="it expires")
        assert port.client.read().cores[0].effective.max_num_active_seqs == 16
        assert scraped(port)[MetricName.RETUNES, ("expired",)] == 1


def test_many_writers_at_once_leave_the_newest(port: Port) -> None:
    def write(number: int) -> None:
        body = setpoint(number, limits={"max_num_active_seqs": number}).model_dump_json().encode()
        assert port.client.put_raw(body).status_code in {200, 409}

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    answer = port.client.read()
    assert answer.confirmed(Generation(epoch=1, generation=16))
    assert answer.cores[0].effective.max_num_active_seqs == 16


def test_objectives_reach_the_ledger(port: Port) -> None:
    objective = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=0.5)
    port.client.put(setpoint(1, objectives=(objective,)))
    assert (MetricName.OBJECTIVE_REQUESTS, ("TimeToFirstToken/0.5", "met")) in scraped(port)


def test_every_metric_of_the_contract_is_there_and_none_of_vllm_s(port: Port) -> None:
    core = port.engine.cores[0]
    core.scheduler.add("a", prompt=40, output=3)
    for _ in range(3):
        core.step()
    port.engine.unsupported = {Knob.LONG_PREFILL_TOKEN_THRESHOLD: "off"}
    port.client.put(setpoint(2, epoch=1))
    families = {family.name for family in text_string_to_metric_families(port.client.metrics())}
    assert families == {name.value.removesuffix("_total") for name in MetricName}
    samples = scraped(port)
    assert samples[MetricName.LIMIT, ("0", "max_num_scheduled_tokens")] == 256
    assert samples[MetricName.CEILING, ("0", "max_num_seqs")] == 16
    assert samples[MetricName.SETPOINT_GENERATION, ("0",)] == 2
    assert samples[MetricName.STEPS, ("64", "0", "mixed")] == 1
    assert samples[MetricName.STEP_DECODES, ("1", "0", "decode")] == 2
    assert samples[MetricName.STEP_PREFILL_ATTENTION, ("64", "0", "mixed")] == 40 * 20


def test_batch_metrics_are_told_by_core(port: Port) -> None:
    core = port.engine.cores[0]
    core.add("a", prompt=40, output=3)
    core.add("b", prompt=20, output=1)
    core.now += 2
    core.step(seconds=0.5)
    core.add("c", prompt=300, output=9)
    for _ in range(3):
        core.step(seconds=0.25)
    core.add("d", prompt=8, output=1)
    core.hooks.touch()
    samples = scraped(port)

    def counted(name: MetricName, *labels: str) -> float:
        return samples[name, ("0", *labels)]

    # 40 + 20; then a and 255 of c, a and 45 of c with its first token; then c alone.
    assert counted(MetricName.TOKENS, "prefill") == 360
    assert counted(MetricName.TOKENS, "decode") == 3
    assert counted(MetricName.SLOT_SECONDS, "used") == 2 * 0.5 + 2 * 0.25 + 2 * 0.25 + 1 * 0.25
    assert counted(MetricName.SLOT_SECONDS, "free") == 14 * 0.5 + 14 * 0.25 + 14 * 0.25 + 15 * 0.25
    assert counted(MetricName.SLOT_SECONDS, "withheld") == 0
    assert counted(MetricName.TOKEN_ROOM, "used") == 60 + 256 + 46
    assert counted(MetricName.TOKEN_ROOM, "free") == 196 + 0 + 210
    assert counted(MetricName.QUEUED_REQUESTS, "admitted") == 3
    assert counted(MetricName.QUEUED_REQUESTS, "left") == 0
    assert counted(MetricName.QUEUE_SECONDS, "admitted") == 2 + 2
    assert counted(MetricName.OLDEST_WAITING_SECONDS) == 0
    core.now += 1.5
    core.hooks.touch()
    assert scraped(port)[MetricName.OLDEST_WAITING_SECONDS, ("0",)] == 1.5
    # a and b: two prompts as long as 40, two answers as long as 3.
    assert (counted(MetricName.COHORTS), counted(MetricName.COHORT_REQUESTS)) == (1, 2)
    assert (counted(MetricName.COHORT_TOKENS, "prompt"), counted(MetricName.COHORT_TOKENS, "output")) == (60, 4)
    padded = [counted(MetricName.COHORT_PADDED_TOKENS, phase) for phase in ("prompt", "output")]
    assert padded == [80, 6]
    sizes = {key[1][1]: value for key, value in samples.items() if key[0] == "flyball_batch_size_bucket"}
    assert (sizes["1.0"], sizes["2.0"], sizes["+Inf"]) == (1, 4, 4)
    assert samples["flyball_batch_size_sum", ("0",)] == 7


def test_health_is_that_of_the_engine(port: Port) -> None:
    url = f"http://{port.address[0]}:{port.address[1]}{HEALTH_PATH}"
    assert httpx.get(url, timeout=60, trust_env=False).status_code == 200
    port.engine.alive = False
    assert httpx.get(url, timeout=60, trust_env=False).status_code == 503


@pytest.mark.parametrize(
    ("method", "path"), [("POST", SETPOINT_PATH), ("DELETE", SETPOINT_PATH), ("PUT", METRICS_PATH)]
)
def test_other_methods_are_not_allowed(port: Port, method: str, path: str) -> None:
    url = f"http://{port.address[0]}:{port.address[1]}{path}"
    assert httpx.request(method, url, timeout=60, trust_env=False).status_code == 405


def test_reads_need_no_token_and_each_connection_is_for_one_request(port: Port) -> None:
    response = httpx.get(f"http://{port.address[0]}:{port.address[1]}{SETPOINT_PATH}", timeout=60, trust_env=False)
    assert response.status_code == 200
    assert response.headers["connection"] == "close"


def test_a_taken_port_is_an_error_of_the_caller(port: Port) -> None:
    with pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", port.address[1])
