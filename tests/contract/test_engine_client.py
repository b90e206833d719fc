"""The operator's client against the real control server: signatures, refusals, silence, answers that are none."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flyball_engine.contract import (
    METRICS_PATH,
    NO_STEPS_HEADER,
    SETPOINT_PATH,
    Batching,
    Generation,
    Knob,
    Limits,
    MetricName,
    QueueLimits,
    Refusal,
    Setpoint,
)
from flyball_engine.knobs import Static
from flyball_engine.signing import BadKeyError, Signer
from flyball_lab.harness.engines import PlantEngine, ServedEngine, serving
from flyball_lab.harness.tuners import TunerEnvironment
from flyball_operator.engines import client as client_module
from flyball_operator.engines.client import Acknowledged, Address, EngineClient, engine_session
from flyball_operator.engines.errors import (
    BadAnswerError,
    EngineError,
    NoSigningKeyError,
    NotLeadingError,
    SetpointRefusedError,
    UnknownError,
    UnreachableError,
)
from flyball_operator.engines.signing_keys import SigningKeys
from support.key_world import PERIOD, SYNC_SECONDS, KeyWorld


def setpoint(generation: int, *, epoch: int = 1, service: str = "uid-1", seqs: int = 16) -> Setpoint:
    return Setpoint(service=service, epoch=epoch, generation=generation, limits=Limits(max_num_active_seqs=seqs))


@asynccontextmanager
async def client(
    *keys: Ed25519PrivateKey, leading: bool = True, wall: Callable[[], float] = time.time
) -> AsyncIterator[EngineClient]:
    async with engine_session() as session:
        yield EngineClient(
            session, lambda: [Signer(key) for key in keys], may_act=lambda: leading, wall=wall, clock=time.monotonic
        )


def address(pod: ServedEngine) -> Address:
    return Address(key=pod.uid, tenant="team", ip=pod.ip, port=pod.port)


async def retunes(pod: ServedEngine) -> dict[str, float]:
    """Writes by outcome, as the engine counts them."""
    async with engine_session() as session, session.get(f"http://{pod.ip}:{pod.port}{METRICS_PATH}") as answer:
        text = await answer.text()
    found = re.findall(rf'^{MetricName.RETUNES}\{{.*outcome="(\w+)".*\}} (\S+)$', text, flags=re.MULTILINE)
    return {outcome: float(value) for outcome, value in found if float(value)}


async def refusal(call: object) -> Refusal:
    """The refusal a write ends in."""
    with pytest.raises(SetpointRefusedError) as caught:
        await call  # type: ignore[misc]
    return caught.value.refusal


async def test_a_write_returns_once_every_core_confirmed_it() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), client(world.key) as engines:
        answer = await engines.write(address(pod), setpoint(1))
        assert answer.confirmed(Generation(epoch=1, generation=1))
        assert pod.limits == (16, 2048)
        assert await engines.read(address(pod)) == answer


async def test_an_engine_that_does_not_know_the_newest_key_is_told_by_the_one_before() -> None:
    world = TunerEnvironment()
    pod, newest = world.engine(), Ed25519PrivateKey.generate()
    async with serving(pod), client(newest, world.key) as engines:
        await engines.write(address(pod), setpoint(2))
        assert pod.limits == (16, 2048)
        # What it then refuses is what is told.
        assert await refusal(engines.write(address(pod), setpoint(1))) is Refusal.STALE_GENERATION
    async with serving(pod), client(newest, Ed25519PrivateKey.generate()) as strangers:
        assert await refusal(strangers.write(address(pod), setpoint(3))) is Refusal.BAD_TOKEN


async def test_keys_are_rotated_while_setpoints_are_written_and_none_is_refused(tmp_path: Path) -> None:
    world = TunerEnvironment()
    present, later = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    # Of the pod template, whose key is none of the two.
    pod = world.engine()
    pod.public_keys = accepted = tmp_path / "public-keys.pem"
    secret = pem(present, tmp_path / "signing-key.pem")
    steps: list[Callable[[], object]] = [
        lambda: accepted.write_text(public(present)),
        lambda: accepted.write_text(public(present) + public(later)),
        lambda: pem(later, secret),
        lambda: accepted.write_text(public(later)),
        # And the Secret before the public keys, as the kubelet may bring them.
        lambda: pem(world.key, secret),
        lambda: accepted.write_text(public(later) + public(world.key)),
        lambda: accepted.write_text(public(world.key)),
    ]
    steps[0]()
    async with engine_session() as session, serving(pod):
        keys = SigningKeys(secret)
        engines = EngineClient(session, keys, may_act=lambda: True, wall=time.time, clock=time.monotonic)
        for number, step in enumerate(steps, start=1):
            step()
            await engines.write(address(pod), setpoint(number))
        assert [signer.public_pem for signer in keys()] == [public(world.key), public(later)]


async def test_whether_a_key_is_accepted_is_asked_without_a_setpoint() -> None:
    world = TunerEnvironment()
    pod, other = world.engine(), Ed25519PrivateKey.generate()
    async with serving(pod), client(world.key) as engines:
        for generation in (1, 2):
            assert await engines.accepts(address(pod), Signer(world.key), service="uid-1")
            assert not await engines.accepts(address(pod), Signer(other), service="uid-1")
            assert not await engines.accepts(address(pod), Signer(world.key), service="uid-2")
            assert len(pod.engine.history) == generation - 1
            await engines.write(address(pod), setpoint(generation))
        assert await retunes(pod) == {"applied": 2.0}, "a trial is no refused write"
        await refusal(engines.write(address(pod), setpoint(1)))
        assert (await retunes(pod))["StaleGeneration"] == 1
    async with client(world.key) as engines:
        with pytest.raises(UnreachableError):
            await engines.accepts(address(pod), Signer(world.key), service="uid-1")


async def test_the_operator_rotates_its_own_key_while_setpoints_are_written_and_none_is_refused(tmp_path: Path) -> None:
    pod = TunerEnvironment().engine(uid="team")
    pod.public_keys = tmp_path / "public-keys.pem"
    world = KeyWorld(namespaces=("team",))
    world.engines[0].ip, world.engines[0].port = pod.ip, pod.port
    number, signed_with = 0, set[str]()
    async with engine_session() as session, serving(pod):
        engines = EngineClient(
            session, world.rotation.signers, may_act=lambda: True, wall=time.time, clock=time.monotonic
        )
        world.asked = engines
        while len(signed_with) < 3:
            world.skip(PERIOD.total_seconds() if number % 60 == 50 else 0)
            await world.pass_time(5)
            if world.engines[0].file:
                pod.public_keys.write_text(world.engines[0].file)
                number += 1
                await engines.write(address(pod), setpoint(number, service="team"))
                signed_with.add(world.rotation.signers()[0].public_pem)
        # The kubelet has yet to bring the last key alone.
        await world.pass_time(2 * SYNC_SECONDS)
        pod.public_keys.write_text(world.engines[0].file)
        last = Signer.parse(world.data()["current"].encode(), "current")
        assert [await engines.accepts(address(pod), key, service="team") for key in world.rotation.signers()] == [
            True,
            False,
        ]
        assert world.rotation.signers()[0].public_pem == last.public_pem


async def test_without_a_key_nothing_is_written() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), client() as engines:
        with pytest.raises(NoSigningKeyError, match="no signing key yet"):
            await engines.write(address(pod), setpoint(1))
        assert pod.engine.history == []


async def test_a_signing_key_that_becomes_unusable_is_told_once_and_the_earlier_one_signs_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = Ed25519PrivateKey.generate()
    file = pem(key, tmp_path / "signing-key.pem")
    keys = SigningKeys(file)
    for _ in range(2):
        file.write_text("no key")
        assert [signer.public_pem for signer in keys()] == [public(key)]
    file.unlink()
    assert [signer.public_pem for signer in keys()] == [public(key)]
    said = [record.message for record in caplog.records if "the earlier one signs on" in record.message]
    assert len(said) == 2, "once for each way"
    pem(key, file)
    assert [signer.public_pem for signer in keys()] == [public(key)]


def public(key: Ed25519PrivateKey) -> str:
    return Signer(key).public_pem


async def test_what_the_contract_refuses_is_refused_by_name() -> None:
    world = TunerEnvironment()
    pod = world.engine(make=lambda: PlantEngine(unsupported={Knob.LONG_PREFILL_TOKEN_THRESHOLD: "too old"}))
    async with serving(pod), client(world.key) as engines:
        await engines.write(address(pod), setpoint(5, epoch=2))
        assert await refusal(engines.write(address(pod), setpoint(9, epoch=1))) is Refusal.STALE_EPOCH
        assert await refusal(engines.write(address(pod), setpoint(4, epoch=2))) is Refusal.STALE_GENERATION
        assert await refusal(engines.write(address(pod), setpoint(5, epoch=2, seqs=8))) is Refusal.CONFLICT
        foreign = setpoint(6, epoch=2, service="uid-2")
        assert await refusal(engines.write(address(pod), foreign)) in (Refusal.OTHER_SERVICE, Refusal.BAD_TOKEN)
        unsupported = setpoint(7, epoch=2).model_copy(update={"limits": Limits(long_prefill_token_threshold=64)})
        assert await refusal(engines.write(address(pod), unsupported)) is Refusal.UNSUPPORTED
        assert pod.limits == (16, 2048)


async def test_a_refusal_names_what_the_engine_holds() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), client(world.key) as engines:
        await engines.write(address(pod), setpoint(5, epoch=2))
        with pytest.raises(SetpointRefusedError) as caught:
            await engines.write(address(pod), setpoint(9, epoch=1))
        assert caught.value.applied == Generation(epoch=2, generation=5)


async def test_tokens_of_another_key_or_another_time_are_refused() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod):
        async with client(Ed25519PrivateKey.generate()) as engines:
            assert await refusal(engines.write(address(pod), setpoint(1))) is Refusal.BAD_TOKEN
        async with client(world.key, wall=lambda: time.time() - 3600) as engines:
            assert await refusal(engines.write(address(pod), setpoint(1))) is Refusal.BAD_TOKEN
        assert pod.engine.history == []


async def test_nobody_is_written_to_without_the_lease() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), client(world.key, leading=False) as engines:
        with pytest.raises(NotLeadingError):
            await engines.write(address(pod), setpoint(1))
        assert pod.engine.history == []
        assert (await engines.read(address(pod))).governed, "reading is not acting"


async def test_silent_cores_are_unknown_and_read_back() -> None:
    world = TunerEnvironment()
    pod = world.engine()
    async with serving(pod), client(world.key) as engines:
        pod.engine.silent = True
        with pytest.raises(UnknownError, match="engine core 0 has not confirmed the setpoint"):
            await engines.write(address(pod), setpoint(1))
        pod.engine.silent = False
        await engines.write(address(pod), setpoint(1))
        assert pod.limits == (16, 2048)


async def test_an_error_is_an_answer_and_an_answer_is_timed() -> None:
    world = TunerEnvironment()
    up, down = world.engine("chat-0"), world.engine("chat-1")
    async with serving(up), client(world.key) as engines:
        answers = [
            await engines.timed(address(pod), lambda where: engines.write(where, setpoint(1))) for pod in (up, down)
        ]
    assert isinstance(answers[0], Acknowledged)
    assert answers[0].seconds > 0
    assert isinstance(answers[1], UnreachableError)
    assert answers[1].closed
    assert "connection refused: nothing listens there" in str(answers[1])


async def test_pods_of_one_tenant_that_never_answer_delay_no_other_tenant(note_figure: Callable[[str], None]) -> None:
    world = TunerEnvironment()
    up = ServedEngine("chat-0", "pod-0", "uid-1", world.key, world.port)

    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    async with serving(up), client(world.key) as engines, impostor(silent) as hole:
        holes = [replace(hole, key=f"pod-{number}", tenant="other") for number in range(300)]
        stuck = [asyncio.create_task(engines.timed(one, engines.read)) for one in holes]
        await asyncio.sleep(0)
        asked_at = time.monotonic()
        answer = await engines.timed(address(up), lambda where: engines.write(where, setpoint(1)))
        note_figure(f"{time.monotonic() - asked_at:.3f} s for a push while {len(holes)} pods of another never answer")
        ended = sum(task.done() for task in stuck)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
    assert isinstance(answer, Acknowledged)
    # Behind all of them it would have had its turn once most had been given up.
    assert ended < 150, f"{ended} of 300 came first"


@asynccontextmanager
async def impostor(handler: Callable[[web.Request], object]) -> AsyncIterator[Address]:
    """Something else on the pod's address."""
    app = web.Application()
    app.router.add_route("*", SETPOINT_PATH, handler)  # type: ignore[arg-type]
    # A client that gave up ends its handler: the cleanup would wait for one that hangs.
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield Address(key="x", tenant="team", ip="127.0.0.1", port=port)
    finally:
        await runner.cleanup()


