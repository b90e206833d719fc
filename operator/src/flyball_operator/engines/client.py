"""Talks to the control port of engine pods: writes setpoints, reads back what is applied.

A write is acknowledged when the step in flight has ended, so it may take seconds. When it is not known to have landed,
the pod is read back before anything is written again. Answers come from pods and are untrusted: bounded in size, and
read by `flyball_engine.control_port`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from errno import ECONNREFUSED
from typing import Final
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from flyball_engine.contract import (
    CONTROL_PORT,
    NO_STEPS_HEADER,
    SETPOINT_PATH,
    TRIAL_HEADER,
    Generation,
    ReadBack,
    Refusal,
    Setpoint,
)
from flyball_engine.control_port import ForeignAnswerError, answer_of, headers_of, signed, unconfirmed
from flyball_engine.signing import Signer
from flyball_operator.engines.errors import (
    BadAnswerError,
    EngineError,
    NoSigningKeyError,
    NotLeadingError,
    SetpointRefusedError,
    UnknownError,
    UnreachableError,
)

#: A read-back is some 10 KiB per core.
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
#: Sent to learn whether a key is accepted. It is no setpoint, so not even an engine that does not know `TRIAL_HEADER`
#: applies it.
_NO_SETPOINT: Final = b"{}"
CONNECT_SECONDS: Final = 2.0
READ_SECONDS: Final = 5.0
#: Longer than a step of many thousand prefill tokens on a slow device.
WRITE_SECONDS: Final = 15.0
#: Pods of one namespace that are spoken to at once. Those of up to 31 namespaces that never answer delay no other.
CONCURRENCY: Final = 32
#: Connections at once, over all namespaces: each takes a file descriptor.
MOST_CONNECTIONS: Final = 1024


@dataclass(frozen=True)
class Address:
    """Where a pod's control port is. `key` identifies the pod to the caller, `tenant` is its namespace."""

    key: str
    tenant: str
    ip: str
    port: int = CONTROL_PORT

    @property
    def url(self) -> URL:
        """URL of the setpoint."""
        return URL.build(scheme="http", host=self.ip, port=self.port, path=SETPOINT_PATH)


@dataclass(frozen=True)
class Acknowledged:
    """A read-back, and the seconds from asking to having it."""

    read_back: ReadBack
    seconds: float


Answer = Acknowledged | EngineError


def engine_session() -> aiohttp.ClientSession:
    """The HTTP session for all engines.

    No connection is kept: a pod is asked again after 15 s or more, and each of thousands would take memory until then.
    """
    connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, force_close=True)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class EngineClient:
    """One HTTP session for all engines.

    `signers`: the keys to sign with, the newest first; one that an engine does not know is followed by the next.
    `may_act` is asked right before each write: a lease may end while a write waits for its turn. `wall` gives Unix
    seconds for tokens, `clock` measures durations.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        signers: Callable[[], Sequence[Signer]],
        *,
        may_act: Callable[[], bool],
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._may_act = may_act
        self._session = session
        self._signers = signers
        self._wall = wall
        self._clock = clock
        # A namespace's lasts as long as one of its pods is spoken to, or waits for its turn.
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def read(self, address: Address) -> ReadBack:
        """What an engine applies. Raises an `EngineError`."""
        return _parsed(*await self._request("GET", address, seconds=READ_SECONDS))

    async def read_state(self, address: Address) -> ReadBack:
        """The same without the steps. Raises an `EngineError`."""
        headers = {NO_STEPS_HEADER: "yes"}
        return _parsed(*await self._request("GET", address, headers=headers, seconds=READ_SECONDS))

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        """Write a setpoint and return once every core confirmed it. Raises an `EngineError`."""
        try:
            read_back = await self._put(address, setpoint)
        except (UnknownError, UnreachableError):
            read_back = await self.read(address)
        wanted = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        if (problem := unconfirmed(read_back, wanted)) is not None:
            raise UnknownError(f"{address.ip}: {problem}")
        return read_back

    async def accepts(self, address: Address, signer: Signer, *, service: str) -> bool:
        """Whether an engine of a service accepts tokens of a key. It applies nothing. Raises an `EngineError`."""
        headers = {**headers_of(_NO_SETPOINT, signer, service=service, now=self._wall()), TRIAL_HEADER: "yes"}
        answer = await self._request("PUT", address, body=_NO_SETPOINT, headers=headers, seconds=READ_SECONDS)
        try:
            _parsed(*answer)
        except SetpointRefusedError as refused:
            return refused.refusal is not Refusal.BAD_TOKEN
        raise BadAnswerError(f"{address.ip}: it took a body that is no setpoint")

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        """Ask one engine when its turn comes; its error is an answer, too."""
        async with self._slots.setdefault(address.tenant, asyncio.Semaphore(CONCURRENCY)):
            began = self._clock()
            try:
                return Acknowledged(await ask(address), self._clock() - began)
            except EngineError as error:
                return error

    async def _put(self, address: Address, setpoint: Setpoint) -> ReadBack:
        signers = self._signers()
        if not signers:
            raise NoSigningKeyError("the operator has no signing key yet; its log says why")
        *newer, oldest = signers
        for signer in newer:
            try:
                return await self._put_signed(address, setpoint, signer)
            except SetpointRefusedError as refused:
                if refused.refusal is not Refusal.BAD_TOKEN:
                    raise
        return await self._put_signed(address, setpoint, oldest)

    async def _put_signed(self, address: Address, setpoint: Setpoint, signer: Signer) -> ReadBack:
        if not self._may_act():
            raise NotLeadingError(f"{address.ip}: not written, the lease is not surely ours")
        body, headers = signed(setpoint, signer, now=self._wall())
        return _parsed(*await self._request("PUT", address, body=body, headers=headers, seconds=WRITE_SECONDS))

    async def _request(
        self,
        method: str,
        address: Address,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float,
    ) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, address.url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await _bounded(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(f"{address.ip}:{address.port}", error, seconds) from error


def _unreachable(port: str, error: Exception, seconds: float) -> UnreachableError:
    """In the words of whoever looks for the cause: the client's own name its classes, or nothing at all."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return UnreachableError(
            f"{port}: no connection within {CONNECT_SECONDS:g} s; look for a NetworkPolicy that keeps the operator out"
        )
    if isinstance(error, TimeoutError):
        return UnreachableError(f"{port}: no answer within {seconds:g} s")
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno == ECONNREFUSED:
        return UnreachableError(f"{port}: connection refused: nothing listens there", closed=True)
    return UnreachableError(f"{port}: {error or type(error).__name__}")


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, refused once it is larger than any read-back."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise BadAnswerError(f"the answer is over {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _parsed(status: int, body: bytes) -> ReadBack:
    """The read-back of an answer. Raises an `EngineError`."""
    try:
        answer = answer_of(status, body)
    except ForeignAnswerError as error:
        raise BadAnswerError(str(error)) from error
    if isinstance(answer, ReadBack):
        return answer
    if answer.error is Refusal.UNKNOWN:
        raise UnknownError(answer.message)
    raise SetpointRefusedError(answer.error, answer.message, answer.applied)
