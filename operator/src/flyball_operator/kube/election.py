"""Which replica acts: our own election over a Lease, with client-go's semantics.

The client library's own let two leaders act when the API server hung. The rules here:

- Time is monotonic and counts suspension; clocks of other machines, and ours on the wall, decide nothing.
- A leader may act for 10 s from the moment it *sent* its last successful renewal; another takes the lease 15 s after it
  *saw* the record change last. Any error is a failed renewal: not seeing is not holding.
- The epoch is the Lease's transitions. It never falls, also when the Lease was deleted. Whoever takes or makes the
  Lease goes above every epoch in any service's status, since engines and the API server refuse older ones. Who makes it
  goes far above, since engines may know leaders that changed nothing and are in no status.
- A leader may raise its epoch, by the Lease, to order above an engine that holds what nobody can have written. Once an
  hour at most, and not far: what engines say must not use the numbers up.
- The lease is given back only after this process has stopped writing.
- Where the services are divided into shards, each has a Lease and an election. `kube.shares` says who takes which.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.epochs import UNRECORDED_LEADERS
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object, annotation
from flyball_operator.api.shards import Shard
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ClusterError, NotFoundError
from flyball_operator.kube.resources import LEASES
from flyball_operator.kube.shares import ShardGeneration, Shares

#: Seconds after which others take a lease whose record does not change.
LEASE_SECONDS: Final = 15
#: Seconds from a successful renewal's sending for which its sender may act.
RENEW_DEADLINE: Final = 10.0
RETRY_SECONDS: Final = 2.0
REQUEST_SECONDS: Final = 2.0
#: Seconds between two epochs that one leader takes.
RAISE_SECONDS: Final = 3600.0

_SAID: Final = (names.ANNOTATION_SHARDS, names.ANNOTATION_HIGHEST_EPOCH, names.ANNOTATION_PREFERRED_HOLDER)

log = logging.getLogger(__name__)

Clock = Callable[[], float]
#: The highest epoch that any status tells of, given what the Lease has counted to.
EpochFloor = Callable[[int], Awaitable[int]]


class LeadershipLostError(Exception):
    """The lease could not be renewed in time, or is another's. The leadership ends: what it knows may be old."""


@dataclass(frozen=True)
class Candidate:
    """Who stands for election, and for which Lease. `identity` must never be used by another candidate.

    `lease`: that of the first shard, whichever the `shard` is.
    """

    namespace: str
    lease: str
    identity: str
    shard: Shard = field(default_factory=Shard)


