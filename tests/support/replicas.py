"""Replicas that share ten thousand services by shards: the operator's own parts around Leases in memory.

What is left out is what they do for a service. Of each look at one is kept who looked, since that is what may never be
done by two.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

from flyball_lab.harness.virtual_time import now
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard
from flyball_operator.app.informer import Informers
from flyball_operator.app.settings import Settings
from flyball_operator.app.shards import Refresher, Shards, SharedFloor
from flyball_operator.app.term import Process
from flyball_operator.kube.api import Fence, KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.election import Elector
from flyball_operator.kube.errors import NotFoundError, NotLeadingError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.namespace_leases import NamespaceLeases
from flyball_operator.kube.shares import Shares
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.tuning.metrics import TunerMetrics
from support.election import LEASE, LeaseClient, LeaseServer, T, Way

#: UIDs as the API server makes them.
SERVICES = tuple(f"{random.Random(number).getrandbits(128):032x}" for number in range(10_000))
#: Services by what their UIDs begin with: all that their shard depends on.
BEGINNINGS = Counter(uid[:2] for uid in SERVICES)


@lru_cache
def beginnings(shard: Shard) -> frozenset[str]:
    """What the UIDs of a shard's services begin with."""
    return frozenset(filter(shard.has, BEGINNINGS))


class _Client(LeaseClient):
    """A way to the server of a process that may be stopped for a while."""

    def __init__(self, server: LeaseServer, running: asyncio.Event) -> None:
        super().__init__(server)
        self._running = running

    async def _call(self, verb: str, act: Callable[[], T], within: float) -> T:
        await self._running.wait()
        try:
            return await super()._call(verb, act, within)
        finally:
            await self._running.wait()


class Replica:
    """One process."""

    def __init__(self, name: str, world: Replicas, count: int, replicas: int) -> None:
        self.name = name
        self.world = world
        self.running = asyncio.Event()
        self.running.set()
        self.client = _Client(world.server, self.running)
        self.looked: Counter[str] = Counter()
        self.ended_by: BaseException | None = None
        self.shards = Shards(count)
        settings = Settings(
            namespaces="team",
            pod_namespace="home",
            pod_name=name,
            lease_name=LEASE,
            shards=count,
            replicas=replicas,
            workers=4,
        )
        metrics, clock = Metrics(), asyncio.get_running_loop().time
        informers = cast(
            "Informers",
            SimpleNamespace(refresh=self._refresh, why_unwatched=lambda _: None, refresh_seconds=60.0),
        )
        self.process = Process(
            settings=settings,
            connect=self._connect,
            events=lambda api: EventPoster(
                api,
                instance=name,
                clock=clock,
                now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
                new_id=lambda: "1",
            ),
            election=cast("KubeApi", self.client),
            epoch_floor=SharedFloor(self.client.epochs, clock).read,
            shares=Shares(name, clock=clock, shards=count, replicas=replicas),
            cache=Cache(),
            leases=cast("NamespaceLeases", SimpleNamespace(hold=self._hold, held=lambda _: True)),
            informers=informers,
            refresh=Refresher(informers).refresh,
            metrics=metrics,
            tuner_metrics=lambda: TunerMetrics(metrics.registry),
            signing_keys=None,
            rotation=None,
            hold=self._hold,
            led=asyncio.Event(),
            clock=clock,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            sleep=self._sleep,
        )
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.shards.run(self.process)
        except Exception as error:  # noqa: BLE001 - tests look at it
            self.ended_by = error

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.running.wait()

    async def _hold(self, _: str) -> bool:
        return True

    async def _connect(self, stack: AsyncExitStack, manager: str, fence: Fence) -> KubeApi:
        async def get(*_: Any, **__: Any) -> Any:
            await self.running.wait()
            if fence.seconds_left() <= 0:
                raise NotLeadingError(self.name)
            # What the reader is asked for next: the test knows by the key.
            raise NotFoundError("nothing is done about it")

        async def settled() -> None:
            pass

        return cast("KubeApi", SimpleNamespace(get=get, settled=settled, cut_off=False))

    async def _refresh(self, begins: Callable[[], None], concerns: Callable[[str], bool]) -> None:
        begins()
        await asyncio.sleep(1)
        for uid in SERVICES:
            if concerns(uid):
                self.looked[uid] += 1
        # To work on all of them would show no more.
        for uid in filter(concerns, SERVICES[::100]):
            self.shards.add(Key("team", uid, uid))

    @property
    def held(self) -> set[Shard]:
        """Shards that it may write for."""
        return set(self.shards.held())

    @property
    def services(self) -> int:
        """Services that it may write for."""
        return sum(BEGINNINGS[beginning] for shard in self.held for beginning in beginnings(shard))

    async def die(self) -> None:
        """As by kill -9: nothing is given back."""
        self.client.way = Way.REFUSED
        self.running.set()
        for term in self.shards._terms.values():
            term.elector.stop_acting()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.world.replicas.pop(self.name, None)

    async def end(self) -> None:
        """As by SIGTERM."""
        self.shards.stop()
        await self._task
        self.world.replicas.pop(self.name, None)


