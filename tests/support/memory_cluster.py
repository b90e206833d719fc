"""A small cluster in memory: users, the reconciler and Kubernetes' controllers take turns until nothing changes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from flyball_engine.model_cache import Progress
from flyball_lab.harness.manifests import good
from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.api.service_key import Key
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.cache import Cache
from flyball_operator.kube.errors import ClusterError
from flyball_operator.kube.events import EventPoster
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    EVENTS,
    INFERENCE_SERVICES,
    JOBS,
    LEADER_WORKER_SETS,
    PODS,
    REPLICA_SETS,
    SERVICES,
    STATEFUL_SETS,
    VOLUME_CLAIMS,
)
from flyball_operator.reconcile.metrics import Metrics
from flyball_operator.reconcile.plan.snapshot import Config, Snapshot
from flyball_operator.reconcile.reader import SnapshotReader
from flyball_operator.reconcile.reconciler import Reconciler
from flyball_operator.reconcile.steady import SteadyServices
from support.memory_api import CrashError, MemoryApi, Object

NAMESPACE = "ns"
READY: Object = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "engine", "ready": True, "state": {"running": {}}}],
}
DOWNLOADED: Object = {
    "phase": "Succeeded",
    "containerStatuses": [
        {"name": "download", "state": {"terminated": {"exitCode": 0, "message": "downloaded org/m: 2 files, 9 bytes"}}}
    ],
}
_NO_SUCH_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
PULL_FAILED: Object = {"containerStatuses": [{"name": "engine", "ready": False, "state": _NO_SUCH_IMAGE}]}
CONFIG = Config(plugin_image="flyball/plugin:1", public_key="PEM")


class Leading:
    """A leadership that does not end."""

    epoch = 7

    def may_act(self) -> bool:
        return True


def service(name: str = "chat", **changes: Any) -> Object:
    """An InferenceService of this world's namespace."""
    return good(name, metadata__namespace=NAMESPACE, **changes)