class Elector:
    """Wins, keeps and gives back the lease; is the fence of every write meanwhile."""

    def __init__(
        self,
        api: KubeApi,
        candidate: Candidate,
        *,
        epoch_floor: EpochFloor,
        clock: Clock,
        now: Callable[[], datetime],
        shares: Shares | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`shares`: what this replica knows of all shards; not needed where there is one."""
        self._api = api
        self._candidate = candidate
        self._name = candidate.shard.lease(candidate.lease)
        self._number = candidate.shard.number
        self._shares = shares or Shares(candidate.identity, clock=clock)
        self._epoch_floor = epoch_floor
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._lease: Object | None = None
        self._seen: tuple[str, float] | None = None
        self._renewed = False
        self._free_from: float | None = None
        self._generation = ShardGeneration()
        self._outwait = False
        self._acts_from = 0.0
        self._held_until = 0.0
        self._epoch = 0
        self._above: int | None = None
        self._raise_from = 0.0
        self._stopped = False
        self._giving = False
        self.leading = asyncio.Event()
        #: Another replica is to have the shard: stop, and give the lease back.
        self.asked_for = asyncio.Event()

    # What others ask

    def may_act(self) -> bool:
        """True while the lease is surely ours."""
        return self.seconds_left() > 0

    def seconds_left(self) -> float:
        """Seconds for which it surely is; no write may take longer."""
        now = self._clock()
        return 0.0 if self._stopped or now < self._acts_from else self._sure_until - now

    @property
    def _sure_until(self) -> float:
        return min(self._held_until, self._shares.in_force_until(self._number, self._generation))

    @property
    def epoch(self) -> int:
        """Epoch of this leadership; 0 while not leading."""
        return self._epoch if self.may_act() else 0

    def raise_epoch(self, above: int) -> None:
        """Take an epoch above this one with the next renewal; not within an hour of the last such one, and not far."""
        if not self._epoch <= above <= self._epoch + UNRECORDED_LEADERS:
            return
        if self._above is None:
            now = self._clock()
            if now < self._raise_from:
                return
            self._raise_from = now + RAISE_SECONDS
        self._above = max(above, self._above or 0)

    def stop_acting(self) -> None:
        """Refuse every write from now on; the lease is still held, so nobody else writes either."""
        self._stopped = True

    # The election

    async def run(self) -> None:
        """Stand for election until elected, then renew. Raises `LeadershipLostError` when that fails for too long."""
        while not await self._attempt():
            await self._sleep(RETRY_SECONDS)
        where = self._candidate
        more = {"shard": where.shard.number} if where.shard.count > 1 else {}
        log.info("leading", extra=logged(LogEvent.LEADING, epoch=self._epoch, identity=where.identity, **more))
        if self._acts_from > self._clock():
            await self._wait_for_others()
        self.leading.set()
        while True:
            await self._sleep(RETRY_SECONDS)
            await self._attempt()
            self._check()

    async def _wait_for_others(self) -> None:
        """Wait until nobody else may act. Renew meanwhile."""
        while (left := self._acts_from - self._clock()) > 0:
            await self._sleep(min(RETRY_SECONDS, left))
            await self._attempt()
            self._check()

    def _check(self) -> None:
        """Raise `LeadershipLostError` where the lease is no more surely ours."""
        if self._clock() >= self._held_until:
            raise self._lost_error(f"the lease {self._name} was not renewed in {RENEW_DEADLINE:g} s")
        if self._clock() >= self._sure_until:
            raise self._lost_error(f"the lease {self._candidate.lease} says no more that our shards are in force")

    def _lost_error(self, why: str) -> LeadershipLostError:
        self._stopped = True
        self._shares.lost(self._number)
        return LeadershipLostError(why)

    async def release(self) -> None:
        """Give the lease back, so that another need not wait. Only after the last write; best effort."""
        self._stopped = True
        self._shares.lost(self._number)
        # Whoever comes next would not wait for those whom we still wait for.
        if self._clock() >= self._held_until or self._outwait or self._clock() < self._acts_from:
            return
        self._held_until = 0.0
        where = self._candidate
        try:
            # Read anew: a renewal may have been cut off on its way.
            lease = await self._get(self._name)
            if lease["spec"].get("holderIdentity") == where.identity:
                said = lease["metadata"].get("annotations") or {}
                body = self._record(lease, holder="", transitions=lease["spec"]["leaseTransitions"], said=said)
                await self._api.replace(LEASES, where.namespace, body, within=REQUEST_SECONDS)
        except ClusterError as error:
            log.warning("the lease was not given back: %s", error, extra=logged(LogEvent.LEASE_NOT_RETURNED))

    async def _attempt(self) -> bool:
        """One try to take or renew. True if the lease is ours after it."""
        ours = False
        try:
            async with asyncio.timeout(4 * REQUEST_SECONDS):
                ours = await self._take_or_renew()
        except (ClusterError, TimeoutError) as error:
            # A write that failed may have landed: look before the next one.
            self._lease = None
            log.warning(
                "the lease could not be taken or renewed: %s: %s",
                type(error).__name__,
                error,
                extra=logged(LogEvent.LEASE_ATTEMPT_FAILED),
            )
        if not ours and self._held_until == 0:
            self._shares.lost(self._number)
        return ours

    async def _take_or_renew(self) -> bool:
        if self._held_until > 0 and self._shares.unsure(self._number, self._generation):
            await self._look_at_first()
        lease = self._lease
        if lease is None:
            asked_at = self._clock()
            try:
                lease = await self._get(self._name)
            except NotFoundError:
                return await self._make()
            self._shares.saw(self._number, lease, asked_at)
        holder = lease["spec"].get("holderIdentity") or ""
        if holder == self._candidate.identity:
            return await self._renew(lease)
        if self._held_until > 0:
            self._held_until = 0.0
            raise self._lost_error(f"the lease {self._name} is {holder}'s")
        if holder and not self._expired(lease):
            # What we may have tried to write came too late, and is refused.
            self._free_from, self._outwait = None, False
            await self._ask(lease)
            return False
        if not self._may_take(lease):
            return False
        return await self._take(lease)

    async def _look_at_first(self) -> None:
        """See whether our number of shards is in force."""
        asked_at = self._clock()
        with suppress(NotFoundError):
            self._shares.saw(0, await self._get(self._candidate.lease), asked_at)

    async def _get(self, name: str) -> Object:
        return await self._api.get(LEASES, self._candidate.namespace, name, within=REQUEST_SECONDS)

    def _may_take(self, lease: Object | None) -> bool:
        """Whether to take the lease, which is free or not there."""
        now = self._clock()
        if self._shares.in_force_until(self._number, self._shares.generation) <= now:
            return False
        self._free_from = now if self._free_from is None else self._free_from
        return self._shares.take(self._number, lease, now - self._free_from)

    def _expired(self, lease: Object) -> bool:
        """Whether the record has not changed for as long as it is valid, by our clock and our own watching."""
        version = str(lease["metadata"]["resourceVersion"])
        now = self._clock()
        self._renewed = self._seen is not None and self._seen[0] != version
        if self._seen is None or self._renewed:
            self._seen = (version, now)
        return now - self._seen[1] >= float(lease["spec"].get("leaseDurationSeconds") or LEASE_SECONDS)

    async def _ask(self, lease: Object) -> None:
        """Ask the holder for the lease, if it has more shards than its share, and we have fewer.

        Only just after it was renewed: that of a holder that is gone would seem to live on.
        """
        if not self._renewed or not self._shares.wants(self._number):
            return
        said = lease["metadata"].get("annotations") or {}
        body = _annotated(lease, {**said, names.ANNOTATION_PREFERRED_HOLDER: self._shares.replica})
        asked = await self._api.replace(LEASES, self._candidate.namespace, body, within=REQUEST_SECONDS)
        self._shares.asked(self._number)
        self._seen = (str(asked["metadata"]["resourceVersion"]), self._clock())

    async def _renew(self, lease: Object) -> bool:
        if self._held_until > 0 and not self._giving and self._shares.give(self._number, lease):
            self._giving = True
            self.asked_for.set()
        found = int(lease["spec"].get("leaseTransitions") or 0)
        transitions = found if self._above is None else max(found, self._above + 1)
        return await self._write(lease, transitions=transitions, generation=ShardGeneration.of(lease))

    async def _take(self, lease: Object) -> bool:
        before = int(lease["spec"].get("leaseTransitions") or 0)
        floor = await self._epoch_floor(before)
        generation, epoch = self._shares.generation, max(before, floor) + 1
        if self._number:
            epoch = max(epoch, generation.epoch + 1)
        elif generation.count != self._candidate.shard.count:
            # Engines may know leaders of any shard that was in force.
            epoch = max(before, floor, self._shares.highest) + UNRECORDED_LEADERS
            generation = ShardGeneration(self._candidate.shard.count, epoch)
        # Another number of shards was in force, and somebody may still act for services that this shard has now.
        self._outwait = self._outwait or generation != ShardGeneration.of(lease)
        return await self._write(lease, transitions=epoch, generation=generation)

    async def _make(self) -> bool:
        if self._held_until > 0:
            self._held_until = 0.0
            raise self._lost_error(f"the lease {self._name} was deleted")
        if not self._may_take(None):
            return False
        led = max(await self._epoch_floor(0), self._shares.epoch_of(self._number))
        lease: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._candidate.namespace},
        }
        epoch = led + UNRECORDED_LEADERS if led > 0 else 1
        if self._number:
            generation = self._shares.generation
            epoch = max(epoch, generation.epoch + 1)
        else:
            count = self._candidate.shard.count
            epoch = max(epoch, self._shares.highest + 1) if count > 1 else epoch
            generation = ShardGeneration(count, epoch) if count > 1 else ShardGeneration()
        # Somebody led before: the Lease was deleted, maybe under a leader that does not know yet, or another number of
        # shards was in force. Outwait them.
        self._outwait = self._outwait or led > 0 or generation.epoch > 1
        sent = self._clock()
        body = self._record(
            lease, holder=self._candidate.identity, transitions=epoch, said=self._said(lease, generation)
        )
        made = await self._api.create(LEASES, self._candidate.namespace, body, within=REQUEST_SECONDS)
        return self._won(made, sent)

    async def _write(self, lease: Object, *, transitions: int, generation: ShardGeneration) -> bool:
        sent = self._clock()
        identity = self._candidate.identity
        body = self._record(lease, holder=identity, transitions=transitions, said=self._said(lease, generation))
        if transitions == lease["spec"].get("leaseTransitions"):
            body["spec"]["acquireTime"] = lease["spec"].get("acquireTime") or body["spec"]["acquireTime"]
        written = await self._api.replace(LEASES, self._candidate.namespace, body, within=REQUEST_SECONDS)
        return self._won(written, sent)

    def _said(self, lease: Object, generation: ShardGeneration) -> dict[str, str]:
        """What the Lease is to say of shards; nothing where there was never more than one."""
        if generation == ShardGeneration():
            return {}
        said = {names.ANNOTATION_SHARDS: str(generation)}
        if self._number == 0 and generation.count > 1:
            said[names.ANNOTATION_HIGHEST_EPOCH] = str(self._shares.highest)
        if self._giving:
            said[names.ANNOTATION_PREFERRED_HOLDER] = annotation(lease, names.ANNOTATION_PREFERRED_HOLDER)
        return said

    def _won(self, lease: Object, sent: float) -> bool:
        self._lease, self._generation = lease, ShardGeneration.of(lease)
        self._shares.saw(self._number, lease, sent)
        if not self._giving:
            self._shares.won(self._number)
        self._epoch = int(lease["spec"]["leaseTransitions"])
        if self._above is not None and self._epoch > self._above:
            log.warning(
                "a new epoch orders above what an engine holds", extra=logged(LogEvent.EPOCH_RAISED, epoch=self._epoch)
            )
            self._above = None
        if self._outwait:
            # The record is there by now, so whoever has not seen it asked before.
            self._outwait, self._acts_from = False, self._clock() + RENEW_DEADLINE
        # The time of sending: the server may have taken the record at once, and the answer its time.
        self._held_until = sent + RENEW_DEADLINE
        return True

    def _record(self, lease: Object, *, holder: str, transitions: int, said: Mapping[str, str]) -> Object:
        """A new record in the Lease."""
        moment = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": LEASE_SECONDS if holder else 1,
            "acquireTime": moment,
            "renewTime": moment,
            "leaseTransitions": transitions,
        }
        return {**_annotated(lease, said), "spec": spec}


def _annotated(lease: Object, said: Mapping[str, str]) -> Object:
    """The Lease, with this and nothing else of what we say in annotations."""
    metadata = {key: value for key, value in lease["metadata"].items() if key != "annotations"}
    found = (lease["metadata"].get("annotations") or {}).items()
    if kept := {key: value for key, value in found if key not in _SAID} | dict(said):
        metadata["annotations"] = kept
    return {**lease, "metadata": metadata}
