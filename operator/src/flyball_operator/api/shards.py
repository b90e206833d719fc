"""Which shard a service is in: beyond one core, the replicas share all services by their UIDs. Pure.

A UID of Kubernetes is random, so its first two digits are the hash. They can be asked for where only labels can be
matched: Prometheus is asked for the services of one shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A shard has a share of the 256 beginnings of a UID: of more shards, some would have a third more than others.
MOST_SHARDS: Final = 64
_BEGINNINGS: Final = {f"{number:02x}": number for number in range(256)}
_OTHER: Final = len(_BEGINNINGS) - 1


@dataclass(frozen=True, order=True)
class Shard:
    """One of `count` shards, from number 0 on."""

    number: int = 0
    count: int = 1

    def has(self, uid: str) -> bool:
        """Whether the service of this UID is in the shard. What is no UID is in the last one."""
        return _BEGINNINGS.get(uid[:2], _OTHER) * self.count // len(_BEGINNINGS) == self.number

    def lease(self, name: str) -> str:
        """Name of the Lease by which replicas elect who looks after the shard. That of the first is the release's.

        No other release in the namespace may have it: the chart refuses a name that ends so.
        """
        return f"{name}-shard-{self.number}" if self.number else name

    @property
    def pattern(self) -> tuple[str, bool]:
        """A regular expression of whole UIDs, and whether the shard has those that it matches, or all others."""
        last = self.number == self.count - 1
        own = [beginning for beginning in _BEGINNINGS if self.has(beginning) is not last]
        return f"({'|'.join(own)}).*", not last

    @property
    def title(self) -> str:
        """The shard in a sentence."""
        return f"shard {self.number} of {self.count}"


def shards(count: int) -> tuple[Shard, ...]:
    """All of them."""
    return tuple(Shard(number, count) for number in range(count))
