"""The highest epoch that any service's status bears witness of: whoever takes the lease goes above it.

One that no Lease can have counted to is passed over: it would keep everybody from leading, for all services.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from flyball_operator.api.epochs import LARGEST_EPOCH
from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.api.objects import Object
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ForbiddenError, NotFoundError, UnauthorizedError
from flyball_operator.kube.resources import INFERENCE_SERVICES

_SECONDS: Final = 2.0
#: Namespaces that are listed at the same time: an election waits for all.
_PARALLEL: Final = 8
#: Somebody may have led, and none of the statuses that may be read says so.
_HIDDEN: Final = 1

log = logging.getLogger(__name__)


async def highest_epoch(api: KubeApi, namespaces: Sequence[str | None], reached: int) -> int:
    """0 where no status has one. Raises `ClusterError`: an epoch that may be too low is worse than none.

    `reached`: the epoch of the Lease as it is, 0 where there is none.

    A namespace that is missing or not granted is left out, and then the answer is never 0. Epochs fall only where the
    Lease was deleted; whoever makes it anew above an answer of 1 or more begins a thousand above it, for leaders that
    no status shows. One that led in a hidden namespace alone is no other. Should a service be seen there whose epoch is
    higher all the same, the leadership of its shard ends (`reconcile.resync`), and the next one goes above it.
    """
    gate = asyncio.Semaphore(_PARALLEL)

    async def highest_in(namespace: str | None) -> int:
        try:
            async with gate:
                items, _ = await api.list(INFERENCE_SERVICES, namespace, within=_SECONDS)
        except UnauthorizedError:
            raise
        except (ForbiddenError, NotFoundError):
            return _HIDDEN
        return highest_of(items, reached)

    return max(await asyncio.gather(*map(highest_in, namespaces)), default=0)


def highest_of(services: Iterable[Object], reached: int) -> int:
    """The highest epoch in the statuses of these services that a Lease can have counted to, 0 where none has one.

    `reached`: what the Lease has counted to, whatever led it there. Leaders write that, so it is believed.
    """
    highest, most = 0, max(LARGEST_EPOCH, reached)
    for found in services:
        epoch = _epoch_of(found)
        if epoch <= most:
            highest = max(highest, epoch)
        else:
            log.error(
                "%s/%s: its status names epoch %d, and no leader can have had one above %d; this service cannot be"
                " tuned until it is deleted and made again",
                found["metadata"]["namespace"],
                found["metadata"]["name"],
                epoch,
                most,
                extra=logged(LogEvent.EPOCH_IMPOSSIBLE, found["metadata"]["namespace"], found["metadata"]["name"]),
            )
    return highest


def _epoch_of(found: Object) -> int:
    status = found.get("status") or {}
    return max(int(part.get("epoch") or 0) for part in (status, status.get("tuning") or {}))
