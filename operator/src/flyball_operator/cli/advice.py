"""What to do about each reason of a condition, in a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flyball_operator.api import names
from flyball_operator.reconcile.plan.acceptance import AcceptedReason
from flyball_operator.reconcile.plan.adoption import OutdatedReason
from flyball_operator.reconcile.plan.cause import CauseReason
from flyball_operator.reconcile.plan.model_reasons import ModelReason
from flyball_operator.reconcile.plan.routing import RoutedReason
from flyball_operator.reconcile.plan.status import ReconcileReason
from flyball_operator.reconcile.plan.unwatched import NAMESPACE_NOT_WATCHED
from flyball_operator.tuning.observe.signals import Missing
from flyball_operator.tuning.reasons import Reason
from flyball_operator.tuning.replicas import ScalingLimit
from flyball_operator.tuning.report.scaling_report import ScalingReason

_FOLLOW: Final = "Follow the message."
_WAIT: Final = "Wait: it goes on by itself."
_POD_LOG: Final = "Read the log of the container that ended: kubectl logs POD --previous."
_OPERATOR_LOG: Final = "Read the operator's log."
_SCRAPING: Final = "Look at the targets in Prometheus, and at NetworkPolicies; flyball doctor checks the scraping."


#: Reasons that ask nothing of anybody are not here.
ADVICE: Final[Mapping[str, str]] = {
    AcceptedReason.UNKNOWN_ANNOTATION: "Correct or remove the annotation.",
    AcceptedReason.INVALID_SPEC: "Correct the field that the message names.",
    AcceptedReason.NAME_CONFLICT: "Remove the other object, or give this service another name.",
    AcceptedReason.EARLIER_SERVICE_LEAVING: _WAIT,
    AcceptedReason.LEADER_WORKER_SET_MISSING: "Install LeaderWorkerSet (https://lws.sigs.k8s.io), or grant the right.",
    AcceptedReason.REFUSED: "Mend the field, quota or right that the message names.",
    AcceptedReason.CHANGED_BY_OTHERS: "Exempt the object from whoever changes it, or take the value into the spec.",
    AcceptedReason.OPERATOR_MISCONFIGURED: "Set plugin.image and signingKey in the chart's values.",
    NAMESPACE_NOT_WATCHED: "Let the operator watch this namespace: its list of namespaces, labels and rights.",
    ReconcileReason.ROLLING_OUT: _WAIT,
    ReconcileReason.CANARY_ANALYSIS: _WAIT,
    ReconcileReason.CANARY_NOT_JUDGED: "See the message: mend scraping, or compare the new pods with the earlier ones.",
    ReconcileReason.REPLACING_IN_PLACE: _WAIT,
    ReconcileReason.ROLLED_BACK: "Correct the spec: another pod template is tried, the same one is not.",
    ReconcileReason.EARLIER_REVISION_SERVES: "Mend what keeps the new pods from serving.",
    ReconcileReason.NO_READY_ENDPOINT: "Wait for the engine to start, then look at its pods: kubectl get pods.",
    ReconcileReason.REPLICAS_NOT_READY: _WAIT,
    ReconcileReason.PLUGIN_MISSING: "Install the plugin by a label on the pod template, and restart the pods.",
    OutdatedReason.ADOPT_BY_ANNOTATION: f"To replace the pods, set the annotation {names.ANNOTATION_ADOPT} anew.",
    OutdatedReason.OTHER_SETTINGS: f"Give both releases the same settings, or set {names.ANNOTATION_ADOPT} anew.",
    OutdatedReason.MADE_BY_NEWER_OPERATOR: f"End the upgrade; to go back, set {names.ANNOTATION_ADOPT} anew.",
    OutdatedReason.ADOPTION_STOPPED: "Mend the service that the message names.",
    OutdatedReason.ADOPTION_FAILED: f"Mend the cause, then set the annotation {names.ANNOTATION_ADOPT} anew.",
    CauseReason.ARGUMENT_REFUSED: "Correct the argument in spec.engine.args.",
    CauseReason.CONFIG_MISSING: "Create the Secret, key, claim or volume that the message names.",
    CauseReason.INVALID_IMAGE_NAME: "Correct the image in spec.engine.image.",
    CauseReason.IMAGE_PULL_FAILED: "Check the image and spec.podTemplate.imagePullSecrets.",
    CauseReason.OUT_OF_MEMORY: "Raise the memory limit.",
    CauseReason.ENGINE_FAILED: _POD_LOG,
    CauseReason.CONTAINER_FAILED: _POD_LOG,
    CauseReason.CONTAINER_NOT_STARTED: "Check the container's image and command.",
    CauseReason.PODS_REFUSED: _FOLLOW,
    CauseReason.NOT_READY_IN_TIME: "Read the engine's log, or raise spec.rollout.startupTimeout.",
    CauseReason.CANARY_MISSED_OBJECTIVES: "Compare the logs and metrics of pods of both revisions.",
    CauseReason.QUOTA_EXCEEDED: "Raise the quota, or free what it counts.",
    CauseReason.WEBHOOK_UNAVAILABLE: "Repair the webhook.",
    CauseReason.REGISTRY_UNAVAILABLE: "Check the registry, DNS and the image's host.",
    CauseReason.VOLUME_UNAVAILABLE: "Free the volume where it is held.",
    CauseReason.NODE_UNAVAILABLE: "Look at the node.",
    CauseReason.UNSCHEDULABLE: "Add a node that fits, or free devices.",
    ModelReason.DOWNLOADING: _WAIT,
    ModelReason.DOWNLOAD_PENDING: "Mend what keeps the Job's pod from running; the message names it.",
    ModelReason.DOWNLOAD_REFUSED: "Mend the quota, policy or right that the message names; the Job is asked for again.",
    ModelReason.CLAIM_NOT_FOUND: "Create the claim of spec.model.cache.claimName; the download waits.",
    ModelReason.CLAIM_PENDING: "See why the claim has no volume: kubectl describe pvc.",
    ModelReason.STORAGE_CLASS_NOT_FOUND: "Correct storageClassName and delete the claim, or make the StorageClass.",
    ModelReason.CLAIM_CONFLICT: "Name the claim in spec.model.cache.claimName, or remove it.",
    ModelReason.CLAIM_DIFFERS: "Ask for what the message accepts, or delete the claim: another is made.",
    ModelReason.CLAIM_REFUSED: "Mend the quota or size that the message names; the claim is asked for again.",
    ModelReason.CLAIM_BEING_DELETED: "End the pods that use the claim; then another is made.",
    ModelReason.CLAIM_LOST: "Delete the claim: another is made, and the model is downloaded anew.",
    ModelReason.REVISION_NOT_FOUND: "Correct spec.model.cache.revision.",
    ModelReason.MODEL_NOT_FOUND: "Correct spec.model.uri.",
    ModelReason.MODEL_ACCESS_DENIED: "Mend the Secret that spec.model names, then delete the Job.",
    ModelReason.CHECKSUM_MISMATCH: "Wait: it is tried again. If it stays, look at proxies and mirrors.",
    ModelReason.VOLUME_FULL: "Enlarge the claim, by spec.model.cache.claim.size or yourself, then delete the Job.",
    ModelReason.CLIENT_MISSING: "Use an engine image with boto3, such as an official one, then delete the Job.",
    ModelReason.HUB_UNREACHABLE: (
        "Wait: it is tried again. Look at HF_ENDPOINT or spec.model.s3.endpoint, proxies and NetworkPolicies."
    ),
    ModelReason.LOCK_TIMEOUT: "Wait: it is tried again. Or end the other download into the folder.",
    ModelReason.DOWNLOAD_FAILED: "Wait: it is tried again. Or mend what the message says.",
    RoutedReason.ROUTE_PENDING: "Wait, then look at the Gateway and its controller.",
    RoutedReason.REFUSED_BY_GATEWAY: "Mend what the message names, at the Gateway or in spec.gateway.",
    RoutedReason.GATEWAY_API_MISSING: "Install the CRDs that the message names.",
    Missing.UNREACHABLE: "Check the operator's prometheus.url, and whether Prometheus runs.",
    Missing.UNAUTHORIZED: "Set or renew the operator's credentials for Prometheus.",
    Missing.FORBIDDEN: "Let the operator's account read metrics.",
    Missing.TLS_FAILED: _FOLLOW,
    Missing.REDIRECTED: "Set credentials, or the address that answers.",
    Missing.UNUSABLE_FILE: "Correct the mounted file.",
    Missing.TIMED_OUT: "Check the load of Prometheus and the network.",
    Missing.BAD_ANSWER: "Check the operator's prometheus.url.",
    Missing.NOT_SCRAPED: _SCRAPING,
    Missing.STALE: _SCRAPING,
    Missing.PARTIAL: _SCRAPING,
    Missing.TOO_FEW_SAMPLES: _WAIT,
    Reason.SCRAPED_TWICE: "Switch one of the two scrape jobs off.",
    Reason.LEARNING: "Send traffic of different sizes: the model is learnt from steps that differ.",
    Reason.RECOMMEND_ONLY: "To let the operator apply what it recommends, set spec.tuning.mode: Auto.",
    Reason.NOT_DECIDING: _FOLLOW,
    Reason.LOOP_STALLED: _OPERATOR_LOG,
    Reason.PAUSED: "When you are done: flyball resume {name} -n {namespace}.",
    Reason.PAUSE_UNCLEAR: "Pause it again (flyball pause {name} -n {namespace}), or resume it (flyball resume).",
    Reason.PUSHING: _WAIT,
    Reason.ONE_POD_FIRST: _WAIT,
    Reason.PUSH_FAILED: "Read the message; of a refused token, run flyball doctor.",
    Reason.UNREACHABLE: "Check the control port of the pods (`control`, usually 8001), and NetworkPolicies.",
    Reason.UNGOVERNED: "Read the pod's log: it says why the plugin could not load.",
    Reason.WATCHDOG_TRIPPED: "Report it, with flyball support-bundle; the start values are back.",
    Reason.ADMISSION_STUCK: "If it stays for 5 minutes, delete the pod that the message names.",
    Reason.UNSUPPORTED: "Use a vLLM version that can, or remove from spec.tuning what the message names.",
    Reason.FENCED: "Look for a second operator.",
    Reason.UNEXPLAINED: "If it stays, delete the pod that the message names.",
    Reason.NOT_TUNED: "See why it is not governed, accepted or watched: flyball doctor.",
    Reason.VIOLATED: "Wait for the limits to follow; if it stays, raise the threshold or add pods.",
    Reason.OVERLOADED: "Scale to status.desiredReplicas{desired}.",
    Reason.INFEASIBLE: "Raise the threshold, or use a faster accelerator or a smaller model.",
    Reason.ADAPTERS_LOADING: _WAIT,
    Reason.ADAPTER_FAILED: _FOLLOW,
    Reason.ADAPTERS_UNSUPPORTED: _FOLLOW,
    Reason.ADAPTERS_UNLISTED: "If it stays for 5 minutes, see why the ConfigMap is not made: the condition Accepted.",
    ScalingLimit.AT_MAXIMUM: "Raise spec.scaling.maxReplicas, or a threshold.",
    ScalingLimit.GROWTH_LIMITED: _WAIT,
    ScalingReason.ROLLOUT_UNDER_WAY: _WAIT,
    ScalingReason.NO_CAPACITY_ESTIMATE: "Mend what CapacitySufficient says: replicas stay as they are until then.",
}


def advice(reason: str, *, name: str, namespace: str, desired: str = "") -> str:
    """What to do about a reason that this service gives; empty where nothing is. `desired`: how many pods, if known."""
    text = ADVICE.get(reason, "")
    for field, value in (("name", name), ("namespace", namespace), ("desired", desired)):
        text = text.replace(f"{{{field}}}", value)
    return text