class Replicas:
    """Several of them, watched four times a second: a service that two may write for at one moment is an error."""

    def __init__(self, *names: str, shards: int = 12) -> None:
        self.server = LeaseServer()
        self.replicas: dict[str, Replica] = {}
        self._shards, self._wanted = shards, len(names)
        self._epochs: dict[str, tuple[int, Elector]] = {}
        self.statuses_written = True
        #: How often somebody began to act for the services of a beginning.
        self.moves: Counter[str] = Counter()
        for name in names:
            self.start(name)
        self._watch = asyncio.create_task(self._look())

    def __getitem__(self, name: str) -> Replica:
        return self.replicas[name]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas.values())

    def start(self, name: str, *, shards: int = 0, replicas: int = 0) -> Replica:
        """One more process."""
        made = self.replicas[name] = Replica(name, self, shards or self._shards, replicas or self._wanted)
        return made

    async def __aenter__(self) -> Replicas:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.check()
        self._watch.cancel()
        for replica in list(self):
            await replica.die()

    async def _look(self) -> None:
        while True:
            terms = [
                (shard, term.elector)
                for replica in self
                for shard, term in replica.shards._terms.items()
                if term.elector.may_act()
            ]
            owned: set[str] = set()
            for shard, elector in terms:
                for beginning in beginnings(shard):
                    assert beginning not in owned, f"{now():.2f}: two may act for {beginning}…"
                    owned.add(beginning)
                    epoch, before = elector.epoch, self._epochs.get(beginning)
                    # Of every third leader no status tells: it changed nothing.
                    if self.statuses_written and epoch % 3:
                        self.server.highest_epoch = max(self.server.highest_epoch, epoch)
                    if before is None or before[1] is not elector:
                        assert before is None or epoch > before[0], f"{now():.2f}: epoch {epoch} after {before[0]}"
                        self.moves[beginning] += 1
                    self._epochs[beginning] = (epoch, elector)
            await asyncio.sleep(0.25)

    def check(self) -> None:
        """Raise what the watch found."""
        if self._watch.done():
            self._watch.result()
        for replica in self:
            assert replica.ended_by is None, f"{replica.name}: {replica.ended_by!r}"

    async def until(self, holds: Callable[[], bool], *, within: float = 120) -> float:
        """Wait until something holds; seconds that it took."""
        began = now()
        async with asyncio.timeout(within):
            while not holds():
                self.check()
                await asyncio.sleep(0.1)
        took = now() - began
        # So that the watch has seen it, too.
        await asyncio.sleep(0.5)
        return took

    def all_held(self) -> bool:
        """Whether somebody may write for every service."""
        return sum(replica.services for replica in self) == len(SERVICES)

    def spread(self) -> list[int]:
        """How many shards each holds."""
        return sorted(len(replica.held) for replica in self)
