"""The LeaderWorkerSet: replicas that are groups of pods, one on each of several nodes. A group that fails is made anew.

All pods of a group have one template and serve requests; the launcher tells each its part by its index. Groups are
replaced one after another. Pure.
"""

from __future__ import annotations

from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.deployment import rollout_steps, wanted_replicas
from flyball_operator.reconcile.plan.history import to_annotations
from flyball_operator.reconcile.plan.owned_objects import owned
from flyball_operator.reconcile.plan.rollout import RolloutDecision


def render(service: InferenceService, rollout: RolloutDecision, live: Object | None) -> Object:
    """The LeaderWorkerSet with this pod template. `live`: `Snapshot.pods_owner`, if there is one."""
    replicas = wanted_replicas(service, live)
    surge, unavailable = rollout_steps(service, replicas)
    spec = {
        "replicas": replicas,
        "leaderWorkerTemplate": {
            "size": service.spec.parallelism.nodes,
            # The leader's, too.
            "workerTemplate": rollout.target.template,
            # Engines that lost one of them wait for it for ever.
            "restartPolicy": "RecreateGroupOnPodRestart",
        },
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxSurge": surge, "maxUnavailable": unavailable},
        },
        # A Service for each group: the other kind has the name of ours.
        "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
    }
    body = owned(Kind.LEADER_WORKER_SET, service.metadata, spec=spec)
    body["metadata"]["annotations"] = to_annotations(rollout.history)
    return body
