"""Talks to the control port of engine pods: writes setpoints, reads back what is applied.

A write is acknowledged when the step in flight has ended, so it may take seconds. When it is not known to have landed,
the pod is read back before anything is written again. Answers come from pods and are untrusted: bounded in size, parsed
by the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from pydantic import ValidationError
from yarl import URL

from flyball_engine.contract import (
    CONTROL_PORT,
    SETPOINT_PATH,
    ErrorBody,
    Generation,
    ReadBack,
    Refusal,
    Setpoint,
)
from flyball_engine.signing import Signer, body_of
from flyball_operator.engines.errors import (
    BadAnswerError,
    EngineError,
    NotLeadingError,
    SetpointRefusedError,
    UnknownError,
    UnreachableError,
)

#: A read-back is some 10 KiB per core.
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
CONNECT_SECONDS: Final = 2.0
READ_SECONDS: Final = 5.0
#: Longer than a step of many thousand prefill tokens on a slow device.
WRITE_SECONDS: Final = 15.0
#: Pods spoken to at once, over all services.
CONCURRENCY: Final = 64


@dataclass(frozen=True)
class Address:
    """Where a pod's control port is. `key` identifies the pod to the caller."""

    key: str
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


class EngineClient:
    """One HTTP session for all engines.

    `may_act` is asked right before each write: a lease may end while a write waits for its turn. `wall` gives Unix
    seconds for tokens, `clock` measures durations.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        signer: Signer,
        *,
        may_act: Callable[[], bool],
        wall: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._may_act = may_act
        self._session = session
        self._signer = signer
        self._wall = wall
        self._clock = clock
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def read(self, address: Address) -> ReadBack:
        """What an engine applies. Raises an `EngineError`."""
        status, body = await self._request("GET", address, body=None, seconds=READ_SECONDS)
        if status != 200:
            raise _refusal(status, body)
        return _read_back(body)

    async def write(self, address: Address, setpoint: Setpoint) -> ReadBack:
        """Write a setpoint and return once every core confirmed it. Raises an `EngineError`."""
        try:
            read_back = await self._put(address, setpoint)
        except (UnknownError, UnreachableError):
            read_back = await self.read(address)
        wanted = Generation(epoch=setpoint.epoch, generation=setpoint.generation)
        if not read_back.confirmed(wanted):
            raise UnknownError(f"{address.ip}: {_unconfirmed(read_back, wanted)}")
        return read_back

    async def timed(self, address: Address, ask: Callable[[Address], Awaitable[ReadBack]]) -> Answer:
        """Ask one engine when its turn comes; its error is an answer, too."""
        async with self._slots:
            began = self._clock()
            try:
                return Acknowledged(await ask(address), self._clock() - began)
            except EngineError as error:
                return error

    async def _put(self, address: Address, setpoint: Setpoint) -> ReadBack:
        if not self._may_act():
            raise NotLeadingError(f"{address.ip}: not written, the lease is not surely ours")
        body = body_of(setpoint)
        status, answer = await self._request("PUT", address, body=body, service=setpoint.service, seconds=WRITE_SECONDS)
        if status != 200:
            raise _refusal(status, answer)
        return _read_back(answer)

    async def _request(
        self, method: str, address: Address, *, body: bytes | None, seconds: float, service: str = ""
    ) -> tuple[int, bytes]:
        headers = {}
        if body is not None:
            token = self._signer.token(body, service=service, now=self._wall())
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, address.url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await _bounded(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{address.ip}:{address.port}: {error or type(error).__name__}") from error


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    """The body, refused once it is larger than any read-back."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise BadAnswerError(f"the answer is over {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _unconfirmed(read_back: ReadBack, wanted: Generation) -> str:
    """Which cores are behind, in words."""
    if not read_back.cores:
        return "no engine core answers, so none has confirmed the setpoint"
    late = sorted({*read_back.unknown, *(core.engine for core in read_back.cores if core.applied != wanted)})
    which = f"engine core {late[0]} has" if len(late) == 1 else f"engine cores {', '.join(map(str, late))} have"
    return f"{which} not confirmed the setpoint"


def _read_back(body: bytes) -> ReadBack:
    try:
        return ReadBack.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise BadAnswerError(f"no read-back: {error.error_count()} fields are wrong, first: {_first(error)}") from error


def _refusal(status: int, body: bytes) -> EngineError:
    try:
        refused = ErrorBody.model_validate_json(body, extra="ignore")
    except ValidationError:
        return BadAnswerError(f"HTTP {status} without a reason of the contract")
    if refused.error is Refusal.UNKNOWN:
        return UnknownError(refused.message)
    return SetpointRefusedError(refused.error, refused.message, refused.applied)


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}"