class MemoryCluster:
    """Everything, with a clock that only tests move. Images that contain `bad` never start.

    `held`: status of a pod of each template that is rolled out, which does not become Ready for it; None holds none.
    `ready_beside`: pods of that template that do. `node`: where it is, made when it was put there; empty for nowhere.
    `download`: status of the pod of a Job and of the Job, which has completed where there is none.
    `volume`: status of claims, each of which has a volume as large as it asks for where there is none.
    `room`: pods of groups for which there is room, of all where it is None. `no_room`: the words that refuse one more.
    `one_device`: pods have a device each, and there is one. `no_device`: what the scheduler says of a second.
    """

    def __init__(self, api: MemoryApi | None = None, config: Config = CONFIG) -> None:
        self.api = api or MemoryApi()
        self.config = config
        #: What the operator's watches would have shown, where a test lets them.
        self.cache = Cache()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.crashes = 0
        self.held: Object | None = None
        self.ready_beside = 0
        self.node = ""
        self.room: int | None = None
        self.no_room = "exceeded quota: tight, requested: pods=1, used: pods=1, limited: pods=1"
        self.one_device = False
        self.download: tuple[Object, Object] | None = None
        #: How far each download is, and who was asked for it.
        self.progress: Progress | None = None
        self.asked: set[str] = set()
        self.volume: Object | None = None
        self.no_device = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        self._unscheduled: dict[str, Object] = {}
        self._served: set[str] = set()
        self._ready_since: dict[str, tuple[str, datetime]] = {}
        self.restart()

    def restart(self, **options: Any) -> None:
        """Start the operator anew: it remembers nothing. `options`: those of the reconciler."""
        api = cast("KubeApi", self.api)
        events = EventPoster(
            api, instance="test", clock=self.now.timestamp, now=lambda: self.now, new_id=lambda: f"{self.api.writes}"
        )
        self.reconciler = Reconciler(
            api=api,
            reader=SnapshotReader(api, self.config, progress=self._far, note_members=self.cache.note_members),
            leadership=Leading(),
            events=events,
            metrics=Metrics(),
            now=lambda: self.now,
            steady=SteadyServices(self.cache),
            **options,
        )

    # What people do

    def apply(self, manifest: Object) -> None:
        """`kubectl apply` an InferenceService, and let everything settle."""
        self.api.put(INFERENCE_SERVICES, manifest)
        self.settle()

    def change(self, change: Callable[[Object], None], name: str = "chat") -> None:
        """Edit the service, and let everything settle."""
        self.api.edit(INFERENCE_SERVICES, name, change)
        self.settle()

    def delete(self, name: str = "chat", *, cascade: str = "background") -> None:
        """`kubectl delete` the service, and let everything settle."""
        self.api.remove(INFERENCE_SERVICES, name, cascade=cascade)
        self.settle()

    # What happens by itself

    def settle(self) -> None:
        """Let reconciler and controllers act until nothing changes; then once more, as held-back writes are due."""
        self._turns()
        self.wait(120)

    def wait(self, seconds: float) -> None:
        """Let time pass, and everything settle."""
        self.now += timedelta(seconds=seconds)
        self._turns()

    def _turns(self) -> None:
        for _ in range(12):
            before = self._versions()
            self.act()
            self.controllers()
            if self._versions() == before:
                return
        raise AssertionError("the cluster did not settle")

    def act(self) -> None:
        """One look of the reconciler at every service there is or was; after a crash it starts anew and looks again."""
        keys = {Key(NAMESPACE, found["metadata"]["name"]) for found in self.api.find(INFERENCE_SERVICES)}
        for key in sorted(keys):
            self._look(key)

    def _look(self, key: Key) -> None:
        try:
            asyncio.run(self.reconciler.reconcile(key))
        except CrashError:
            self.crashes += 1
            self.restart()
            self._look(key)
        except ClusterError:
            # Told, and tried again later; here at the next turn.
            return

    def _versions(self) -> dict[tuple[str, str, str], str]:
        watched = {key: found for key, found in self.api.objects.items() if key[0] != EVENTS.plural}
        return {key: found["metadata"]["resourceVersion"] for key, found in watched.items()}

    def controllers(self) -> None:
        """Claims get volumes, Deployments and Jobs pods, Services endpoints, and what failed says so."""
        for claim in self.api.find(VOLUME_CLAIMS):
            status = self.volume or {"phase": "Bound", "capacity": claim["spec"]["resources"]["requests"]}
            if claim.get("status") != status:
                self.api.put(VOLUME_CLAIMS, {**claim, "status": status})
        for job in self.api.find(JOBS):
            self._run(job)
        for deployment in self.api.find(DEPLOYMENTS):
            if deployment["metadata"].get("labels", {}).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY:
                self._deploy(deployment)
        for groups in self.api.find(LEADER_WORKER_SETS):
            self._group(groups)
        for front in self.api.find(SERVICES):
            self._front(front)

    async def _far(self, ip: str) -> Progress | None:
        self.asked.add(ip)
        return self.progress

    def _run(self, job: Object) -> None:
        pod, status = self.download or (DOWNLOADED, {"conditions": [{"type": "Complete", "status": "True"}]})
        if job.get("status") == status:
            return
        self.api.put(JOBS, {**job, "status": status})
        metadata: Object = {"name": f"{job['metadata']['name']}-1", "namespace": NAMESPACE}
        labels = {**job["spec"]["template"]["metadata"]["labels"], names.LABEL_JOB: job["metadata"]["name"]}
        metadata |= {"labels": labels, "annotations": {}, "ownerReferences": [_controller("Job", job)]}
        self.api.put(PODS, {"metadata": metadata, "spec": {}, "status": pod})

    def _deploy(self, deployment: Object) -> None:
        template, wanted = deployment["spec"]["template"], deployment["spec"]["replicas"]
        before = deployment.get("status") or {}
        bad = any("bad" in item["image"] for item in template["spec"]["containers"])
        observed = {"observedGeneration": deployment["metadata"]["generation"]}
        lacking = self._lacks_device(deployment)
        trouble = lacking or (PULL_FAILED if bad else self.held)
        beside = 0
        if trouble is None and self._waits_until_available(deployment):
            steps = deployment["spec"]["strategy"]["rollingUpdate"]
            updated, beside = max(steps["maxSurge"], steps["maxUnavailable"]), wanted - steps["maxUnavailable"]
            status = observed | _counts(total=beside + updated, updated=updated, ready=beside + updated)
            status |= {"availableReplicas": beside} | self._progressing("ReplicaSetUpdated", before)
            pods = [READY] * updated
        elif trouble is not None and (lacking or not self._serves(template)):
            serving = 0 if _in_place(deployment) else before.get("readyReplicas", 0)
            status = observed | _counts(total=serving + 1, updated=1, ready=serving)
            # It gives pods longer by as long as they must be Ready.
            longer = deployment["spec"].get("minReadySeconds")
            status |= self._progressing("ReplicaSetUpdated" if longer else "ProgressDeadlineExceeded", before)
            pods = [READY] * self.ready_beside + [trouble]
        else:
            status = observed | _counts(total=wanted, updated=wanted, ready=wanted)
            status |= self._progressing("NewReplicaSetAvailable", before)
            pods = [READY] * wanted
            self._served.add(template["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH])
        # Pods first: a Deployment's status counts pods that exist.
        self._pods(deployment, self._replica_set(deployment), pods, beside=beside)
        if status != before:
            self.api.put(DEPLOYMENTS, {**deployment, "status": status})

    def _waits_until_available(self, deployment: Object) -> bool:
        """Whether the first pods of the template are Ready, but not for `minReadySeconds` yet."""
        template, seconds = deployment["spec"]["template"], deployment["spec"].get("minReadySeconds", 0)
        name, spec_hash = (
            deployment["metadata"]["name"],
            template["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH],
        )
        if self._ready_since.get(name, ("", self.now))[0] != spec_hash:
            self._ready_since[name] = (spec_hash, self.now)
        if not self._served or self._serves(template):
            return False
        return self.now < self._ready_since[name][1] + timedelta(seconds=seconds)

    def _lacks_device(self, deployment: Object) -> Object | None:
        """Status of a pod that waits for the device of an earlier one, where pods are added before others end."""
        template = deployment["spec"]["template"]
        spec_hash = template["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
        earlier = [
            pod
            for pod in self.api.find(PODS)
            if pod["metadata"]["labels"].get(names.LABEL_SERVICE) == deployment["metadata"]["name"]
            and pod["metadata"]["annotations"].get(names.ANNOTATION_SPEC_HASH) != spec_hash
            and pod["spec"].get("nodeName")
        ]
        if not self.one_device or _in_place(deployment) or not earlier:
            self._unscheduled.pop(spec_hash, None)
            return None
        return self._unscheduled.setdefault(spec_hash, _unscheduled(self.no_device, timestamp(self.now)))

    def _serves(self, template: Object) -> bool:
        """Whether the template was rolled out before; pods of one that was are taken back as they are."""
        return template["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH] in self._served

    def _progressing(self, reason: str, before: Object) -> Object:
        found: Object = next((item for item in before.get("conditions") or () if item["type"] == "Progressing"), {})
        if found.get("reason") == reason:
            return {"conditions": [found]}
        moment = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"conditions": [{"type": "Progressing", "reason": reason, "lastUpdateTime": moment}]}

    def _replica_set(self, deployment: Object) -> Object:
        """The ReplicaSet of a Deployment's template; one that lost its Deployment is adopted."""
        template = deployment["spec"]["template"]
        spec_hash = template["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
        metadata = {
            "name": f"{deployment['metadata']['name']}-{spec_hash}",
            "namespace": NAMESPACE,
            "labels": template["metadata"]["labels"],
            "ownerReferences": [_controller("Deployment", deployment)],
        }
        found = self.api.objects.get((REPLICA_SETS.plural, NAMESPACE, metadata["name"]))
        if found is None or found["metadata"]["ownerReferences"] != metadata["ownerReferences"]:
            return self.api.put(REPLICA_SETS, {"metadata": metadata})
        return found

    def _pods(self, deployment: Object, replica_set: Object, statuses: list[Object], *, beside: int) -> None:
        """`beside`: pods of an earlier template that stay."""
        name, template = deployment["metadata"]["name"], deployment["spec"]["template"]
        spec_hash = template["metadata"]["annotations"][names.ANNOTATION_SPEC_HASH]
        wanted = {f"{name}-{spec_hash}-{number}": status for number, status in enumerate(statuses)}
        for pod in self.api.find(PODS):
            labels = pod["metadata"]["labels"]
            mine = labels.get(names.LABEL_SERVICE) == name and pod["metadata"].get("ownerReferences")
            mine = mine and names.LABEL_JOB not in labels
            # Surge first: what serves stays until all of the next template is Ready.
            waits = any(status != READY for status in statuses) and not _in_place(deployment)
            stays = waits and (_is_ready(pod) or self.one_device)
            gone = mine and pod["metadata"]["name"] not in wanted and not stays
            if gone and int(pod["metadata"]["name"].rpartition("-")[2]) >= beside:
                self.api.remove(PODS, pod["metadata"]["name"])
        for pod_name, status in wanted.items():
            metadata = {**template["metadata"], "name": pod_name, "namespace": NAMESPACE}
            metadata["ownerReferences"] = [_controller("ReplicaSet", replica_set)]
            body = {"metadata": metadata, "spec": {}, "status": status}
            if self.node and status == self.held:
                body["spec"] = {"nodeName": self.node}
                metadata["creationTimestamp"] = timestamp(self.now)
            if self.one_device:
                waits = status in self._unscheduled.values()
                body["spec"] = _with_device("" if waits else "node-1")
                metadata |= {"creationTimestamp": status["conditions"][0]["lastTransitionTime"]} if waits else {}
            known = self.api.objects.get((PODS.plural, NAMESPACE, pod_name), {"metadata": {}})
            if (known["metadata"].get("ownerReferences"), known.get("status")) != (metadata["ownerReferences"], status):
                self.api.put(PODS, copy.deepcopy(body))

    def _group(self, groups: Object) -> None:
        """As LeaderWorkerSets' controller: a StatefulSet of leaders, and one of each leader for the rest."""
        spec, name = groups["spec"], groups["metadata"]["name"]
        made, size = spec["leaderWorkerTemplate"], spec["leaderWorkerTemplate"]["size"]
        of_workers = made["workerTemplate"]
        template = made.get("leaderTemplate") or of_workers
        bad = any("bad" in item["image"] for item in template["spec"]["containers"])
        status = PULL_FAILED if bad else self.held or READY
        # Nothing of a worker is probed.
        probed = names.LABEL_WORKER not in of_workers["metadata"].get("labels", {})
        leaders = self._stateful_set(name, name, _controller("LeaderWorkerSet", groups))
        wanted: set[str] = set()
        for index in range(spec["replicas"]):
            wanted.add(f"{name}-{index}")
            leader = self._pod_of_group(f"{name}-{index}", (index, 0), template, status, leaders)
            if leader is None:
                continue
            others = self._stateful_set(name, f"{name}-{index}", _controller("Pod", leader))
            for worker in range(1, size):
                self._pod_of_group(
                    f"{name}-{index}-{worker}", (index, worker), of_workers, status if probed or bad else READY, others
                )
                wanted.add(f"{name}-{index}-{worker}")
        for pod in self.api.find(PODS):
            mine = pod["metadata"]["labels"].get(names.LABEL_GROUPS) == name
            if mine and pod["metadata"]["name"] not in wanted:
                self.api.remove(PODS, pod["metadata"]["name"])

    def _stateful_set(self, groups: str, name: str, owner: Object) -> Object:
        found = self.api.objects.get((STATEFUL_SETS.plural, NAMESPACE, name))
        if found is not None and found["metadata"]["ownerReferences"] == [owner]:
            return found
        labels = {names.LABEL_GROUPS: groups}
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
        return self.api.put(STATEFUL_SETS, {"metadata": metadata | {"creationTimestamp": timestamp(self.now)}})

    def _pod_of_group(
        self, name: str, place: tuple[int, int], template: Object, status: Object, owner: Object
    ) -> Object | None:
        """The pod of a StatefulSet; None where there is no room for it, which an event then says.

        `place`: its group, and its index in that.
        """
        of_group = {names.LABEL_GROUPS: owner["metadata"]["labels"][names.LABEL_GROUPS]}
        of_group |= {names.LABEL_GROUP_INDEX: str(place[0]), names.LABEL_WORKER_INDEX: str(place[1])}
        metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
        metadata["labels"] = template["metadata"]["labels"] | of_group
        metadata["ownerReferences"] = [_controller("StatefulSet", owner)]
        known = self.api.objects.get((PODS.plural, NAMESPACE, name))
        same = known is not None and known["metadata"]["annotations"] == metadata["annotations"]
        if known is not None and same and known["metadata"]["ownerReferences"] == metadata["ownerReferences"]:
            if known["status"] != status:
                return self.api.put(PODS, {**known, "status": copy.deepcopy(status)})
            return known
        if known is not None:
            self.api.remove(PODS, name)
        if not self._has_room(name, owner):
            return None
        return self.api.put(PODS, copy.deepcopy({"metadata": metadata, "spec": {}, "status": status}))

    def _has_room(self, name: str, owner: Object) -> bool:
        """Whether there is room for one more pod. Where room is short, its StatefulSet's events tell either way."""
        if self.room is None:
            return True
        there = [pod for pod in self.api.find(PODS) if names.LABEL_GROUPS in pod["metadata"]["labels"]]
        fits = len(there) < self.room
        came = "successful" if fits else f'failed error: pods "{name}" is forbidden: {self.no_room}'
        reason = "SuccessfulCreate" if fits else "FailedCreate"
        event = {
            "metadata": {"name": f"{name}.{reason}", "namespace": NAMESPACE},
            "involvedObject": {"kind": "StatefulSet", "uid": owner["metadata"]["uid"]},
            "reason": reason,
            "message": f"Create Pod {name} in StatefulSet {owner['metadata']['name']} {came}",
            "lastTimestamp": timestamp(self.now),
        }
        self.api.put(EVENTS, event)
        return fits

    def _front(self, front: Object) -> None:
        name = front["metadata"]["name"]
        ready = [
            {"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "uid": pod["metadata"]["uid"]}}
            for pod in self.api.find(PODS)
            if _is_ready(pod) and _serves(front, pod["metadata"]["labels"])
        ]
        metadata: Object = {
            "name": f"{name}-slice",
            "namespace": NAMESPACE,
            # The controller copies the labels of the Service.
            "labels": {**(front["metadata"].get("labels") or {}), "kubernetes.io/service-name": name},
            "ownerReferences": [{"kind": "Service", "name": name, "uid": front["metadata"]["uid"], "controller": True}],
        }
        body = {"metadata": metadata, "endpoints": ready}
        found = self.api.objects.get((ENDPOINT_SLICES.plural, NAMESPACE, metadata["name"]))
        if found is None or found["endpoints"] != body["endpoints"]:
            self.api.put(ENDPOINT_SLICES, body)

    def look(self, name: str = "chat") -> float | None:
        """One look of the operator at a service; returns in how many seconds it wants the next."""
        return asyncio.run(self.reconciler.reconcile(Key(NAMESPACE, name)))

    def snapshot(self, name: str = "chat") -> Snapshot:
        """What the operator sees of a service now."""
        reader = SnapshotReader(cast("KubeApi", self.api), self.config)
        seen = asyncio.run(reader.read(Key(NAMESPACE, name), now=self.now, epoch=Leading.epoch))
        assert seen is not None
        return seen.snapshot

    # What is expected

    def condition(self, kind: str, name: str = "chat") -> tuple[str, str]:
        """Status and reason of a condition."""
        status = self.api.one(INFERENCE_SERVICES, name).get("status", {})
        found = next(item for item in status["conditions"] if item["type"] == kind)
        return found["status"], found["reason"]

    def conditions(self, name: str = "chat") -> list[str]:
        """Types of all conditions there are."""
        return [item["type"] for item in self.api.one(INFERENCE_SERVICES, name)["status"]["conditions"]]

    def message(self, kind: str, name: str = "chat") -> str:
        """Message of a condition."""
        status = self.api.one(INFERENCE_SERVICES, name)["status"]
        return str(next(item["message"] for item in status["conditions"] if item["type"] == kind))

    def template(self, name: str = "chat") -> Object:
        """The pod template that the Deployment has."""
        return cast("Object", self.api.one(DEPLOYMENTS, name)["spec"]["template"])

    def image(self, name: str = "chat") -> str:
        """The engine image that the Deployment has."""
        return str(self.template(name)["spec"]["containers"][0]["image"])


def _unscheduled(message: str, since: str) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"conditions": [{**condition, "lastTransitionTime": since}]}


def _with_device(node: str) -> Object:
    container = {"name": "engine", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    return {"containers": [container], **({"nodeName": node} if node else {})}


def _in_place(deployment: Object) -> bool:
    """Whether pods end before others of the next template are Ready."""
    return bool(deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"])


def _serves(front: Object, labels: Object) -> bool:
    """Whether pods with these labels are the Service's, whatever else others have made of its selector."""
    leads = front["spec"]["selector"].get(names.LABEL_WORKER_INDEX)
    mine = labels.get(names.LABEL_SERVICE) == front["metadata"]["name"]
    return mine and leads in (None, labels.get(names.LABEL_WORKER_INDEX))


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _controller(kind: str, found: Object) -> Object:
    metadata = found["metadata"]
    return {"kind": kind, "name": metadata["name"], "uid": metadata["uid"], "controller": True}


def _counts(*, total: int, updated: int, ready: int) -> Object:
    return {"replicas": total, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready}
