"""One candidacy for a shard, and the leadership that may come of it: what a process of one shard is made of.

Nothing of it is used again after its end. Whatever of it is still under way then may write nothing: its elector, which
every write asks, never leads again. So a replica that loses one shard goes on with its others, and stands again for the
lost one with a new term.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flyball_operator import __version__
from flyball_operator.api import names
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import being_deleted
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.app.informer import Informers
from flyball_operator.app.settings import Settings
from flyball_operator.engines.client import EngineClient, engine_session
from flyball_operator.engines.downloads import Downloads
from flyball_operator.engines.signing_keys import HeldKeys, SigningKeys
from flyball_operator.keys.rotation import KeyRotation
from flyball_operator.kube.api import Fence, KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.election import Candidate, Elector, EpochFloor, LeadershipLostError
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.namespace_leases import NamespaceLeases
from flyball_operator.kube.shares import Shares
from flyball_operator.kube.status import TunerStatus
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import TIMEOUT, PrometheusReader
from flyball_operator.reconcile.adoptions import Adoptions
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.plan.adoption import OFF
from flyball_operator.reconcile.plan.snapshot import Config
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.reader import SnapshotReader
from flyball_operator.reconcile.reconciler import Reconciler
from flyball_operator.reconcile.steady import SteadyServices
from flyball_operator.supervision import EndedError, ended, first
from flyball_operator.tuning.dependencies import LATE_SECONDS, Dependencies
from flyball_operator.tuning.metrics import TunerMetrics
from flyball_operator.tuning.tuner import Tuner

#: Seconds that writes under way get to end before the lease is given back.
DRAIN_SECONDS: Final = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Process:
    """What all shards of a process share.

    `election`: for writes of the Leases. `refresh`: list all services anew for a new leader of the shard, and have
    its own looked at; each round calls what it is given. `rotation`: where the operator keeps the signing key itself,
    `signing_keys` where it is given. `hold`: whether this release may act in a namespace. `led`: set once this process
    leads in any shard.
    """

    settings: Settings
    connect: Callable[[AsyncExitStack, str, Fence], Awaitable[KubeApi]]
    events: Callable[[KubeApi], EventPoster]
    election: KubeApi
    epoch_floor: EpochFloor
    shares: Shares
    cache: Cache
    leases: NamespaceLeases
    informers: Informers
    refresh: Callable[[Shard, Callable[[], None]], Awaitable[None]]
    metrics: Metrics
    tuner_metrics: Callable[[], TunerMetrics]
    signing_keys: SigningKeys | None
    rotation: KeyRotation | None
    hold: Callable[[str], Awaitable[bool]]
    led: asyncio.Event
    clock: Callable[[], float]
    now: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class _EndError(Exception):
    """Raised inside the acting group, to end it."""


class Term:
    """All parts of it, made once."""

    def __init__(self, shard: Shard, process: Process, stack: AsyncExitStack) -> None:
        self.shard = shard
        self._process = process
        self._stack = stack
        self._stop = asyncio.Event()
        self._lost = asyncio.Event()
        self._why_lost = ""
        self.queue: KeyQueue[Key] = KeyQueue(clock=process.clock, jitter=random.random)
        self.tuner: Tuner | None = None
        #: When a leader that does not tune yet began to list the namespaces.
        self._led_from: float | None = None
        settings = process.settings
        self.adoptions = Adoptions(settings.adopt or OFF, self._looked_after)
        self.elector = Elector(
            process.election,
            Candidate(
                namespace=settings.own_namespace,
                lease=settings.lease_name,
                identity=f"{settings.instance}_{uuid.uuid4().hex[:8]}",
                shard=shard,
            ),
            epoch_floor=process.epoch_floor,
            clock=process.clock,
            now=process.now,
            shares=process.shares,
            sleep=process.sleep,
        )

    async def assemble(self) -> None:
        """Connect a client per writer, so that the audit log tells them apart, and make the rest around them."""
        process = self._process
        reconciler_api = await process.connect(self._stack, names.MANAGER_RECONCILER, self.elector)
        tuner_api = await process.connect(self._stack, names.MANAGER_TUNER, self.elector)
        self._writers = (reconciler_api, tuner_api)
        config = Config(
            plugin_image=process.settings.plugin_image,
            public_key=process.signing_keys.public_pem if process.signing_keys is not None else "",
            publishes_keys=process.rotation is not None,
            resync_seconds=process.settings.resync_seconds,
            ingress_peers=process.settings.network_policy,
            version=__version__,
        )
        downloads = Downloads(await self._stack.enter_async_context(engine_session()), process.clock)
        self._reader = SnapshotReader(
            reconciler_api, config, self.shard, downloads.progress, process.cache.note_members
        )
        self._reconciler = Reconciler(
            api=reconciler_api,
            reader=self._reader,
            leadership=self.elector,
            events=process.events(reconciler_api),
            metrics=process.metrics,
            now=process.now,
            steady=SteadyServices(process.cache),
            adoptions=self.adoptions,
            why_unwatched=process.informers.why_unwatched,
            hold=process.hold,
        )
        self._services = CachedServices(process.cache, process.leases.held, self.shard)
        self._tuner_events = process.events(tuner_api)
        self._tuner_status = TunerStatus(tuner_api, clock=process.clock, now=process.now)

    def _looked_after(self) -> list[Key] | None:
        """All services of the shard where this release acts; None while not every namespace is listed."""
        process = self._process
        if self.tuner is None or not process.informers.listed:
            return None
        return [
            Key(meta.namespace, meta.name, meta.uid)
            for meta in (desire.meta for desire in process.cache.services)
            if self.shard.has(meta.uid)
            and process.leases.held(meta.namespace)
            and process.informers.why_unwatched(meta.namespace) is None
        ]

    def standing_still(self) -> tuple[str, ...]:
        """What shows no sign of life."""
        process = self._process
        where = f"{self.shard.title}: " if self.shard.count > 1 else ""
        if self.tuner is not None:
            idle, most = self.tuner.idle(), 12 * process.settings.tick_seconds + 60
            said = f"{where}the tuner's loop has not turned for {idle:.0f} s"
        elif self._led_from is not None:
            idle, most = process.clock() - self._led_from, process.informers.refresh_seconds
            said = f"{where}this leader has not begun to tune: it lists the namespaces for {idle:.0f} s"
        else:
            return ()
        return (said,) if idle > most else ()

    def stop(self) -> None:
        """Have it end."""
        self._stop.set()

    def lose(self, why: str) -> None:
        """Somebody led after us: refuse every write from now on, and end by `LeadershipLostError`."""
        self.elector.stop_acting()
        self._why_lost = why
        self._lost.set()

    async def run(self) -> None:
        """Elect, work, tune; when that ends, however it ends, give the lease back after the last write.

        Returns when asked to stop, and when another replica asks for the shard. Raises what any part died of.
        """
        try:
            async with asyncio.TaskGroup() as group:
                work = [self._reconciler.work(self.queue) for _ in range(self._process.settings.workers)]
                parts = [
                    group.create_task(self._end_when(self._stop), name="end"),
                    group.create_task(self._end_when(self.elector.asked_for), name="give"),
                    group.create_task(self._end_when(self._lost), name="lost"),
                    group.create_task(self.elector.run(), name="elector"),
                    group.create_task(self._lead(), name="lead"),
                    *(group.create_task(one, name=f"worker-{number}") for number, one in enumerate(work)),
                ]
                await first(parts)
                raise EndedError(ended(parts))
        except* _EndError:
            pass
        finally:
            if any(api.cut_off for api in self._writers):
                # It may still arrive: nobody else may write before our lease has run out.
                log.warning(
                    "a write was cut off on its way: the lease is kept until it runs out",
                    extra=logged(LogEvent.WRITE_CUT_OFF),
                )
            else:
                await self.elector.release()

    async def _end_when(self, asked: asyncio.Event) -> None:
        await asked.wait()
        self.elector.stop_acting()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.queue.idle()
                for api in self._writers:
                    await api.settled()
        except TimeoutError:
            log.warning("still writing after %g s", DRAIN_SECONDS, extra=logged(LogEvent.SHUTDOWN_SLOW))
        raise LeadershipLostError(self._why_lost) if asked is self._lost else _EndError

    async def _lead(self) -> None:
        """What begins with leadership: look at everything, and tune.

        The services are listed anew: the statuses that the last leader wrote must be known before anything is done
        under a newer epoch, and a watch can be silent for a minute. All else is known as well as to any leader.
        """
        await self.elector.leading.wait()
        self._process.led.set()
        await self._process.refresh(self.shard, self._begin_to_lead)
        if (rotation := self._process.rotation) is not None:
            await rotation.looked()
            await self._tune(rotation.signers)
        elif self._process.signing_keys is not None:
            await self._tune(self._process.signing_keys)
        else:
            # Without a key no governed service is accepted, so there is nothing to tune.
            self._led_from = None
            await asyncio.Event().wait()

    def _begin_to_lead(self) -> None:
        # Anew with each round: an API server that cannot answer is no standing still.
        self._led_from = self._process.clock()

    def _is_leaving(self, pod_uid: str) -> bool:
        pod = self._process.cache.pods.get(pod_uid)
        return pod is not None and pod.leaving

    async def _is_deleted(self, service: InferenceService) -> bool:
        """Asked of the API server: a namespace that is watched no more looks the same."""
        meta = service.metadata
        try:
            found = await self._reader.service(Key(meta.namespace, meta.name))
        except ClusterError:
            return False
        return found is None or being_deleted(found) or found["metadata"]["uid"] != meta.uid

    async def _tune(self, signing_keys: HeldKeys) -> None:
        process, settings = self._process, self._process.settings
        client = PrometheusClient(str(settings.prometheus_url), timeout=TIMEOUT, access=settings.prometheus_access)
        reader = PrometheusReader(client, shard=self.shard)
        ticks = settings.tick_seconds
        try:
            async with engine_session() as session:
                dependencies = Dependencies(
                    client=EngineClient(
                        session, signing_keys, may_act=self.elector.may_act, wall=time.time, clock=process.clock
                    ),
                    leadership=self.elector,
                    writer=self._tuner_status,
                    events=self._tuner_events,
                    metrics=process.tuner_metrics(),
                    wall=time.time,
                    clock=process.clock,
                    late_seconds=max(LATE_SECONDS, 6 * ticks),
                    is_leaving=self._is_leaving,
                    is_deleted=self._is_deleted,
                )
                self.tuner = Tuner(
                    services=self._services, reader=reader, dependencies=dependencies, tick_seconds=ticks
                )
                try:
                    await self.tuner.run()
                finally:
                    await self.tuner.close()
        finally:
            self.tuner = None
            reader.close()
