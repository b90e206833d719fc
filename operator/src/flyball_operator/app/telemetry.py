"""The operator about itself: metrics, liveness and readiness on one port, and logs that machines can read."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from flyball_operator.app.settings import LogFormat, LogLevel
from flyball_operator.reconcile.metrics import Metrics


class Health:
    """Why this process is not ready, and whether it is alive."""

    def __init__(self, alive: Callable[[], Sequence[str]]) -> None:
        self.missing: Callable[[], Sequence[str]] = lambda: ("start checks have not run yet",)
        self._alive = alive

    async def healthz(self, _request: web.Request) -> web.Response:
        """200 while the loops turn; else 500 and what stands still."""
        return _answer(self._alive(), status=500)

    async def readyz(self, _request: web.Request) -> web.Response:
        """200 once this process can lead; else 503 and what is missing."""
        return _answer(self.missing(), status=503)


def _answer(problems: Sequence[str], status: int) -> web.Response:
    if not problems:
        return web.Response(text="ok\n")
    return web.Response(status=status, text="".join(f"{problem}\n" for problem in problems))


class TelemetryServer:
    """Serves /metrics, also of the names alone that `name[]` gives, /healthz and /readyz."""

    def __init__(self, metrics: Metrics, health: Health, port: int) -> None:
        self._metrics = metrics
        self._port = port
        application = web.Application()
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/healthz", health.healthz)
        application.router.add_get("/readyz", health.readyz)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        registry: Collector = self._metrics.registry
        if chosen := request.query.getall("name[]", None):
            # As the library's own servers do: what is not asked for is not collected.
            registry = self._metrics.registry.restricted_registry(chosen)
        body = generate_latest(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def start(self) -> None:
        """Listen. Raises `OSError` where the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", self._port).start()  # noqa: S104 - scraped from other pods

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


#: What kopf gives its records for itself.
_OF_KOPF: Final = ("settings", "k8s_skip")


def json_formatter() -> logging.Formatter:
    """One JSON object per line: time (UTC, RFC 3339), level, logger, message, then `event` and what else there is."""
    return JsonFormatter(
        ("time", "levelname", "name", "message"),
        timestamp="time",
        rename_fields={"levelname": "level", "name": "logger", "exc_info": "exception"},
        reserved_attrs=[*RESERVED_ATTRS, *_OF_KOPF],
        json_default=_as_text,
    )


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(event)s: %(message)s", defaults={"event": "-"})
    handler.setFormatter(json_formatter() if form is LogFormat.JSON else text)
    logging.basicConfig(level=level.value, handlers=[handler], force=True)
    # kopf tells of every step of its own at INFO, and of every failed request and ended task at ERROR. What comes of
    # these we tell ourselves (`app.informer`); a handler that fails is told by another logger of kopf's.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    for room in ("kopf._cogs.clients", "kopf._core.reactor.running", "kopf._core.reactor.orchestration"):
        logging.getLogger(room).setLevel(logging.CRITICAL)
