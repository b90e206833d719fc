"""The LeaderWorkerSet: replicas that are groups of pods, one on each of several nodes. A group that fails is made anew.

The launcher tells each pod its part by its index. Mostly all pods of a group have one template and serve requests.
Where one engine core spans them, the leader serves alone; the template of the others is made of its own, and changes
when that does, or when what is made of it does: that rolls pods. Groups are replaced one after another. Pure.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from flyball_engine.launching import HOLD_MODULE
from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.deployment import rollout_steps, wanted_replicas
from flyball_operator.reconcile.plan.history import to_annotations
from flyball_operator.reconcile.plan.owned_objects import owned
from flyball_operator.reconcile.plan.rollout import RolloutDecision

#: What asks an engine whether it answers, and where. Of one that serves nothing the end of its process tells.
_OF_AN_API: Final = ("ports", "startupProbe", "readinessProbe", "livenessProbe")
_OF_SCRAPES: Final = (names.ANNOTATION_SCRAPE, names.ANNOTATION_SCRAPE_PORT, names.ANNOTATION_SCRAPE_SCHEME)


def render(service: InferenceService, rollout: RolloutDecision, live: Object | None) -> Object:
    """The LeaderWorkerSet with this pod template. `live`: `Snapshot.pods_owner`, if there is one."""
    replicas = wanted_replicas(service, live)
    surge, unavailable = rollout_steps(service, replicas)
    spec = {
        "replicas": replicas,
        "leaderWorkerTemplate": {
            "size": service.spec.parallelism.nodes,
            **_templates(service, rollout.target.template),
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


def _templates(service: InferenceService, template: Object) -> Object:
    if service.spec.parallelism.core_spans_nodes:
        return {"leaderTemplate": template, "workerTemplate": headless(template)}
    # The leader's, too.
    return {"workerTemplate": template}


def headless(template: Object) -> Object:
    """The template of pods that are parts of an engine core which another pod serves.

    They are Ready when they run. The leader is not before each of them has loaded its part of the model. When one of
    them ends, its group is made anew. One that is told to end does so after its leader, which finishes what runs.
    """
    made = deepcopy(template)
    metadata = made["metadata"]
    metadata["labels"] = {**metadata["labels"], names.LABEL_HEADLESS: "true"}
    metadata["annotations"] = {key: it for key, it in metadata["annotations"].items() if key not in _OF_SCRAPES}
    for container in made["spec"]["containers"]:
        if container["name"] == names.CONTAINER_ENGINE:
            for field in _OF_AN_API:
                container.pop(field, None)
            container["lifecycle"] = {"preStop": {"exec": {"command": ["python3", "-m", HOLD_MODULE]}}}
    return made
