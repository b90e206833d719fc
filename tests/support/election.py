"""Candidates for one Lease, each with a way to the API server of its own that can fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, TypeVar, cast

from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.election import Candidate, Elector, LeadershipLostError
from flyball_operator.kube.errors import (
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from flyball_operator.kube.resources import Resource
from support.memory_api import copied

LEASE = "lease"
Object = dict[str, Any]
T = TypeVar("T")


class Way(Enum):
    """What becomes of calls."""

    OPEN = "they arrive, and so do the answers"
    REFUSED = "they fail at once"
    HANGING = "they never arrive, and time out"
    ANSWERS_LOST = "they arrive, but their answers do not: they time out"
    SLOW = "they arrive after most of a second, and so do the answers"
    LATE = "they time out, and arrive seconds later"


class LeaseServer:
    """The API server's part: versions, conflicts, and what any service's status says of epochs."""

    def __init__(self) -> None:
        self.leases: dict[str, Object] = {}
        self.version = 1
        self.highest_epoch = 0
        self.calls: Counter[str] = Counter()

    @property
    def lease(self) -> Object | None:
        """That of the only shard, or the first."""
        return self.leases.get(LEASE)

    def read(self, name: str = LEASE) -> Object:
        if name not in self.leases:
            raise NotFoundError(f"no lease {name}")
        found: Object = copied(self.leases[name])
        return found

    def create(self, body: Object) -> Object:
        if (name := body["metadata"]["name"]) in self.leases:
            raise AlreadyExistsError(name)
        return self._store(body)

    def replace(self, body: Object) -> Object:
        name = body["metadata"]["name"]
        if body["metadata"].get("resourceVersion") != self.read(name)["metadata"]["resourceVersion"]:
            raise ConflictError(name)
        return self._store(body)

    def delete(self, name: str = LEASE) -> None:
        self.leases.pop(name, None)

    def _store(self, body: Object) -> Object:
        self.version += 1
        name = body["metadata"]["name"]
        self.leases[name] = copied(body)
        self.leases[name]["metadata"]["resourceVersion"] = str(self.version)
        return self.read(name)


class LeaseClient:
    """A way to the server, as `KubeApi`."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.way = Way.OPEN

    async def get(self, resource: Resource, namespace: str, name: str, *, within: float) -> Object:
        return await self._call("get", lambda: self.server.read(name), within)

    async def create(self, resource: Resource, namespace: str, body: Object, *, within: float) -> Object:
        return await self._call("create", lambda: self.server.create(body), within)

    async def replace(self, resource: Resource, namespace: str, body: Object, *, within: float) -> Object:
        return await self._call("replace", lambda: self.server.replace(body), within)

    async def epochs(self, reached: int) -> int:
        return await self._call("list", lambda: self.server.highest_epoch, 2.0)

    async def _call(self, verb: str, act: Callable[[], T], within: float) -> T:
        self.server.calls[verb] += 1
        if self.way is Way.LATE:
            asyncio.get_running_loop().call_later(2.5 * within, _landed, act)
            await asyncio.sleep(within)
            raise UnavailableError("timed out")
        if self.way is Way.REFUSED:
            raise UnavailableError("connection refused")
        if self.way is Way.HANGING:
            await asyncio.sleep(within)
            raise UnavailableError("timed out")
        await asyncio.sleep(0.8 if self.way is Way.SLOW else 0.005)
        answer = act()
        if self.way is Way.ANSWERS_LOST:
            await asyncio.sleep(within)
            raise UnavailableError("timed out")
        return answer


def _landed(act: Callable[[], object]) -> None:
    with suppress(ClusterError):
        act()


class RunningCandidate:
    """One candidate, running."""

    def __init__(self, name: str, server: LeaseServer) -> None:
        self.name = name
        self.client = LeaseClient(server)
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.ended_by: BaseException | None = None
        self.elector = Elector(
            cast("KubeApi", self.client),
            Candidate("ns", LEASE, name),
            epoch_floor=self.client.epochs,
            clock=asyncio.get_running_loop().time,
            now=lambda: self.wall,
        )
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.elector.run()
        except LeadershipLostError as error:
            self.ended_by = error

    @property
    def acts(self) -> bool:
        return self.elector.may_act()

    async def die(self) -> None:
        """As by kill -9: nothing is given back."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.elector.stop_acting()

    async def end(self) -> None:
        """As by SIGTERM."""
        self.elector.stop_acting()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.elector.release()

    def step_clock(self, by: timedelta) -> None:
        """Set the clock on the wall."""
        self.wall += by


class Election:
    """Several candidates, watched twenty times a second: two that may act at one moment are an error."""

    def __init__(self, *names: str, recorded: bool = True) -> None:
        """`recorded`: whether a status tells of each leader; engines may know it all the same."""
        self.server = LeaseServer()
        self._recorded = recorded
        self.candidates = {name: RunningCandidate(name, self.server) for name in names}
        self.reigns: list[tuple[str, int]] = []
        self._watch = asyncio.create_task(self._look())

    async def __aenter__(self) -> Election:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.check()
        self._watch.cancel()
        for candidate in self.candidates.values():
            await candidate.die()

    async def _look(self) -> None:
        while True:
            acting = [candidate for candidate in self.candidates.values() if candidate.acts]
            assert len(acting) <= 1, f"two may act: {[candidate.name for candidate in acting]}"
            for candidate in acting:
                reign = (candidate.name, candidate.elector.epoch)
                if self.reigns[-1:] != [reign]:
                    self.reigns.append(reign)
                    if self._recorded:
                        self.server.highest_epoch = max(self.server.highest_epoch, reign[1])
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Raise what the watch found, after a look at what is now."""
        await asyncio.sleep(0.1)
        if self._watch.done():
            await self._watch
        epochs = [epoch for _, epoch in self.reigns]
        assert epochs == sorted(set(epochs)), f"epochs must rise: {self.reigns}"

    async def until_leader(self, *, other_than: str = "", within: float = 60) -> RunningCandidate:
        """Wait for a leader."""
        async with asyncio.timeout(within):
            while True:
                for candidate in self.candidates.values():
                    if candidate.acts and candidate.name != other_than:
                        return candidate
                await asyncio.sleep(0.05)
