"""How queues, caches and logs name a service. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, order=True)
class Key:
    """Namespace and name of a service: what queues and logs name it by. Decisions name it by UID.

    `uid`: as far as it is known, of the service that had the name when it was seen.
    """

    namespace: str
    name: str
    uid: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
