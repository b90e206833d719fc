"""What makes the pods of a service, as commands read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flyball_operator.api.objects import Object, controlled_by
from flyball_operator.reconcile.plan.groups import as_deployment

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi


async def pods_owner(api: KubeApi, service: Object) -> Object | None:
    """The service's own Deployment, or its LeaderWorkerSet in the shape of one; None if it is not there or not ours."""
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import ForbiddenError, NotFoundError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import DEPLOYMENTS, LEADER_WORKER_SETS  # noqa: PLC0415

    meta = service["metadata"]
    over_nodes = ((service.get("spec") or {}).get("parallelism") or {}).get("nodes", 1) > 1
    try:
        found = await api.get(LEADER_WORKER_SETS if over_nodes else DEPLOYMENTS, meta["namespace"], meta["name"])
    except (NotFoundError, ForbiddenError):
        return None
    if not controlled_by(found, str(meta.get("uid"))):
        return None
    return as_deployment(found, ()) if over_nodes else found
