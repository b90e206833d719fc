"""Every name that others see, defined once: group, kinds, labels, annotations, field managers, containers, ports.

Pure; imports nothing of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

GROUP: Final = "serving.flyball.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SINGULAR: Final = "inferenceservice"
#: Not `isvc`, which is KServe's.
SHORT_NAMES: Final = ("fisvc",)
CRD_NAME: Final = f"{PLURAL}.{GROUP}"

#: Owned names derive from the service's name; 46 leaves room for the suffixes of ReplicaSets and pods.
NAME_MAX_LENGTH: Final = 46

MANAGED_BY: Final = "flyball"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_SERVICE: Final = f"{GROUP}/service"
#: In every selector, so that pods orphaned by an earlier service of the same name are never served or tuned.
LABEL_SERVICE_UID: Final = f"{GROUP}/service-uid"

#: Which StatefulSets and pods are a LeaderWorkerSet's, by its name, and of which group. Its controller sets them.
LABEL_GROUPS: Final = "leaderworkerset.sigs.k8s.io/name"
LABEL_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"
#: Which pod of its group a pod is; the first leads it.
LABEL_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LEADER_INDEX: Final = "0"
#: On workers, pods of a group with parts of its leader's engine core. They serve nobody, and have no control port.
LABEL_WORKER: Final = f"{GROUP}/worker"

#: Which pods are a Job's, by its name; Kubernetes sets it.
LABEL_JOB: Final = "batch.kubernetes.io/job-name"

ANNOTATION_SCRAPE: Final = "prometheus.io/scrape"
#: Of the same jobs: which port and scheme they use, for each of a pod's ports alike.
ANNOTATION_SCRAPE_PORT: Final = "prometheus.io/port"
ANNOTATION_SCRAPE_SCHEME: Final = "prometheus.io/scheme"
#: On the pod template: `https`, where the OpenAI port speaks TLS. Absent, it speaks HTTP.
ANNOTATION_SCHEME: Final = f"{GROUP}/scheme"
#: On the pod template and the ControllerRevision: hash of the spec fields whose change must roll pods.
ANNOTATION_SPEC_HASH: Final = f"{GROUP}/spec-hash"
#: Version of the operator that rendered a revision's template.
ANNOTATION_RENDERED_BY: Final = f"{GROUP}/rendered-by"
#: On the pod template: hash of the renderer's output, to see that a newer operator would render otherwise.
ANNOTATION_TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
#: On the InferenceService, any new value: re-render the pod template with this operator's renderer (rolls pods).
ANNOTATION_ADOPT: Final = f"{GROUP}/adopt"
#: On the InferenceService, `Paused`: its engines keep their setpoint. An annotation, since one command sets
#: it, whoever owns the spec, and no pipeline that applies the spec takes it back.
ANNOTATION_TUNING: Final = f"{GROUP}/tuning"
TUNING_PAUSED: Final = "Paused"
#: Beside it, why, in a person's words. It pauses nothing by itself.
ANNOTATION_TUNING_REASON: Final = f"{GROUP}/tuning-reason"
#: What users may annotate an InferenceService with, of the keys under our group.
USER_ANNOTATIONS: Final = (ANNOTATION_ADOPT, ANNOTATION_TUNING, ANNOTATION_TUNING_REASON)
#: On owned objects: hash of the intent last applied, to skip calls that would change nothing.
ANNOTATION_INTENT: Final = f"{GROUP}/intent"
#: On the Deployment: what became of pod templates (see `reconcile.plan.history`).
ANNOTATION_ASKED: Final = f"{GROUP}/asked"
ANNOTATION_GOOD: Final = f"{GROUP}/good"
ANNOTATION_FAILED: Final = f"{GROUP}/failed"
ANNOTATION_SHORTAGE: Final = f"{GROUP}/shortage"
ANNOTATION_ADOPTED: Final = f"{GROUP}/adopted"
ANNOTATION_REFUSED: Final = f"{GROUP}/refused"
ANNOTATION_IN_PLACE: Final = f"{GROUP}/in-place"
ANNOTATION_PROMOTED: Final = f"{GROUP}/promoted"
ANNOTATION_SERVED: Final = f"{GROUP}/served"
#: On Leases of the election: how many shards are in force, and since which epoch (see `kube.shares`). Not on one of a
#: release that never had more than one.
ANNOTATION_SHARDS: Final = f"{GROUP}/shards"
#: On that of the first shard: the highest epoch of any shard.
ANNOTATION_HIGHEST_EPOCH: Final = f"{GROUP}/highest-epoch"
#: Who asks for the shard. An annotation: without a feature gate, the API server drops the field `preferredHolder`.
ANNOTATION_PREFERRED_HOLDER: Final = f"{GROUP}/preferred-holder"
#: On the CRD: hash of the schema, compared by the start check.
ANNOTATION_SCHEMA_HASH: Final = f"{GROUP}/schema-hash"

#: Field managers, one per client of ours; also the suffix of the user agent, so the audit log tells them apart.
MANAGER_RECONCILER: Final = "flyball-reconciler"
MANAGER_TUNER: Final = "flyball-tuner"
MANAGER_KEYS: Final = "flyball-keys"
MANAGER_ELECTION: Final = "flyball-election"
MANAGER_LEASES: Final = "flyball-namespaces"
MANAGER_READER: Final = "flyball-reader"

#: The ConfigMap of public keys that engines accept, in each namespace of services, and its key. It need not exist.
PUBLIC_KEYS: Final = "flyball-public-keys"
PUBLIC_KEYS_KEY: Final = "public-keys.pem"

#: The Lease in each namespace of services that names the release which looks after it. Releases have no such name, so
#: it is nobody's election.
NAMESPACE_LEASE: Final = f"namespace.{GROUP}"

#: Ends the name of the PersistentVolumeClaim that is made for a service's model; its beginning is the service's name.
CLAIM_SUFFIX: Final = "-model"

#: The same of the ConfigMap with its LoRA adapters.
ADAPTERS_SUFFIX: Final = "-adapters"

CONTAINER_ENGINE: Final = "engine"
CONTAINER_PLUGIN: Final = "flyball-plugin"
VOLUME_MODEL: Final = "model"
CONTAINER_DOWNLOAD: Final = "download"
PORT_HTTP: Final = "http"
PORT_CONTROL: Final = "control"

#: Where a pod with a service account finds its namespace.
OWN_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
