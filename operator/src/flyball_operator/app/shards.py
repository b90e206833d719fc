"""The shards that this process stands for: a `Term` of each at a time, and who of them gets what."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Final
from zlib import crc32

from flyball_operator.api.epochs import LARGEST_EPOCH
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.service_key import Key
from flyball_operator.api.shards import Shard, shards
from flyball_operator.app.informer import Informers
from flyball_operator.app.term import Process, Term
from flyball_operator.kube.election import EpochFloor, LeadershipLostError
from flyball_operator.supervision import EndedError, ended, first
from flyball_operator.tuning.insight import Insight

#: Seconds between a lost Lease and the next term, at first and at most. At first as between two looks at a Lease, so
#: that a single replica leads again soon. Doubled while terms end early, because each lists all services. At most half
#: a minute, because nobody may look after the services meanwhile.
LEAST_REST_SECONDS: Final = 2.0
LONGEST_REST_SECONDS: Final = 30.0

log = logging.getLogger(__name__)


class Shards:
    """Those of one process. As a queue, it hands keys to the shards that they are in; as a fence, it is that of any."""

    def __init__(self, count: int) -> None:
        self.all = shards(count)
        self._terms: dict[Shard, Term] = {}
        self._stopping = asyncio.Event()

    # What others ask

    def __len__(self) -> int:
        """Keys that wait."""
        return sum(len(term.queue) for term in self._terms.values())

    def add(self, key: Key) -> None:
        """Have a service looked at, whoever of us has it."""
        for term in self._those_of(key):
            term.queue.add(key)

    def urge(self, key: Key) -> None:
        """Have a service looked at now."""
        for term in self._those_of(key):
            term.queue.urge(key)

    def _those_of(self, key: Key) -> Collection[Term]:
        """Without a UID it may be in any shard; whoever looks at it finds out."""
        return [term for shard, term in self._terms.items() if not key.uid or shard.has(key.uid)]

    def epochs(self) -> Mapping[Shard, int]:
        """Epoch of each shard's leadership, 0 where we do not lead."""
        return {shard: term.elector.epoch for shard, term in self._terms.items()}

    def epoch(self) -> int:
        """The highest of them."""
        return max(self.epochs().values(), default=0)

    def seconds_left(self) -> float:
        """Seconds for which we surely hold any shard."""
        return max((term.elector.seconds_left() for term in self._terms.values()), default=0.0)

    def may_act(self) -> bool:
        """Whether we surely hold any."""
        return self.seconds_left() > 0

    def led_after(self, shard: Shard, why: str) -> None:
        """Somebody led in a shard of ours after us: its term ends, the others go on."""
        self._terms[shard].lose(why)

    def held(self) -> Collection[Shard]:
        """Those that we surely hold."""
        return {shard for shard, term in self._terms.items() if term.elector.may_act()}

    def insight(self, service_uid: str) -> Insight | None:
        """What is known of a service beyond its status; None where another replica tunes it, or nobody does yet."""
        leading = (term for shard, term in self._terms.items() if shard.has(service_uid) and term.elector.may_act())
        return next((term.tuner.insight(service_uid) for term in leading if term.tuner is not None), None)

    def standings(self) -> Mapping[str, int]:
        """Services by how far they have come with this operator's pod template."""
        found: Counter[str] = Counter()
        for term in self._terms.values():
            found.update(term.adoptions.counts())
        return found

    def standing_still(self) -> tuple[str, ...]:
        """What shows no sign of life, in any shard."""
        return tuple(message for term in self._terms.values() for message in term.standing_still())

    # The work

    async def run(self, process: Process) -> None:
        """Stand for all shards until asked to stop. Raises what any part died of."""
        # Each replica begins with another, or all would try for the same.
        offset = crc32(process.shares.replica.encode()) % len(self.all)
        async with asyncio.TaskGroup() as group:
            in_turn = (*self.all[offset:], *self.all[:offset])
            standing = [group.create_task(self._stand(shard, process), name=shard.title) for shard in in_turn]
            ended_first = await first(standing)
            if not self._stopping.is_set() or ended_first.cancelled():
                raise EndedError(ended(standing))

    def stop(self) -> None:
        """Have all end: nothing is written any more, then the leases are given back."""
        self._stopping.set()
        for term in self._terms.values():
            term.stop()

    async def _stand(self, shard: Shard, process: Process) -> None:
        """One term after the other. After a lease that is lost the next one waits, longer while terms end early."""
        rest = LEAST_REST_SECONDS
        while not self._stopping.is_set():
            began, lost_by = process.clock(), None
            async with AsyncExitStack() as stack:
                term = self._terms[shard] = Term(shard, process, stack)
                await term.assemble()
                try:
                    await term.run()
                except* LeadershipLostError as lost:
                    lost_by = lost.exceptions[0]
                else:
                    if not self._stopping.is_set():
                        log.info(
                            "%s is given to a replica that has too few",
                            shard.title,
                            extra=logged(LogEvent.SHARD_GIVEN_AWAY),
                        )
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    # Before Python 3.13, a task group that is cancelled as one of its tasks fails tells of the failure
                    # alone. Without this the process would stand anew, and never end.
                    raise asyncio.CancelledError
            del self._terms[shard]
            if lost_by is not None:
                rest = LEAST_REST_SECONDS if process.clock() - began > LONGEST_REST_SECONDS else rest
                log.warning(
                    "%s is lost: %s; it is stood for again in %g s",
                    shard.title,
                    lost_by,
                    rest,
                    extra=logged(LogEvent.SHARD_LOST),
                )
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), rest)
                rest = min(2 * rest, LONGEST_REST_SECONDS)


class Refresher:
    """Lists all services for new leaders of shards: once for all that wait when a round begins."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._waiting: dict[Shard, Callable[[], None]] = {}
        self._lock = asyncio.Lock()

    async def refresh(self, shard: Shard, begins: Callable[[], None]) -> None:
        """List all anew, and have the services of the shard looked at."""
        self._waiting[shard] = begins
        async with self._lock:
            if self._waiting.get(shard) is not begins:
                return
            covered = dict(self._waiting)

            def begin() -> None:
                for one in covered.values():
                    one()

            await self._informers.refresh(begin, lambda uid: any(one.has(uid) for one in covered))
            self._waiting = {one: known for one, known in self._waiting.items() if covered.get(one) is not known}


class SharedFloor:
    """The highest epoch in any status, read once for all shards that wait when a read begins."""

    def __init__(self, read: EpochFloor, clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        #: When a read began, what it was asked with, and its answer.
        self._known: tuple[float, int, int] | None = None
        self._lock = asyncio.Lock()

    async def read(self, reached: int) -> int:
        """As `kube.epochs.highest_epoch`: of a read that began after this was called."""
        # What is below that makes no difference to the answer.
        asked, reached = self._clock(), max(reached, LARGEST_EPOCH)
        async with self._lock:
            if self._known is None or self._known[0] < asked or self._known[1] != reached:
                began = self._clock()
                self._known = (began, reached, await self._read(reached))
            return self._known[2]
