"""Certificates that are renewed while a server runs, as the kubelet renews a Secret's files."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from flyball_engine.vllm.certificates import CertificateKeeper
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.tuners import until
from support.certificates import Authority
from support.secret_volume import SecretVolume, tls_data

#: Seconds for what takes moments.
PATIENCE = 60.0
OURS = Authority()


@pytest.fixture(autouse=True)
def keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed as in an engine; taken out for the tests after it."""
    monkeypatch.setattr(uvicorn.Config, "load", uvicorn.Config.load)
    CertificateKeeper(seconds=0.01).install()


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An application that is never asked."""


@asynccontextmanager
async def serving(secret: SecretVolume) -> AsyncIterator[int]:
    """A server with this certificate, and its port."""
    port = free_port()
    config = uvicorn.Config(
        nothing,
        host="127.0.0.1",
        port=port,
        lifespan="off",
        log_config=None,
        ssl_certfile=secret.folder / "tls.crt",
        ssl_keyfile=secret.folder / "tls.key",
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until("it serves", lambda: server.started)
    yield port
    server.should_exit = True
    await task


async def served(port: int) -> str:
    """The name in the certificate that a new connection is given, which our authority must have issued."""
    trusting = ssl.create_default_context(cadata=OURS.pem)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    return str(dict(pair for part in certificate["subject"] for pair in part)["commonName"])


async def expect_served(port: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (found := await served(port)) != name:
            assert found
            await asyncio.sleep(0.01)


async def test_every_renewal_is_served_not_only_the_first(tmp_path: Path) -> None:
    secret = SecretVolume(tmp_path / "tls", tls_data(OURS.issue("first")))
    async with serving(secret) as port:
        assert await served(port) == "first"
        for name in ("second", "third", "fourth"):
            secret.update(tls_data(OURS.issue(name)))
            await expect_served(port, name)


async def test_a_key_of_another_certificate_is_told_once_and_the_earlier_ones_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = SecretVolume(tmp_path / "tls", tls_data(OURS.issue("first")))
    async with serving(secret) as port:
        secret.update(tls_data((OURS.issue("second")[0], OURS.issue("third")[1])))
        await until("it is told", lambda: "CertificateNotServed" in caplog.text)
        assert await served(port) == "first"
        caplog.set_level(logging.INFO)
        secret.update(tls_data(OURS.issue("fourth")))
        await expect_served(port, "fourth")
    assert caplog.text.count("CertificateNotServed") == 1


async def test_a_server_without_a_certificate_is_left_alone() -> None:
    config = uvicorn.Config(nothing, log_config=None)
    config.load()
    assert config.ssl is None
    assert [task for task in asyncio.all_tasks() if task.get_name() == "flyball-certificate"] == []
