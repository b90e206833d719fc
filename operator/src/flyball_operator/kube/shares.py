"""What one replica knows of the Leases of all shards, and which of them it should hold. No call here.

Each replica stands for every shard. So that each holds its share:

- It takes a free shard at once while it holds fewer than its share, which is shards ÷ replicas, rounded down. It takes
  one beyond that only once its Lease has been free for some seconds more: then a replica is missing.
- One that has fewer asks for a shard of one that has more, by an annotation of its Lease. The holder stops writing for
  the shard, and gives its Lease back.

All replicas must divide the services alike. So the Lease of the first shard says how many shards are in force:

- Whoever takes that Lease puts its own number into force. It acts once all that another number allowed has run out.
- A replica may act for another shard for 10 s from the moment it *asked* for that Lease last and saw the number that it
  took the shard under, put into force by the same leader.
- Whoever takes another shard for the first time since then acts 10 s later, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object, annotation

#: Seconds that a shard is left to a replica that has too few: three looks of that one, since it may come too late at
#: another shard twice. So a restart moves no others.
SPARE_SECONDS: Final = 6.0
#: Seconds before the same shard is asked for again: each time costs its holder a renewal.
ASK_SECONDS: Final = 60.0
#: Seconds from seeing that our number of shards is in force for which it surely is.
IN_FORCE_SECONDS: Final = 10.0


@dataclass(frozen=True)
class ShardGeneration:
    """The time in which one number of shards is in force. `epoch`: that of the leader who put it into force."""

    count: int = 1
    epoch: int = 0

    @classmethod
    def of(cls, lease: Object) -> ShardGeneration:
        """Under which a Lease was last taken. Without a word of it, nobody ever had more than one shard."""
        count, _, epoch = annotation(lease, names.ANNOTATION_SHARDS).partition(" since ")
        return cls(int(count), int(epoch)) if count.isdecimal() and epoch.isdecimal() else cls()

    def __str__(self) -> str:
        return f"{self.count} since {self.epoch}"


def replica_of(identity: str) -> str:
    """The replica that a holder of a Lease is: a new leadership of it has another identity."""
    return identity.rpartition("_")[0] or identity


class Shares:
    """Those of one replica. `replicas`: how many there should be."""

    def __init__(self, replica: str, *, clock: Callable[[], float], shards: int = 1, replicas: int = 1) -> None:
        self.replica = replica
        self.count = shards
        self.share = max(1, shards // replicas)
        self.generation = ShardGeneration()
        self.highest = 0
        """The highest epoch that any of the Leases has counted to."""
        self._clock = clock
        self._mine: set[int] = set()
        self._holders: dict[int, str] = {}
        self._epochs: dict[int, int] = {}
        self._asked: dict[int, float] = {}
        self._in_force_until = 0.0

    # The number of shards

    def saw(self, number: int, lease: Object, asked_at: float) -> None:
        """Take note of the Lease of a shard, as it was at some time after `asked_at`."""
        spec = lease["spec"]
        self._holders[number] = replica_of(spec.get("holderIdentity") or "")
        epoch = self._epochs[number] = int(spec.get("leaseTransitions") or 0)
        recorded = annotation(lease, names.ANNOTATION_HIGHEST_EPOCH)
        self.highest = max(self.highest, epoch, int(recorded) if recorded.isdecimal() else 0)
        if number == 0:
            self.generation = ShardGeneration.of(lease)
            # Once another is in force, nothing is sure any more, whatever was seen before.
            ours = self.generation.count == self.count
            self._in_force_until = max(self._in_force_until, asked_at + IN_FORCE_SECONDS) if ours else 0.0

    def epoch_of(self, number: int) -> int:
        """That of the Lease of a shard when it was seen last, 0 if never: who led may be in no status."""
        return self._epochs.get(number, 0)

    def in_force_until(self, number: int, generation: ShardGeneration) -> float:
        """Until when the generation that a shard was taken in surely lasts.

        The holder of the first shard ends it, nobody else.
        """
        if number == 0:
            return float("inf")
        return self._in_force_until if generation == self.generation else 0.0

    def unsure(self, number: int, generation: ShardGeneration) -> bool:
        """Whether it is time to see again whether it lasts."""
        return self.in_force_until(number, generation) - self._clock() < IN_FORCE_SECONDS / 2

    # Who holds which

    def take(self, number: int, lease: Object | None, free_seconds: float) -> bool:
        """Whether to take a shard whose Lease has been free for so long. It counts as ours until `lost`."""
        preferred = annotation(lease, names.ANNOTATION_PREFERRED_HOLDER) if lease is not None else ""
        wanted = len(self._mine - {number}) < self.share and preferred in ("", self.replica)
        if not wanted and free_seconds < SPARE_SECONDS:
            return False
        self._mine.add(number)
        return True

    def won(self, number: int) -> None:
        """The shard is ours."""
        self._mine.add(number)

    def lost(self, number: int) -> None:
        """The shard is not ours, or no more."""
        self._mine.discard(number)

    def wants(self, number: int) -> bool:
        """Whether to ask the holder of a shard for it; once a minute.

        Not while another number of shards is in force: both would take the first shard from each other for ever.
        """
        if self.generation.count != self.count:
            return False
        now, holder = self._clock(), self._holders.get(number, "")
        asked = {one for one, at in self._asked.items() if now - at < ASK_SECONDS and one not in self._mine}
        held = [one for one, replica in self._holders.items() if replica == holder and one not in self._mine]
        enough = len(self._mine) + len(asked) >= self.share
        return bool(holder) and not enough and number not in asked and len(held) - len(asked & set(held)) > self.share

    def asked(self, number: int) -> None:
        """The holder was asked."""
        self._asked[number] = self._clock()

    def give(self, number: int, lease: Object) -> bool:
        """Whether to give a shard of ours to the one that asks for it. It does not count as ours then."""
        asked = annotation(lease, names.ANNOTATION_PREFERRED_HOLDER)
        if not asked or asked == self.replica or len(self._mine) <= self.share:
            return False
        self._mine.discard(number)
        return True
