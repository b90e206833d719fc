"""Carries intents out, one call each. It decides nothing: every precondition is in the intent."""

from __future__ import annotations

from flyball_operator.api.objects import Object
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import NotFoundError
from flyball_operator.kube.resources import OWNED
from flyball_operator.reconcile.plan.intents import Apply, Claim, Create, Delete, Intent


async def carry_out(api: KubeApi, namespace: str, intent: Intent) -> None:
    """Make the one call of this intent.

    Raises `AlreadyExistsError` and `ConflictError` where the cluster has moved on since the plan (make a new one).
    Raises `InvalidObjectError` where the API server finds the object wrong, and the rest of the tree.
    """
    resource = OWNED[intent.kind]
    match intent:
        case Create(body=body):
            await api.create(resource, namespace, body)
        case Apply(body=body):
            await api.apply(resource, body)
        case Claim(name=name, patch=patch):
            await api.json_patch(resource, namespace, name, patch)
        case Delete(name=name, uid=uid):
            try:
                await api.delete(resource, namespace, name, uid=uid)
            except NotFoundError:
                return


async def dry_run(api: KubeApi, apply: Apply) -> Object:
    """What the call of this intent would leave. Raises as `carry_out`."""
    return await api.dry_apply(OWNED[apply.kind], apply.body)


def describe(intent: Intent) -> str:
    """The intent in a few words, for the log."""
    name = intent.body["metadata"]["name"] if isinstance(intent, Create | Apply) else intent.name
    return f"{type(intent).__name__.lower()} {intent.kind.value} {name}"
