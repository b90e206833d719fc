"""The LeaderWorkerSet: replicas that are groups of pods, one on each of several nodes. A group that fails is made anew.

The launcher tells each pod its part by its index. Mostly all pods of a group have one template and serve requests.
Where one engine core spans them, the leader serves alone, and its workers have a template of their own (`worker`).
Groups are replaced one after another. Pure.
"""

from __future__ import annotations

from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.deployment import rollout_steps, wanted_replicas
from flyball_operator.reconcile.plan.history import to_annotations
from flyball_operator.reconcile.plan.owned_objects import owned
from flyball_operator.reconcile.plan.revision import Revision
from flyball_operator.reconcile.plan.rollout import RolloutDecision


def render(service: InferenceService, rollout: RolloutDecision, live: Object | None) -> Object:
    """The LeaderWorkerSet with the templates of this decision. `live`: `Snapshot.pods_owner`, if there is one."""
    replicas = wanted_replicas(service, live)
    surge, unavailable = rollout_steps(service, replicas)
    spec = {
        "replicas": replicas,
        "leaderWorkerTemplate": {
            "size": service.spec.parallelism.nodes,
            **_templates(rollout.target),
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


def _templates(target: Revision) -> Object:
    if target.worker is not None:
        return {"leaderTemplate": target.template, "workerTemplate": target.worker}
    # The leader's, too.
    return {"workerTemplate": target.template}
