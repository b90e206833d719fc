"""The highest epoch that any service's status bears witness of: whoever takes the lease goes above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flyball_operator.cluster.api import KubeApi
from flyball_operator.cluster.resources import INFERENCE_SERVICES

_SECONDS: Final = 2.0


async def highest_epoch(api: KubeApi, namespaces: Sequence[str | None]) -> int:
    """0 where no status has one. Raises `ClusterError`: an epoch that may be too low is worse than none."""
    highest = 0
    for namespace in namespaces:
        items, _ = await api.list(INFERENCE_SERVICES, namespace, within=_SECONDS)
        for found in items:
            status = found.get("status") or {}
            for part in (status, status.get("tuning") or {}):
                highest = max(highest, int(part.get("epoch") or 0))
    return highest
