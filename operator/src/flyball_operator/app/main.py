"""Composes the operator and runs it: one task group with the informers, the workers, the tuner and the elector in it.

If one of them ends, however it ends, all end, and the pod starts anew with everything read afresh. On SIGTERM the order
matters: first nothing is written any more, then the lease is given back, then the watches end. Given back any earlier,
two replicas could write.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from typing import Final

from kubernetes.aio import client
from pydantic import ValidationError

from flyball_engine.signing import BadKeyError
from flyball_operator.api import names
from flyball_operator.app import startup
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.app.informer import PARALLEL, Informer, Informers
from flyball_operator.app.kopf_glue import Watch
from flyball_operator.app.namespace_selection import NamespaceSelection
from flyball_operator.app.settings import ALL_NAMESPACES, Settings, problems
from flyball_operator.app.telemetry import Health, TelemetryServer, configure_logging
from flyball_operator.engines.client import EngineClient, engine_session
from flyball_operator.engines.errors import EnginesError
from flyball_operator.engines.signing_keys import SigningKeys
from flyball_operator.kube.api import Fence, KubeApi, NeverLeading, Unfenced, connected, load_configuration
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.election import REQUEST_SECONDS, Candidate, Elector, LeadershipLostError
from flyball_operator.kube.epochs import highest_epoch
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.namespace_leases import NamespaceLeases
from flyball_operator.kube.reader import Key, SnapshotReader
from flyball_operator.kube.resources import NAMESPACES, watched
from flyball_operator.kube.status import TunerStatus
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import TIMEOUT, PrometheusReader
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.plan.snapshot import Config
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.reconciler import Reconciler
from flyball_operator.reconcile.resync import Shared
from flyball_operator.supervision import EndedError, ended, first
from flyball_operator.tuning.dependencies import LATE_SECONDS, Dependencies
from flyball_operator.tuning.report.metrics import TunerMetrics
from flyball_operator.tuning.tuner import Tuner, collect_garbage_seldom

#: Seconds that writes under way get to end before the lease is given back.
DRAIN_SECONDS: Final = 2.0

MANAGER_ELECTION: Final = "flyball-election"
MANAGER_LEASES: Final = "flyball-namespaces"
MANAGER_READER: Final = "flyball-reader"

log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes."""

    OK = 0
    """Asked to end, and ended."""
    FAILED = 1
    """Something died; the log says what."""
    MISCONFIGURED = 2
    """A setting is wrong; nothing was touched."""
    LOST = 3
    """The lease was lost: another replica leads."""


class _AskedToEndError(Exception):
    """Raised inside the acting group, to end it."""


