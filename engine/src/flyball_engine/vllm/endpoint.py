"""The endpoint plugin: starts the control port in vLLM's API-server process, or follows the one that has it.

vLLM calls `init_state` once in each API server, on its event loop, when the engine cores are up. The control port is a
server of its own on a port of its own: vLLM's routes stay as they are, but for the readiness probe (`warm_up`).
Whatever fails here is logged, and vLLM serves on.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from flyball_engine.adapters import AdapterReport
from flyball_engine.batching.gate import Gate
from flyball_engine.batching.outcomes import LedgerCounts, RequestLedger
from flyball_engine.contract import Env, Setpoint
from flyball_engine.control.adapters import AdapterLoader
from flyball_engine.control.api_servers import ApiServers, Follower
from flyball_engine.control.metrics import EngineCollector, HeadroomCollector
from flyball_engine.control.readiness import Readiness
from flyball_engine.control.server import bind, build_app, control_port, serve
from flyball_engine.control.service import ControlService
from flyball_engine.control.tokens import verifier_of
from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm import plugin
from flyball_engine.vllm.adapters import VllmAdapters
from flyball_engine.vllm.attributes import first_lack
from flyball_engine.vllm.certificates import CertificateKeeper
from flyball_engine.vllm.client import VllmEngine
from flyball_engine.vllm.compat import MARKING
from flyball_engine.vllm.gate import RequestGate, install_gate
from flyball_engine.vllm.harmony import install_harmony, unread
from flyball_engine.vllm.kv_transfer import loads_prompts
from flyball_engine.vllm.queue_limiter import QueueLimiter
from flyball_engine.vllm.requests import install
from flyball_engine.vllm.routes import unasked
from flyball_engine.vllm.state_dir import ensure_state_dir
from flyball_engine.vllm.warm_up import WarmUp

_log = EventLog(__name__)


class FlyballControl:
    """Entry point `vllm.endpoint_plugins`; vLLM's `EndpointPlugin` protocol."""

    name = "flyball_control"
    required_tasks = None

    def __init__(self) -> None:
        self._ledger = RequestLedger()
        self._engine: VllmEngine | None = None
        self._gate = Gate(lambda: None if self._engine is None else self._engine.loads())
        self._request_gate = RequestGate(
            self._gate,
            time.monotonic,
            random.random,
            cores=lambda: 1 if self._engine is None else self._engine.cores,
        )
        self._queue_limiter: QueueLimiter | None = None
        self._servers: ApiServers | None = None
        self._ungated: str | None = None
        self._unmarked: str | None = None
        self._unasked: str | None = None
        self._no_harmony: str | None = None
        self._serving: asyncio.Task[None] | None = None
        self._certificates = CertificateKeeper()
        self._warm_up = WarmUp(Readiness(time.monotonic))
        self._warming: asyncio.Task[None] | None = None
        self._adapters: AdapterLoader | None = None
        self._loading: asyncio.Task[None] | None = None

    def attach_router(self, app: Any) -> None:
        """Count this application's requests, and refuse them; never raises. The control port is a server of its own."""
        self._certificates.install()
        try:
            # First, so that our count of requests is in front of it.
            self._warm_up.install(app)
            uncounted = install(self._ledger, app, request_gate=self._request_gate)
            self._ungated = uncounted or install_gate(self._request_gate)
            self._no_harmony = install_harmony(self._request_gate)
            self._unasked = unasked(str(getattr(route, "path", "")) for route in app.routes)
        except Exception as error:  # noqa: BLE001 – vLLM must not fail with its guest
            uncounted = self._ungated = f"{type(error).__name__}: {error}"
        if uncounted is not None:
            _log.warning(EngineLogEvent.REQUESTS_NOT_COUNTED, "%s", uncounted)
        self._unmarked = self._ungated or first_lack(MARKING)
        self._request_gate.marks = self._unmarked is None
        if self._ungated is not None:
            _log.warning(EngineLogEvent.GATE_NOT_INSTALLED, "%s", self._ungated)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Start the control port; never raises. Without an engine client (a render-only server) there is none."""
        if engine_client is None:
            return
        self._follow_adapters(engine_client, state)
        warming = self._warm_up.run(_api_key(args))
        self._warming = asyncio.get_running_loop().create_task(warming, name="flyball-warm-up")
        try:
            index, number = _place(engine_client)
            if index:
                self._serving = self._follow_the_first(engine_client, index, number)
            else:
                self._serving = self._serve(engine_client, number, host=getattr(args, "host", None))
        except Exception:  # noqa: BLE001 – vLLM must not fail with its guest
            _log.exception(EngineLogEvent.CONTROL_PORT_FAILED, "vLLM serves on, ungoverned")
        else:
            self._warm_up.readiness.expect_setpoint(self._runs_under_setpoint)

    def _follow_adapters(self, engine_client: Any, state: Any) -> None:
        """Load the adapters of the pod's list, where it has one, in the background."""
        if not (path := os.environ.get(Env.ADAPTERS_FILE, "")):
            return
        adapters = VllmAdapters(getattr(state, "openai_serving_models", None), engine_client)
        self._adapters = AdapterLoader(Path(path), adapters, clock=time.monotonic, names=self._ledger.set_adapters)
        self._loading = asyncio.get_running_loop().create_task(self._adapters.run(), name="flyball-adapters")
        self._warm_up.readiness.expect_adapters(lambda: self._adapters is None or self._adapters.settled)

    def _counts(self) -> LedgerCounts:
        return self._ledger.collect(time.monotonic())

    def _own_adapters(self) -> tuple[AdapterReport, ...]:
        return () if self._adapters is None else self._adapters.reports

    def _all_adapters(self) -> tuple[AdapterReport, ...] | None:
        """What became of them in all API servers; None where the pod has no list."""
        if self._adapters is None or self._servers is None:
            return None
        return self._servers.adapters(self._adapters.reports)

    def _runs_under_setpoint(self) -> bool:
        """Whether every core does; true of an engine that takes none, too."""
        engine = self._engine
        if engine is None or not (reports := engine.reports()).governed:
            return True
        return not reports.unknown and all(report.state.applied is not None for report in reports.cores)

    def _open(self, engine_client: Any, number: int) -> VllmEngine:
        """The engine as this API server, one of so many, sees it; its limits of the queue are moved from now on."""
        self._queue_limiter = QueueLimiter(
            engine_client, refused=self._request_gate.overflowed, clock=time.monotonic, servers=number
        )
        engine = self._engine = VllmEngine(
            engine_client,
            version=_vllm_version(),
            folder=ensure_state_dir(),
            failure=plugin.failure(),
            queue_limiter=self._queue_limiter,
            ungated=self._why_ungated(engine_client),
            unmarked=self._unmarked,
            unasked=self._unasked,
        )
        self._request_gate.look_up(lambda: engine.prefixes)
        return engine

    def _serve(self, engine_client: Any, number: int, *, host: str | None) -> asyncio.Task[None]:
        """Bind the port and serve on it in the background; raises OSError if it is taken, PortError if it is none."""
        sock = bind(host, control_port(os.environ))
        _log.info(EngineLogEvent.CONTROL_PORT_OPEN, "on %s", sock.getsockname())
        engine = self._open(engine_client, number)
        servers = ApiServers(ensure_state_dir(), number, counts=self._counts, gate=self._gate, clock=time.monotonic)
        self._servers = servers
        service = ControlService(
            engine=engine,
            verifier=verifier_of(os.environ),
            service=os.environ.get(Env.SERVICE_UID, ""),
            follow=self._follow,
            adapters=self._all_adapters,
            adapters_listed=lambda: self._adapters is None or self._adapters.listed,
        )
        registry = CollectorRegistry()
        registry.register(EngineCollector(service, servers.collect, servers))
        # Several servers share their metrics by files, and drop what others collect.
        if number == 1:
            REGISTRY.register(HeadroomCollector(service))
        return asyncio.get_running_loop().create_task(serve(build_app(service, registry), sock), name="flyball-control")

    def _follow_the_first(self, engine_client: Any, index: int, number: int) -> asyncio.Task[None]:
        """Follow the API server that has the control port, in the background."""
        self._open(engine_client, number)
        follower = Follower(
            ensure_state_dir(),
            index,
            follow=self._follow,
            counts=self._counts,
            gate=self._gate,
            adapters=self._own_adapters,
        )
        return asyncio.get_running_loop().create_task(follower.run(), name="flyball-follower")

    def _why_ungated(self, engine_client: Any) -> Callable[[], str | None]:
        """Says why requests cannot be refused now; None if they can."""
        lasting = self._ungated or self._unread_format(engine_client) or _why_unforeseen(engine_client)
        return lambda: lasting or (None if self._servers is None else self._servers.missing())

    def _unread_format(self, engine_client: Any) -> str | None:
        """Why the gate cannot be asked about this model's chats; None if it can."""
        model = getattr(getattr(engine_client, "vllm_config", None), "model_config", None)
        return unread(getattr(getattr(model, "hf_config", None), "model_type", None), self._no_harmony)

    def _follow(self, setpoint: Setpoint) -> None:
        """What of a setpoint is done in the API servers."""
        if self._servers is not None:
            try:
                self._servers.publish(setpoint)
            except OSError:
                # The read-back names those that do not follow.
                _log.exception(EngineLogEvent.SETPOINT_NOT_SHARED, "the other API servers could not be told")
        self._ledger.set_objectives(setpoint.objectives)
        self._ledger.set_classes(setpoint.classes)
        self._gate.set_policy(setpoint, now=time.monotonic())
        if self._queue_limiter is not None:
            self._queue_limiter.follow(setpoint)


def _place(engine_client: Any) -> tuple[int, int]:
    """Which of the engine's API servers this is, the first being 0, and how many there are."""
    core = getattr(engine_client, "engine_core", None)
    return int(getattr(core, "client_index", 0)), int(getattr(core, "client_count", 1))


def _why_unforeseen(engine_client: Any) -> str | None:
    """Why no prompt of this engine can be said to take too long; None if it processes them all itself."""
    if not loads_prompts(getattr(engine_client, "vllm_config", None)):
        return None
    return "a KV connector loads prompts from elsewhere, and how long that takes is not known"


def _api_key(args: Any) -> str | None:
    """A key that this API server takes, if it wants one."""
    keys = getattr(args, "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    return str(keys[0]) if keys[0] else None


def _vllm_version() -> str:
    from vllm.version import __version__  # noqa: PLC0415 – this module is imported without vLLM, too

    return str(__version__)