async def test_who_reads_the_state_asks_for_no_steps() -> None:
    asked: list[bool] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(NO_STEPS_HEADER in request.headers)
        return web.Response(status=404)

    async with impostor(handle) as where, client(Ed25519PrivateKey.generate()) as engines:
        for read in (engines.read, engines.read_state):
            with pytest.raises(EngineError):
                await read(where)
    assert asked == [False, True]


async def gives(answer: Callable[[web.Request], object]) -> EngineError:
    """The error that reading from an impostor ends in."""

    async def handle(request: web.Request) -> object:
        return answer(request)

    async with impostor(handle) as where, client(Ed25519PrivateKey.generate()) as engines:
        with pytest.raises(EngineError) as caught:
            await engines.read(where)
        return caught.value


@pytest.mark.parametrize(
    ("batching", "queue"),
    [(Batching(), QueueLimits()), (Batching(strategy=Static(batch_size=4)), QueueLimits(max_num_queued_reqs=64))],
    ids=["vLLM's own", "other"],
)
async def test_an_older_engine_is_sent_nothing_it_need_not_know(batching: Batching, queue: QueueLimits) -> None:
    bodies: list[dict[str, object]] = []

    async def handle(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.Response(text="an older one")

    wanted = setpoint(1).model_copy(update={"batching": batching, "queue": queue})
    async with impostor(handle) as where, client(Ed25519PrivateKey.generate()) as engines:
        with pytest.raises(BadAnswerError):
            await engines.write(where, wanted)
    (body,) = bodies
    assert ("batching" in body) is (batching != Batching())
    assert ("queue" in body) is (queue != QueueLimits())
    assert Setpoint.model_validate_json(json.dumps(body)) == wanted


async def test_answers_of_something_else_are_named_for_what_they_are() -> None:
    assert isinstance(await gives(lambda _: web.Response(text="hello")), BadAnswerError)
    assert isinstance(await gives(lambda _: web.json_response({"service": "x"})), BadAnswerError)
    assert isinstance(await gives(lambda _: web.Response(status=500, text="oops")), BadAnswerError)
    assert isinstance(await gives(lambda _: web.Response(status=302, headers={"Location": "/"})), BadAnswerError)


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 100_000)
    error = await gives(lambda _: web.Response(body=b" " * 200_000))
    assert isinstance(error, BadAnswerError)
    assert "100000 bytes" in str(error)


