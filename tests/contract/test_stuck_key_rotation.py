"""The signing key is rotated while an engine is down, deaf, or knows one key for good: what the others see of that.

Engines are real control ports. Cluster, kubelet and clock are in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flyball_engine.contract import Limits, Setpoint
from flyball_engine.signing import Signer
from flyball_lab.harness.engines import ServedEngine, serving
from flyball_lab.harness.tuners import TunerEnvironment
from flyball_operator.engines import client as client_module
from flyball_operator.engines.client import Address, EngineClient, engine_session
from flyball_operator.keys.rotation import ROUND_SECONDS
from flyball_operator.keys.state import LONGEST_WAIT
from flyball_operator.keys.trial import LEAST_SECONDS
from support.key_world import PERIOD, SYNC_SECONDS, Engine, KeyWorld, public

A_WHILE = LEAST_SECONDS + SYNC_SECONDS + 60.0
TEAM = "team"


@dataclass
class Fleet:
    """Pods of one service behind real control ports, by name, and the world that keeps their keys."""

    world: KeyWorld
    client: EngineClient
    pods: dict[str, ServedEngine]
    generation: int = field(default=0)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, in which kubelets bring keys to the pods that have a file for them."""
        for _ in range(int(seconds / ROUND_SECONDS)):
            await self.world.pass_time(ROUND_SECONDS)
            for engine in self.world.engines:
                file = self.pods[engine.name].public_keys
                if file is not None and engine.file:
                    file.write_text(engine.file)

    async def rotate(self, seconds: float) -> None:
        """Let the key grow old, and so much time pass."""
        self.world.skip(PERIOD.total_seconds())
        await self.pass_time(seconds)

    async def write(self, name: str) -> None:
        """Write a setpoint to a pod, which must take it."""
        self.generation += 1
        limits = Limits(max_num_active_seqs=16)
        setpoint = Setpoint(service=TEAM, epoch=1, generation=self.generation, limits=limits)
        await self.client.write(self.address(name), setpoint)

    async def accepts(self, name: str, pem: str) -> bool:
        """Whether a pod accepts a private key."""
        return await self.client.accepts(self.address(name), Signer.parse(pem.encode(), "key"), service=TEAM)

    def address(self, name: str) -> Address:
        pod = self.pods[name]
        return Address(key=pod.uid, tenant=TEAM, ip=pod.ip, port=pod.port)

    @property
    def current(self) -> str:
        """The key that is signed with, PEM."""
        return self.world.data()["current"]


@asynccontextmanager
async def fleet(folder: Path, *names: str, bound: str = "", down: str = "") -> AsyncIterator[Fleet]:
    """Pods that are Ready. `bound`: of an earlier operator, with the key of its time. `down`: nothing listens there."""
    environment = TunerEnvironment()
    pods = {name: environment.engine(name, uid=TEAM) for name in names}
    for name, pod in pods.items():
        pod.public_keys = None if name == bound else folder / f"{name}.pem"
    world = KeyWorld(namespaces=(TEAM,))
    first = environment.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    world.fill({"signing-key.pem": first})
    world.engines = [
        Engine(TEAM, name, mounted=name != bound, key=public(first), ip=pod.ip, port=pod.port)
        for name, pod in pods.items()
    ]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(engine_session())
        for name, pod in pods.items():
            if name != down:
                await stack.enter_async_context(serving(pod))

        def signers() -> Sequence[Signer]:
            """Of whoever leads."""
            return world.rotation.signers()

        client = EngineClient(session, signers, may_act=lambda: True, wall=time.time, clock=time.monotonic)
        world.asked = client
        found = Fleet(world, client, pods)
        await found.pass_time(A_WHILE)
        yield found


async def test_a_pod_that_is_down_holds_up_the_others_for_ten_minutes_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(tmp_path, "chat-0", "chat-1", down="chat-1") as found:
        first = found.current
        await found.rotate(A_WHILE)
        assert found.current == first
        await found.write("chat-0")
        await found.pass_time(LONGEST_WAIT.total_seconds() + A_WHILE)
        assert found.current != first
        await found.write("chat-0")
        assert await found.accepts("chat-0", found.current)
        assert not await found.accepts("chat-0", first), "it is revoked"
        (said,) = (record.getMessage() for record in caplog.records if "did not accept" in record.message)
        assert "1 engines" in said
        assert "connection refused" in said


async def test_a_pod_that_never_answers_holds_up_the_others_for_ten_minutes_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "READ_SECONDS", 0.05)

    async def hear_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with fleet(tmp_path, "chat-0", "chat-1", down="chat-1") as found:
        deaf = found.pods["chat-1"]
        async with await asyncio.start_server(hear_out, deaf.ip, deaf.port):
            first = found.current
            await found.rotate(A_WHILE)
            assert found.current == first
            await found.pass_time(LONGEST_WAIT.total_seconds() + A_WHILE)
            assert found.current != first
            monkeypatch.undo()
            await found.write("chat-0")
            assert not await found.accepts("chat-0", first)


async def test_a_pod_that_knows_one_key_for_good_holds_up_nobody_and_is_written_to_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(tmp_path, "chat-0", "old-0", bound="old-0") as found:
        first, seen = found.current, {found.current}
        for _ in range(2):
            await found.rotate(A_WHILE)
            seen.add(found.current)
            await found.pass_time(A_WHILE)
            await found.write("chat-0")
            await found.write("old-0")
        assert len(seen) == 3, "the others wait for no longer than without it"
        assert [await found.accepts("chat-0", key) for key in (first, found.current)] == [False, True]
        assert [await found.accepts("old-0", key) for key in (first, found.current)] == [True, False]
        found.world.start()  # another leader, which knows what is in the Secret alone
        await found.pass_time(5)
        await found.write("chat-0")
        await found.write("old-0")
        said = [record.getMessage() for record in caplog.records if "is kept" in record.message]
        assert len(said) == 2, "once by each leader"
        assert "team/old-0" in said[0]
