"""The readiness probe, and the request that an engine has to answer before it is Ready.

The probe is a GET of vLLM's own `/health` with a header of ours. Where the plugin did not load, nobody looks at the
header, and plain vLLM is Ready as ever.

The request takes the way of a client's: through the API server's application, so that what each part of it makes at its
first use is made. It begins below our count of requests: it is nobody's.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from flyball_engine.contract import API_PORT, HEALTH_PATH, READY_HEADER
from flyball_engine.control.readiness import Readiness
from flyball_engine.log_events import EngineLogEvent, EventLog

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = EventLog(__name__)

_PATH: Final = "/v1/completions"
#: A prompt and two tokens: a step of a prompt, and one of a decode.
_BODY: Final = json.dumps({"prompt": "Is the engine ready?", "max_tokens": 2, "temperature": 0}).encode()
#: Seconds between attempts that end with an error, and until such an engine is let serve: its clients see the errors.
RETRY_SECONDS: Final = 1.0
GIVE_UP_SECONDS: Final = 60.0
_NOT_IMPLEMENTED: Final = 501


class ProbeMiddleware:
    """Answers the readiness probe while the engine is not Ready; all else passes through."""

    def __init__(self, app: App, *, warm_up: WarmUp) -> None:
        self._app = app
        self._warm_up = warm_up
        warm_up.reach(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange."""
        lacks = self._warm_up.readiness.lacks() if _is_probe(scope) else None
        if lacks is None:
            await self._app(scope, receive, send)
            return
        head = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 503, "headers": head})
        await send({"type": "http.response.body", "body": lacks.encode()})


def _is_probe(scope: Scope) -> bool:
    if scope["type"] != "http" or scope.get("path") != HEALTH_PATH:
        return False
    return any(name == READY_HEADER.encode() for name, _ in scope.get("headers", ()))


class WarmUp:
    """The first request of one API server."""

    def __init__(self, readiness: Readiness, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.readiness = readiness
        self._clock = clock
        self._application: Any = None
        self._reached: asyncio.Future[App] | None = None
        self._below: App | None = None

    def install(self, app: Any) -> None:
        """Put the probe in front of this application, which does not serve yet."""
        app.add_middleware(ProbeMiddleware, warm_up=self)
        self._application = app

    def reach(self, below: App) -> None:
        """What is below the probe. The application builds it as it begins to serve."""
        self._below = below
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(below)

    async def run(self, api_key: str | None) -> None:
        """Ask until there is an answer; then the engine may be Ready. Does nothing if the probe is not in place."""
        if self._application is None:
            return
        self.readiness.expect_answer()
        self._reached = asyncio.get_running_loop().create_future()
        below = self._below or await self._reached
        began = self._clock()
        while (failure := await self._ask(below, api_key)) is not None:
            if self._clock() - began >= GIVE_UP_SECONDS:
                _log.warning(EngineLogEvent.WARM_UP_FAILED, "clients are let in: %s", failure)
                break
            await asyncio.sleep(RETRY_SECONDS)
        self.readiness.answered()
        _log.info(EngineLogEvent.WARM_UP_ENDED, "after %.1f s", self._clock() - began)

    async def _ask(self, below: App, api_key: str | None) -> str | None:
        """Why the request should be sent again; None if it was answered, or this engine takes none of its kind."""
        statuses: list[int] = []
        bodies = [_BODY]

        async def receive() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            # A client that stays: whoever asks again would hear that it left.
            return await asyncio.Future()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        try:
            await below(_scope(self._application, api_key), receive, send)
        except Exception as error:  # noqa: BLE001 – vLLM must not fail with its guest
            return f"{type(error).__name__}: {error}"
        status = statuses[0] if statuses else 0
        if 400 <= status < 500 or status == _NOT_IMPLEMENTED:
            _log.info(EngineLogEvent.WARM_UP_SKIPPED, "this engine takes no completion (%d)", status)
            return None
        return None if 200 <= status < 300 else f"status {status}"


def _scope(application: Any, api_key: str | None) -> Scope:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
    if api_key:
        headers.append((b"authorization", f"Bearer {api_key}".encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": _PATH,
        "raw_path": _PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", API_PORT),
        "app": application,
        "state": {},
    }
