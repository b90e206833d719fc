"""The kinds of objects this operator touches: their paths, and the verbs it needs on them.

The start check asks for exactly these rights, and the chart grants exactly these. Of Secrets only the operator's own is
read: which one a pod lacks is read from pod status.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Kind

READ: Final = ("get", "list", "watch")
#: Nothing that serves is deleted by the operator: garbage collection follows the service.
WRITE: Final = ("create", "patch")


@dataclass(frozen=True)
class Resource:
    """A kind as the API server's paths name it."""

    group: str
    version: str
    plural: str
    verbs: tuple[str, ...] = ()

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of an object, or of the collection where `name` is absent; of all namespaces where that is absent."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace is not None:
            parts.append(f"namespaces/{namespace}")
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


INFERENCE_SERVICES: Final = Resource(names.GROUP, names.VERSION, names.PLURAL, READ)
INFERENCE_SERVICE_STATUS: Final = Resource(names.GROUP, names.VERSION, f"{names.PLURAL}/status", ("patch",))
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", READ + WRITE)
#: Of services over several nodes. A cluster may lack the kind, and a namespace the rights: the condition Accepted
#: tells. So it is not watched, and the start check asks for none of these rights, nor for those on what lies between
#: one and its pods.
LEADER_WORKER_SETS: Final = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", ("get", *WRITE))
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", ("list",))
SERVICES: Final = Resource("", "v1", "services", READ + WRITE)
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", (*READ, *WRITE, "delete"))
#: Only where the operator is set to make them.
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", READ + WRITE)
REVISIONS: Final = Resource("apps", "v1", "controllerrevisions", (*READ, *WRITE, "delete"))
#: That models are downloaded to. None is deleted: garbage collection follows the service, or they stay.
VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", READ + WRITE)
#: Of models that are downloaded once.
JOBS: Final = Resource("batch", "v1", "jobs", ("list", "watch", "create", "delete"))
#: Of services that name a gateway. A cluster may lack both kinds, and a namespace the rights: the service's condition
#: Routed tells. So neither is watched or listed, and the start check asks for none of these rights.
INFERENCE_POOLS: Final = Resource("inference.networking.k8s.io", "v1", "inferencepools", ("get", *WRITE, "delete"))
HTTP_ROUTES: Final = Resource("gateway.networking.k8s.io", "v1", "httproutes", ("get", *WRITE, "delete"))
#: Read only, for what lies between a Deployment and its pods (`api.membership`).
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", ("list", "watch"))
PODS: Final = Resource("", "v1", "pods", READ)
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", READ)
#: Created about services; listed about a pod that waits without its status saying why.
EVENTS: Final = Resource("", "v1", "events", ("create", "list"))
#: In the operator's own namespace, and `names.NAMESPACE_LEASE` in watched ones, where it may be missing.
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", ("get", "create", "update"))
#: In the operator's own namespace, the one of the signing key by its name; where the operator makes the key.
SECRETS: Final = Resource("", "v1", "secrets", ("get", "patch"))
#: In watched namespaces: `names.PUBLIC_KEYS` where the operator makes the key, and one of each service with adapters.
#: None is watched or listed. Where the right is missing, the namespace is looked after all the same.
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", ("get", "create", "patch"))
#: Cluster-wide, only ours by name.
CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", ("get",))
#: Cluster-wide where they are selected by their labels; else `get` in each alone, which may be missing.
NAMESPACES: Final = Resource("", "v1", "namespaces", READ)
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")

#: Selects what is ours: the API server sends nothing else. EndpointSlices carry the labels of their Service.
OURS: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"


def selector(resource: Resource) -> str:
    """What is watched and listed of a kind: what is ours, and of pods those of others that name a service, too."""
    return names.LABEL_SERVICE if resource is PODS else OURS


OWNED: Final = {
    Kind.DEPLOYMENT: DEPLOYMENTS,
    Kind.LEADER_WORKER_SET: LEADER_WORKER_SETS,
    Kind.SERVICE: SERVICES,
    Kind.DISRUPTION_BUDGET: DISRUPTION_BUDGETS,
    Kind.NETWORK_POLICY: NETWORK_POLICIES,
    Kind.CONFIG_MAP: CONFIG_MAPS,
    Kind.REVISION: REVISIONS,
    Kind.VOLUME_CLAIM: VOLUME_CLAIMS,
    Kind.JOB: JOBS,
    Kind.INFERENCE_POOL: INFERENCE_POOLS,
    Kind.HTTP_ROUTE: HTTP_ROUTES,
}
#: Of these, what the settings of the operator or its services ask for.
_ASKED_FOR: Final = (LEADER_WORKER_SETS, NETWORK_POLICIES, CONFIG_MAPS, INFERENCE_POOLS, HTTP_ROUTES)

#: What of a service carries its labels, and is watched and listed by them.
_LABELLED: Final = (
    DEPLOYMENTS,
    SERVICES,
    DISRUPTION_BUDGETS,
    REVISIONS,
    VOLUME_CLAIMS,
    JOBS,
    REPLICA_SETS,
    PODS,
    ENDPOINT_SLICES,
)

#: Needed in every watched namespace, whatever the settings.
WATCHED: Final = (
    INFERENCE_SERVICES,
    INFERENCE_SERVICE_STATUS,
    *(resource for resource in OWNED.values() if resource not in _ASKED_FOR),
    REPLICA_SETS,
    PODS,
    ENDPOINT_SLICES,
    EVENTS,
)


def watched(*, network_policies: bool) -> tuple[Resource, ...]:
    """Needed in every watched namespace; `network_policies`: with those that a setting turns on."""
    return (*WATCHED, NETWORK_POLICIES) if network_policies else WATCHED


def labelled(*, network_policies: bool) -> tuple[Resource, ...]:
    """What is watched and listed by our labels; `network_policies`: with those that a setting turns on."""
    return (*_LABELLED, NETWORK_POLICIES) if network_policies else _LABELLED
