"""The operator about itself: metrics, liveness and readiness on one port, and logs that machines can read."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from flyball_operator import __version__
from flyball_operator.plan.intents import Intent
from flyball_operator.shell.settings import LogFormat, LogLevel


class Metrics:
    """What is counted. `registry` is shared with whatever else of this process has something to count."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._reconciles = Counter(
            "flyball_operator_reconciles",
            "Looks at a service: ok, error (tried again), fenced (no longer leading) or bug.",
            ["outcome"],
            registry=self.registry,
        )
        self._writes = Counter(
            "flyball_operator_writes", "Writes of owned objects.", ["intent", "kind"], registry=self.registry
        )
        self._missed = Counter(
            "flyball_operator_watch_missed",
            "Objects that only a list found or missed.",
            ["kind"],
            registry=self.registry,
        )
        info = Gauge("flyball_operator_info", "Always 1.", ["version"], registry=self.registry)
        info.labels(__version__).set(1)

    def reconciled(self, outcome: str) -> None:
        """Count a look at a service."""
        self._reconciles.labels(outcome).inc()

    def wrote(self, intent: Intent) -> None:
        """Count a write of an owned object."""
        self._writes.labels(type(intent).__name__, intent.kind.value).inc()

    def missed(self, kind: str, count: int) -> None:
        """Count what watching alone would have missed."""
        self._missed.labels(kind).inc(count)

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Export a figure that is read when scraped."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def watch_each(self, name: str, help_text: str, label: str, values: Mapping[str, Callable[[], float]]) -> None:
        """Export a figure per value of a label, read when scraped."""
        gauge = Gauge(name, help_text, [label], registry=self.registry)
        for value, read in values.items():
            gauge.labels(value).set_function(read)


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
    """Serves /metrics, /healthz and /readyz."""

    def __init__(self, metrics: Metrics, health: Health, port: int) -> None:
        self._metrics = metrics
        self._port = port
        application = web.Application()
        application.router.add_get("/metrics", self._serve_metrics)
        application.router.add_get("/healthz", health.healthz)
        application.router.add_get("/readyz", health.readyz)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def start(self) -> None:
        """Listen. Raises `OSError` where the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "0.0.0.0", self._port).start()  # noqa: S104 - scraped from other pods

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()


#: Attributes every log record has; others were given as `extra` and are written out.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; what cannot be JSON is written as text."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{key: value for key, value in vars(record).items() if key not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form is LogFormat.JSON else text)
    logging.basicConfig(level=level.value, handlers=[handler], force=True)
    # kopf tells of every step of its own at INFO, and of every failed request and ended task at ERROR. What comes of
    # these we tell ourselves (`shell.watch`); a handler that fails is told by another logger of kopf's.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    for room in ("kopf._cogs.clients", "kopf._core.reactor.running", "kopf._core.reactor.orchestration"):
        logging.getLogger(room).setLevel(logging.CRITICAL)