def boot_clock() -> float:
    """Seconds of a clock that never steps, and goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def utc_now() -> datetime:
    """The time on the wall, for people."""
    return datetime.now(UTC)


class Operator:
    """All parts, made once."""

    def __init__(self, settings: Settings, configuration: client.Configuration, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._configuration = configuration
        self._stack = stack
        self._stop = asyncio.Event()
        self.metrics = Metrics()
        self.health = Health(self._standing_still)
        self.cache = Cache()
        self.queue: KeyQueue[Key] = KeyQueue(clock=boot_clock, jitter=random.random)
        self.tuner: Tuner | None = None
        self.selection: NamespaceSelection | None = None
        #: When a leader that does not tune yet began to list the namespaces.
        self._led_from: float | None = None
        self._resources = watched(network_policies=settings.network_policy is not None)
        self.signing_keys = SigningKeys(settings.signing_key_file) if settings.signing_key_file else None

    async def assemble(self) -> None:
        """Connect a client per writer, so that the audit log tells them apart, and make the rest around them."""
        settings = self._settings
        election = await self._connect(MANAGER_ELECTION, Unfenced())
        self.reads = await self._connect(MANAGER_READER, NeverLeading())
        candidate = Candidate(
            namespace=settings.own_namespace,
            lease=settings.lease_name,
            identity=f"{settings.instance}_{uuid.uuid4().hex[:8]}",
        )
        self.elector = Elector(
            election,
            candidate,
            epoch_floor=lambda reached: self._highest_epoch(election, reached),
            clock=boot_clock,
            now=utc_now,
        )
        reconciler_api = await self._connect(names.MANAGER_RECONCILER, self.elector)
        tuner_api = await self._connect(names.MANAGER_TUNER, self.elector)
        self.writers = (reconciler_api, tuner_api)
        config = Config(
            plugin_image=settings.plugin_image,
            public_key=self.signing_keys.public_pem if self.signing_keys is not None else "",
            resync_seconds=settings.resync_seconds,
            ingress_peers=settings.network_policy,
        )
        self.leases = NamespaceLeases(
            await self._connect(MANAGER_LEASES, self.elector),
            f"{settings.own_namespace}/{settings.lease_name}",
            used=lambda: {desire.meta.namespace for desire in self.cache.services},
            enter=self._take_over,
            clock=boot_clock,
            now=utc_now,
            jitter=random.random,
        )
        self.informers = self._inform()
        if settings.watch_namespace_selector:
            self.selection = NamespaceSelection(
                self.reads, settings.watch_namespace_selector, cover=self.informers.cover, clock=boot_clock
            )
        self.reconciler = Reconciler(
            api=reconciler_api,
            reader=SnapshotReader(reconciler_api, config),
            leadership=self.elector,
            events=self._events(reconciler_api),
            metrics=self.metrics,
            now=utc_now,
            why_unwatched=self.informers.why_unwatched,
            hold=self.leases.hold,
        )
        self.services = CachedServices(self.cache, self.leases.held)
        self.tuner_events = self._events(tuner_api)
        self.tuner_status = TunerStatus(tuner_api, clock=boot_clock, now=utc_now)
        self._export()

    async def _highest_epoch(self, api: KubeApi, reached: int) -> int:
        namespaces: Sequence[str | None] = self._settings.watched
        if selector := self._settings.watch_namespace_selector:
            # Asked anew: an epoch that is too low is worse than none.
            found, _ = await api.list(NAMESPACES, None, selector=selector, within=REQUEST_SECONDS)
            namespaces = [str(one["metadata"]["name"]) for one in found]
        return await highest_epoch(api, namespaces, reached)

    async def _take_over(self, namespace: str) -> None:
        await self.informers.take_over(namespace)

    def _inform(self) -> Informers:
        shared = Shared(
            cache=self.cache,
            queue=self.queue,
            metrics=self.metrics,
            clock=boot_clock,
            jitter=random.random,
            epoch=lambda: self.elector.epoch,
            foreign=self.leases.foreign,
        )
        gate = asyncio.Semaphore(PARALLEL)

        def made(namespace: str | None) -> Informer:
            watch = Watch(
                namespace,
                configuration=self._configuration,
                instance=self._settings.instance,
                clock=boot_clock,
                listen=self._listen_for_signals,
                network_policies=self._settings.network_policy is not None,
            )
            return Informer(self.reads, namespace, shared=shared, watch=watch, gate=gate, resources=self._resources)

        namespaces = None if self._settings.watch_namespace_selector else self._settings.watched
        return Informers(made, namespaces, why_not_held=self.leases.why_not_held)

    async def _connect(self, manager: str, fence: Fence) -> KubeApi:
        made = connected(self._configuration, manager, fence, instance=self._settings.instance)
        return await self._stack.enter_async_context(made)

    def _events(self, api: KubeApi) -> EventPoster:
        instance = self._settings.instance
        return EventPoster(api, instance=instance, clock=boot_clock, now=utc_now, new_id=lambda: uuid.uuid4().hex[:12])

    def _export(self) -> None:
        watch = self.metrics.watch
        watch("flyball_operator_queue_depth", "Services waiting to be looked at.", lambda: len(self.queue))
        watch("flyball_operator_leader", "1 while this process may write.", self.elector.may_act)
        watch("flyball_operator_epoch", "Epoch of this leadership; 0 while not leading.", lambda: self.elector.epoch)
        watch(
            "flyball_operator_resync_age_seconds",
            "Seconds since the watched namespace that was listed longest ago was listed.",
            self.informers.age,
        )
        self.metrics.watch_each(
            "flyball_operator_namespace_watched",
            "1 while the namespace is watched, 0 while it is missing, not granted or another release's; * is all"
            " namespaces.",
            "namespace",
            self._watched,
        )

    def _watched(self) -> dict[str, float]:
        found = {one.namespace or ALL_NAMESPACES: float(self.informers.why_left(one) is None) for one in self.informers}
        return found | (dict.fromkeys(self.leases.foreign(), 0.0) if ALL_NAMESPACES in found else {})

    def _standing_still(self) -> tuple[str, ...]:
        found = self.informers.standing_still(self._settings.resync_seconds)
        if self.selection is not None:
            found += self.selection.standing_still()
        if self.tuner is not None:
            if (idle := self.tuner.idle()) > 12 * self._settings.tick_seconds + 60:
                found += (f"the tuner's loop has not turned for {idle:.0f} s",)
        elif self._led_from is not None and (idle := boot_clock() - self._led_from) > self.informers.refresh_seconds:
            found += (f"this leader has not begun to tune: it lists the namespaces for {idle:.0f} s",)
        return found

    # Running

    async def run(self) -> None:
        """Run until asked to end. Raises what any part died of."""
        self._listen_for_signals()
        server = TelemetryServer(self.metrics, self.health, self._settings.metrics_port)
        await server.start()
        try:
            if await self._until_stop(self._installed()):
                await self._serve()
        finally:
            await server.stop()

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    async def _until_stop(self, work: Awaitable[None]) -> bool:
        """Await `work`, or the wish to end. True if the work was done."""
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        finished = task.done()
        for one in (task, stop):
            one.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)
        if finished:
            await task
        return finished

    async def _installed(self) -> None:
        """Return once nothing is missing; until then readiness says what is."""
        reported: tuple[str, ...] = ()
        settings = self._settings
        while missing := await startup.missing(
            self.reads,
            settings.watched,
            settings.own_namespace,
            settings.lease_name,
            self._resources,
            selected=self.selection is not None,
        ):
            self.health.missing = partial(tuple, missing)
            if missing != reported:
                log.warning("not ready: %s", "; ".join(missing))
                reported = missing
            await asyncio.sleep(startup.RETRY_SECONDS)
        self.health.missing = lambda: self.informers.missing

    async def _serve(self) -> None:
        every = self._settings.resync_seconds
        async with asyncio.TaskGroup() as group:
            informing: list[asyncio.Task[None]] = [group.create_task(self.informers.run(every), name="informers")]
            if self.selection is not None:
                informing.append(group.create_task(self.selection.run(), name="namespace selection"))
            acting = group.create_task(self._act(), name="acting")
            if await first([acting, *informing]) is not acting or acting.cancelled():
                raise EndedError(ended([acting, *informing]))
            for task in informing:
                task.cancel()

    async def _act(self) -> None:
        """Elect, work, tune; when that ends, however it ends, give the lease back after the last write."""
        try:
            async with asyncio.TaskGroup() as group:
                work = [self.reconciler.work(self.queue) for _ in range(self._settings.workers)]
                parts = [
                    group.create_task(self._end_when_asked(), name="end"),
                    group.create_task(self.elector.run(), name="elector"),
                    group.create_task(self._lead(), name="lead"),
                    group.create_task(self._keep_namespaces(), name="namespace leases"),
                    *(group.create_task(one, name=f"worker-{number}") for number, one in enumerate(work)),
                ]
                await first(parts)
                raise EndedError(ended(parts))
        except* _AskedToEndError:
            pass
        finally:
            if any(api.cut_off for api in self.writers):
                # It may still arrive: nobody else may write before our lease has run out.
                log.warning("a write was cut off on its way: the lease is kept until it runs out")
            else:
                await self.elector.release()

    async def _end_when_asked(self) -> None:
        await self._stop.wait()
        self.elector.stop_acting()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.queue.idle()
                for api in self.writers:
                    await api.settled()
        except TimeoutError:
            log.warning("still writing after %g s", DRAIN_SECONDS)
        raise _AskedToEndError

    async def _lead(self) -> None:
        """What begins with leadership: look at everything, and tune.

        Everything is listed anew: what the last leader wrote must be known before anything is done under a newer epoch,
        and a watch can be silent for a minute.
        """
        await self.elector.leading.wait()
        await self.informers.refresh(self._begin_to_lead)
        if self.signing_keys is None:
            # Without a key no governed service is accepted, so there is nothing to tune.
            self._led_from = None
            await asyncio.Event().wait()
        else:
            await self._tune(self.signing_keys)

    async def _keep_namespaces(self) -> None:
        await self.elector.leading.wait()
        await self.leases.run()

    def _begin_to_lead(self) -> None:
        # Anew with each round: an API server that cannot answer is no standing still.
        self._led_from = boot_clock()

    async def _tune(self, signing_keys: SigningKeys) -> None:
        url, access = str(self._settings.prometheus_url), self._settings.prometheus_access
        reader = PrometheusReader(PrometheusClient(url, timeout=TIMEOUT, access=access))
        ticks = self._settings.tick_seconds
        try:
            async with engine_session() as session:
                dependencies = Dependencies(
                    client=EngineClient(
                        session, signing_keys, may_act=self.elector.may_act, wall=time.time, clock=boot_clock
                    ),
                    leadership=self.elector,
                    writer=self.tuner_status,
                    events=self.tuner_events,
                    metrics=TunerMetrics(self.metrics.registry),
                    wall=time.time,
                    clock=boot_clock,
                    late_seconds=max(LATE_SECONDS, 6 * ticks),
                )
                self.tuner = Tuner(services=self.services, reader=reader, dependencies=dependencies, tick_seconds=ticks)
                await self.tuner.run()
        finally:
            self.tuner = None
            reader.close()


async def run(settings: Settings) -> None:
    """Run an operator until it is asked to end."""
    async with AsyncExitStack() as stack:
        operator = Operator(settings, await load_configuration(), stack)
        await operator.assemble()
        await operator.run()


def main() -> int:
    """Read the settings and run. Returns the exit code."""
    try:
        settings = Settings()
    except ValidationError as error:
        sys.stderr.write("\n".join(problems(error)) + "\n")
        return ExitCode.MISCONFIGURED
    configure_logging(settings.log_level, settings.log_format)
    collect_garbage_seldom()
    return _outcome(lambda: asyncio.run(run(settings)))


def _deepest(error: BaseException) -> BaseException:
    return _deepest(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _outcome(running: Callable[[], None]) -> ExitCode:
    outcome = ExitCode.OK
    try:
        running()
    except* LeadershipLostError as lost:
        log.error("ending: %s", _deepest(lost))
        outcome = ExitCode.LOST
    except* (EnginesError, BadKeyError, ClusterError) as wrong:
        log.error("ending: %s", _deepest(wrong))
        outcome = ExitCode.MISCONFIGURED
    except* Exception:
        log.exception("ending: something died")
        outcome = ExitCode.FAILED
    return outcome
