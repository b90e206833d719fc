"""Composes the operator and runs it: one task group with the informers and all shards in it, the tuners among them.

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
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache, partial
from typing import NoReturn

from kubernetes.aio import client
from pydantic import ValidationError

from flyball_engine.signing import BadKeyError, make_key
from flyball_operator.api import names
from flyball_operator.api.desire import Desire
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.v1alpha1 import ObjectMeta
from flyball_operator.app import startup
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.app.console import console
from flyball_operator.app.exported import export, export_services, led_services, tuner_metrics
from flyball_operator.app.informer import PARALLEL, Informer, Informers
from flyball_operator.app.kopf_glue import Watch
from flyball_operator.app.namespace_selection import NamespaceSelection
from flyball_operator.app.settings import Settings, problems
from flyball_operator.app.shards import Refresher, Shards, SharedFloor
from flyball_operator.app.telemetry import Health, TelemetryServer, configure_logging
from flyball_operator.app.term import Process
from flyball_operator.app.tracing import traced
from flyball_operator.engines.client import EngineClient, engine_session
from flyball_operator.engines.errors import EnginesError
from flyball_operator.engines.signing_keys import SigningKeys
from flyball_operator.keys.public_keys import PublicKeys
from flyball_operator.keys.rotation import KeyRotation, KeySettings
from flyball_operator.kube.api import Fence, KubeApi, NeverLeading, Unfenced, connected
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.configuration import load_configuration
from flyball_operator.kube.election import REQUEST_SECONDS
from flyball_operator.kube.epochs import highest_epoch
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.namespace_leases import NamespaceLeases
from flyball_operator.kube.resources import NAMESPACES, labelled, watched
from flyball_operator.kube.shares import Shares
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.resync import Shared
from flyball_operator.supervision import EndedError, ended, first
from flyball_operator.tuning.tuner import collect_garbage_seldom

log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Exit codes."""

    OK = 0
    """Asked to end, and ended."""
    FAILED = 1
    """Something died; the log says what."""
    MISCONFIGURED = 2
    """A setting is wrong; nothing was touched."""


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
        self.shards = Shards(settings.shards)
        self.selection: NamespaceSelection | None = None
        self._resources = watched(network_policies=settings.network_policy is not None)
        self.signing_keys = SigningKeys(settings.signing_key_file) if settings.signing_key_file else None
        #: Where the operator keeps the signing key itself.
        self.rotation: KeyRotation | None = None

    async def assemble(self) -> None:
        """Connect, and make what all shards share."""
        settings = self._settings
        election = await self._connect(self._stack, names.MANAGER_ELECTION, Unfenced())
        self.reads = await self._connect(self._stack, names.MANAGER_READER, NeverLeading())
        self.leases = NamespaceLeases(
            await self._connect(self._stack, names.MANAGER_LEASES, self.shards),
            f"{settings.own_namespace}/{settings.lease_name}",
            used=self._used,
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
        if settings.signing_key_secret:
            self.rotation = await self._keep_key()
        shares = Shares(settings.instance, clock=boot_clock, shards=settings.shards, replicas=settings.replicas)
        self.process = Process(
            settings=settings,
            connect=self._connect,
            events=self._events,
            election=election,
            epoch_floor=SharedFloor(partial(self._highest_epoch, election), boot_clock).read,
            shares=shares,
            cache=self.cache,
            leases=self.leases,
            informers=self.informers,
            refresh=Refresher(self.informers).refresh,
            metrics=self.metrics,
            tuner_metrics=lru_cache(lambda: tuner_metrics(self.metrics, self._led)),
            signing_keys=self.signing_keys,
            led=asyncio.Event(),
            clock=boot_clock,
            now=utc_now,
            rotation=self.rotation,
            hold=self._hold,
        )
        export(self.metrics, shards=self.shards, informers=self.informers, leases=self.leases)
        export_services(self.metrics, self._led)

    async def _keep_key(self) -> KeyRotation:
        settings, first_shard = self._settings, self.shards.all[0]
        api = await self._connect(self._stack, names.MANAGER_KEYS, self.shards)
        rotation = KeyRotation(
            api,
            PublicKeys(
                api,
                services=lambda: [meta for meta in self._ours() if self.leases.held(meta.namespace)],
                events=self._events(api),
                clock=boot_clock,
            ),
            where=KeySettings(settings.own_namespace, settings.signing_key_secret, settings.rotation_period),
            services=CachedServices(self.cache, lambda namespace: namespace not in self.leases.foreign()),
            rotates=lambda: first_shard in self.shards.held(),
            now=utc_now,
            clock=boot_clock,
            make=make_key,
        )
        rotation.export(self.metrics)
        return rotation

    def _events(self, api: KubeApi) -> EventPoster:
        instance = self._settings.instance
        return EventPoster(api, instance=instance, clock=boot_clock, now=utc_now, new_id=lambda: uuid.uuid4().hex[:12])

    async def _hold(self, namespace: str) -> bool:
        """Whether this release may act in a namespace. Public keys are there before pods, which get them at start."""
        held = await self.leases.hold(namespace)
        if held and self.rotation is not None:
            await self.rotation.enter(namespace)
        return held

    def _ours(self) -> Iterator[ObjectMeta]:
        """Services in the shards that we hold."""
        held = self.shards.held()
        return (one.meta for one in self.cache.services if any(shard.has(one.meta.uid) for shard in held))

    def _led(self) -> Collection[Desire]:
        """Services that this replica leads."""
        return led_services(self.cache, self.shards, self.leases)

    def _used(self) -> Collection[str]:
        """Namespaces with services of ours."""
        return {meta.namespace for meta in self._ours()}

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
            queue=self.shards,
            metrics=self.metrics,
            clock=boot_clock,
            jitter=random.random,
            epochs=self.shards.epochs,
            led_after=self.shards.led_after,
            foreign=self.leases.foreign,
            labelled=labelled(network_policies=self._settings.network_policy is not None),
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

    async def _connect(self, stack: AsyncExitStack, manager: str, fence: Fence) -> KubeApi:
        """A client of its own for a writer, so that the audit log tells them apart."""
        made = connected(self._configuration, manager, fence, instance=self._settings.instance)
        return await stack.enter_async_context(made)

    def _standing_still(self) -> tuple[str, ...]:
        found = self.informers.standing_still(self._settings.resync_seconds)
        if self.selection is not None:
            found += self.selection.standing_still()
        found += self.shards.standing_still()
        return found

    # Running

    async def run(self) -> None:
        """Run until asked to end. Raises what any part died of."""
        self._listen_for_signals()
        server = TelemetryServer(self.metrics, self.health, self._settings.metrics_port)
        await server.start()
        try:
            async with console(self._settings, self.cache, self.shards):
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
            [shard.lease(settings.lease_name) for shard in self.shards.all],
            self._resources,
            selected=self.selection is not None,
            secret=settings.signing_key_secret,
        ):
            self.health.missing = partial(tuple, missing)
            if missing != reported:
                log.warning("not ready: %s", "; ".join(missing), extra=logged(LogEvent.NOT_READY))
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
        """Stand for all shards, and keep the namespaces of those that are held."""
        async with asyncio.TaskGroup() as group:
            acting = group.create_task(self.shards.run(self.process), name="shards")
            beside: list[asyncio.Task[None]] = [
                group.create_task(self._keep_namespaces(), name="namespace leases"),
                group.create_task(self._rotate(), name="signing key"),
            ]
            asked = group.create_task(self._stop.wait(), name="end")
            over = await first([acting, *beside, asked])
            if over is asked:
                self.shards.stop()
                over = await first([acting, *beside])
            if over is not acting or acting.cancelled():
                raise EndedError(ended([acting, *beside]))
            for task in (*beside, asked):
                task.cancel()

    async def _keep_namespaces(self) -> NoReturn:
        await self.process.led.wait()
        await self.leases.run()

    async def _rotate(self) -> NoReturn:
        await self.process.led.wait()
        while (rotation := self.rotation) is None:
            await asyncio.Event().wait()
        async with engine_session() as session:
            may_act = self.shards.may_act
            engines = EngineClient(session, rotation.signers, may_act=may_act, wall=time.time, clock=boot_clock)
            await rotation.run(engines)


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
    endpoint = None if settings.tracing_endpoint is None else str(settings.tracing_endpoint)
    with traced(endpoint, settings.instance):
        return _outcome(lambda: asyncio.run(run(settings)))


def _deepest(error: BaseException) -> BaseException:
    return _deepest(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _outcome(running: Callable[[], None]) -> ExitCode:
    outcome = ExitCode.OK
    try:
        running()
    except* (EnginesError, BadKeyError, ClusterError) as wrong:
        log.error("ending: %s", _deepest(wrong), extra=logged(LogEvent.OPERATOR_ENDS))
        outcome = ExitCode.MISCONFIGURED
    except* Exception:
        log.exception("ending: something died", extra=logged(LogEvent.OPERATOR_ENDS))
        outcome = ExitCode.FAILED
    return outcome