async def test_a_pod_that_never_answers_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "READ_SECONDS", 0.3)

    async def hang(_: web.Request) -> object:
        await asyncio.sleep(3600)
        return web.Response()

    async with impostor(hang) as where, client(Ed25519PrivateKey.generate()) as engines:
        with pytest.raises(UnreachableError, match=r"no answer within 0\.3 s") as raised:
            await engines.read(where)
    assert not raised.value.closed


async def test_what_lets_no_connection_through_is_told_as_what_a_network_policy_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connections beyond what waits to be accepted are not answered, as where a policy drops them."""
    monkeypatch.setattr(client_module, "CONNECT_SECONDS", 0.3)
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        where = Address(key="x", tenant="team", ip="127.0.0.1", port=full.getsockname()[1])
        async with client(Ed25519PrivateKey.generate()) as engines:
            with pytest.raises(UnreachableError, match=r"no connection within 0\.3 s; .* NetworkPolicy") as raised:
                await engines.read(where)
    assert not raised.value.closed


def pem(key: object, path: Path) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))  # type: ignore[attr-defined]
    return path


def test_the_signing_key_is_checked_at_start(tmp_path: Path) -> None:
    assert "BEGIN PUBLIC KEY" in Signer.load(pem(Ed25519PrivateKey.generate(), tmp_path / "good.pem")).public_pem
    for path, problem in (
        (tmp_path / "absent.pem", "No such file"),
        (_text(tmp_path / "text.pem", "no key"), "text.pem"),
        (pem(generate_private_key(SECP256R1()), tmp_path / "curve.pem"), "an Ed25519 private key is needed"),
    ):
        with pytest.raises(BadKeyError, match=problem):
            Signer.load(path)


def _text(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
