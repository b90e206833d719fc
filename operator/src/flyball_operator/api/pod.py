"""What may be added to the engine's pods, and Kubernetes' own structures in it: tolerations, affinity, resources.

The structures are typed dictionaries, so that the CRD states their shape (a misspelt field is refused, not dropped at
some later step) and the renderer gets plain JSON. Every list is bounded, as all of the API is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field
from typing_extensions import TypedDict

from flyball_operator.api import names
from flyball_operator.api.base import Check, Model, exactly_one
from flyball_operator.api.containers import Container, GroupId, InitContainer, OnlyFalse, OnlyTrue, Resources, UserId
from flyball_operator.api.rules import QUALIFIED, SUBDOMAIN, KeysMatch, MapKeyed, Matches, ObjectName, Rule, attribute
from flyball_operator.api.volumes import EngineVolumeMount, LabelName, LocalObjectReference, Volume

QualifiedKey = Annotated[str, Field(max_length=317)]
LabelText = Annotated[str, Field(max_length=63)]
MatchLabels = Annotated[dict[str, LabelText], Field(max_length=64)]
LabelValues = Annotated[list[LabelText], Field(max_length=64)]


class Toleration(TypedDict, total=False):
    """Lets the pods run on nodes with a matching taint."""

    key: QualifiedKey
    operator: Literal["Exists", "Equal"]
    value: LabelText
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    tolerationSeconds: Annotated[int, Field(ge=0, le=2**31 - 1)]


class NodeSelectorRequirement(TypedDict, total=False):
    """One requirement on a node's labels or fields."""

    key: QualifiedKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: LabelValues


Requirements = Annotated[list[NodeSelectorRequirement], Field(max_length=32)]


class NodeSelectorTerm(TypedDict, total=False):
    """Requirements that must all hold."""

    matchExpressions: Requirements
    matchFields: Requirements


class NodeSelector(TypedDict, total=False):
    """Terms of which one must hold."""

    nodeSelectorTerms: Annotated[list[NodeSelectorTerm], Field(max_length=32)]


class PreferredSchedulingTerm(TypedDict, total=False):
    """A preference and its weight."""

    weight: Annotated[int, Field(ge=1, le=100)]
    preference: NodeSelectorTerm


class NodeAffinity(TypedDict, total=False):
    """Which nodes the pods may or would rather run on."""

    requiredDuringSchedulingIgnoredDuringExecution: NodeSelector
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[PreferredSchedulingTerm], Field(max_length=32)]


class LabelSelectorRequirement(TypedDict, total=False):
    """One requirement on labels."""

    key: QualifiedKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: LabelValues


class LabelSelector(TypedDict, total=False):
    """Selects objects by their labels."""

    matchLabels: MatchLabels
    matchExpressions: Annotated[list[LabelSelectorRequirement], Field(max_length=32)]


class PodAffinityTerm(TypedDict, total=False):
    """Pods to be near to, or apart from, within one value of the topology key."""

    labelSelector: LabelSelector
    namespaceSelector: LabelSelector
    namespaces: Annotated[list[LabelText], Field(max_length=32)]
    topologyKey: QualifiedKey
    matchLabelKeys: Annotated[list[QualifiedKey], Field(max_length=16)]
    mismatchLabelKeys: Annotated[list[QualifiedKey], Field(max_length=16)]


class WeightedPodAffinityTerm(TypedDict, total=False):
    """A preference and its weight."""

    weight: Annotated[int, Field(ge=1, le=100)]
    podAffinityTerm: PodAffinityTerm


class PodAffinity(TypedDict, total=False):
    """Which pods the pods must or would rather be near to."""

    requiredDuringSchedulingIgnoredDuringExecution: Annotated[list[PodAffinityTerm], Field(max_length=32)]
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[WeightedPodAffinityTerm], Field(max_length=32)]


class PodAntiAffinity(TypedDict, total=False):
    """Which pods the pods must or would rather be apart from."""

    requiredDuringSchedulingIgnoredDuringExecution: Annotated[list[PodAffinityTerm], Field(max_length=32)]
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[WeightedPodAffinityTerm], Field(max_length=32)]


class Affinity(TypedDict, total=False):
    """Scheduling constraints of the pods, as in a pod."""

    nodeAffinity: NodeAffinity
    podAffinity: PodAffinity
    podAntiAffinity: PodAntiAffinity


_QUALIFIED_NAME: Final = rf"({SUBDOMAIN}/)?{QUALIFIED}"
_KEYS: Final = KeysMatch(
    _QUALIFIED_NAME, "has a key that is no qualified name: [domain/]name, of letters, digits, '-', '_' and '.'"
)
_LABEL_VALUE: Final = Matches(
    r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
    "must be a label value: at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
)
LabelMap = Annotated[dict[str, Annotated[LabelText, _LABEL_VALUE]], Field(max_length=64), _KEYS]
#: At least one: no labels choose everything.
ChosenLabels = Annotated[dict[str, Annotated[LabelText, _LABEL_VALUE]], Field(min_length=1, max_length=64), _KEYS]
AnnotationMap = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64), _KEYS]


class TopologySpreadConstraint(Model):
    """How evenly pods are spread over the values of a node label, as in a pod."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
                "goes with whenUnsatisfiable DoNotSchedule alone",
                ".minDomains",
            ),
            lambda one: one.min_domains is None or one.when_unsatisfiable == "DoNotSchedule",
        ),
    )

    max_skew: Annotated[int, Field(ge=1, le=10_000)]
    """Most pods that one value may have more than another."""
    topology_key: Annotated[QualifiedKey, Field(min_length=1)]
    """Label of nodes, such as `topology.kubernetes.io/zone`."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """DoNotSchedule: a pod that would exceed maxSkew waits. ScheduleAnyway: it is only a preference."""
    label_selector: LabelSelector | None = None
    """Pods that are counted. Default: those of this service."""
    match_label_keys: Annotated[tuple[QualifiedKey, ...], Field(max_length=16)] = ()
    """Labels that counted pods share with the new one. `pod-template-hash` counts each rollout alone. Default: none."""
    min_domains: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Least values of the label, of use with DoNotSchedule alone. Default: 1."""
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes that the affinity excludes are left out. Default: Honor."""
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    """Whether nodes with taints that pods do not tolerate are left out. Default: Ignore."""


class PodResourceClaim(Model):
    """A claim for devices by dynamic resource allocation; resources.claims of a container refer to it."""

    checks: ClassVar[tuple[Check, ...]] = (
        exactly_one("resourceClaimName", "resourceClaimTemplateName", noun="source"),
    )

    name: LabelName
    """Name of the claim in the pod, unique in the list."""
    resource_claim_name: ObjectName | None = None
    """A ResourceClaim of the service's namespace, which all replicas share."""
    resource_claim_template_name: ObjectName | None = None
    """A ResourceClaimTemplate of the service's namespace: each pod has a claim of its own."""


class PodSecurityContext(Model):
    """Whom the pods run as: never root."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!(has(self.runAsUser) || has(self.runAsGroup)) || !self.runAsAssignedUser",
                "must be false where runAsUser or runAsGroup is set: the platform assigns both, or none",
                ".runAsAssignedUser",
            ),
            lambda one: not one.run_as_assigned_user or (one.run_as_user, one.run_as_group) == (None, None),
        ),
    )

    run_as_user: UserId | None = None
    """User id, above 0. Default: 65532."""
    run_as_group: GroupId | None = None
    """Group id. Default: 65532."""
    run_as_assigned_user: bool = False
    """Leaves user and group out, for platforms that assign them, as OpenShift does. Elsewhere the image's user counts,
    which must have a number above 0. Default: false."""
    run_as_non_root: OnlyTrue = None
    """Only true, which is so anyway."""
    fs_group: GroupId | None = None
    """Group of files in volumes, which pods may then write. Default: as the volume has it."""
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """When the group of files is set. OnRootMismatch: if that of the volume's root differs. Default: Always."""
    supplemental_groups: Annotated[tuple[GroupId, ...], Field(max_length=16)] = ()
    """Further groups, such as those of the nodes' /dev/kfd and /dev/dri (`render`, `video`), which AMD and Intel need.
    Default: none."""


def _all_keys(field: str, condition: str) -> str:
    return f"!has(self.{field}) || self.{field}.all(key, {condition})"


def _mounted(containers: str) -> Check:
    """Mounts of these containers are of volumes that there are."""
    return Check(
        Rule(
            f"!has(self.{containers}) || self.{containers}.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m,"
            " has(self.volumes) && self.volumes.exists(v, v.name == m.name)))",
            "mounts a volume that spec.podTemplate.volumes does not have",
            f".{containers}",
        ),
        lambda pod: all(_within(one.volume_mounts, pod.volumes) for one in getattr(pod, attribute(containers))),
    )


def _claimed(containers: str) -> Check:
    """Claims of these containers are of the pod's."""
    return Check(
        Rule(
            f"!has(self.{containers}) || self.{containers}.all(c, !has(c.resources) || !has(c.resources.claims)"
            " || c.resources.claims.all(r, has(self.resourceClaims)"
            " && self.resourceClaims.exists(p, p.name == r.name)))",
            "uses a claim that spec.podTemplate.resourceClaims does not have",
            f".{containers}",
        ),
        lambda pod: all(
            _within(one.resources.claims, pod.resource_claims) for one in getattr(pod, attribute(containers))
        ),
    )


def _within(used: Iterable[Any], there: Iterable[Any]) -> bool:
    return {one.name for one in used} <= {one.name for one in there}


class PodTemplate(Model):
    """What may be added to the engine's pods: an allow-list (no host namespaces, host paths or privileges)."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                _all_keys("labels", f"!key.startsWith('{names.GROUP}/') && !key.startsWith('app.kubernetes.io/')"),
                f"may not hold labels under {names.GROUP}/ or app.kubernetes.io/: Flyball sets them",
                ".labels",
            ),
            lambda pod: not any(key.startswith((f"{names.GROUP}/", "app.kubernetes.io/")) for key in pod.labels),
        ),
        Check(
            Rule(
                _all_keys("annotations", f"!key.startsWith('{names.GROUP}/') && key != '{names.ANNOTATION_SCRAPE}'"),
                f"may not hold annotations under {names.GROUP}/, nor {names.ANNOTATION_SCRAPE}: Flyball sets them",
                ".annotations",
            ),
            lambda pod: (
                not any(key.startswith(f"{names.GROUP}/") or key == names.ANNOTATION_SCRAPE for key in pod.annotations)
            ),
        ),
        Check(
            Rule(
                "!has(self.volumeMounts) || self.volumeMounts.all(m,"
                " has(self.volumes) && self.volumes.exists(v, v.name == m.name))",
                "mounts a volume that spec.podTemplate.volumes does not have",
                ".volumeMounts",
            ),
            lambda pod: _within(pod.volume_mounts, pod.volumes),
        ),
        _mounted("containers"),
        _mounted("initContainers"),
        Check(
            Rule(
                "!has(self.resources) || !has(self.resources.claims) || self.resources.claims.all(r,"
                " has(self.resourceClaims) && self.resourceClaims.exists(p, p.name == r.name))",
                "uses a claim that spec.podTemplate.resourceClaims does not have",
                ".resources.claims",
            ),
            lambda pod: _within(pod.resources.claims, pod.resource_claims),
        ),
        _claimed("containers"),
        _claimed("initContainers"),
        Check(
            Rule(
                "!has(self.containers) || !has(self.initContainers)"
                " || self.containers.all(c, !self.initContainers.exists(i, i.name == c.name))",
                "has the name of one of containers: names are unique among both",
                ".initContainers",
            ),
            lambda pod: {one.name for one in pod.containers}.isdisjoint(one.name for one in pod.init_containers),
        ),
    )

    labels: LabelMap = Field(default_factory=dict)
    """Labels added to the pods. Default: none."""
    annotations: AnnotationMap = Field(default_factory=dict)
    """Annotations added to the pods. Default: none."""
    node_selector: LabelMap = Field(default_factory=dict)
    """Labels a node must have. Default: none."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints the pods tolerate, as in a pod. Default: none."""
    affinity: Affinity = Field(default_factory=Affinity)
    """Scheduling constraints, as in a pod. Default: none."""
    resources: Resources = Resources()
    """Requests, limits and claims of the engine container, without the accelerator. Default: none."""
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Field(max_length=16), MapKeyed("name")] = ()
    """Secrets to pull the images with, also that of an `oci://` model. Default: none."""
    priority_class_name: ObjectName | None = None
    """Priority class of the pods. Default: the cluster's."""
    runtime_class_name: ObjectName | None = None
    """Runtime class of the pods, such as `nvidia`. Default: the cluster's."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods; one that does not run leaves them Pending. Default: the cluster's."""
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], Field(max_length=8)] = ()
    """How evenly pods are spread over nodes or zones. Default: the cluster's."""
    security_context: PodSecurityContext = PodSecurityContext()
    """Whom the pods run as."""
    service_account_name: ObjectName | None = None
    """Service account of the pods. Default: `default`, without a token."""
    automount_service_account_token: bool = False
    """Whether containers get a token of the service account. Default: false."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16), MapKeyed("name")] = ()
    """Volumes beside Flyball's own. While an object that one names is missing, pods stay in ContainerCreating, and
    `kubectl describe pod` says which. Default: none."""
    volume_mounts: Annotated[tuple[EngineVolumeMount, ...], Field(max_length=16), MapKeyed("mountPath")] = ()
    """Where the engine sees them. Default: nowhere."""
    resource_claims: Annotated[tuple[PodResourceClaim, ...], Field(max_length=8), MapKeyed("name")] = ()
    """Claims for devices by dynamic resource allocation, in place of spec.accelerator. Default: none."""
    containers: Annotated[tuple[Container, ...], Field(max_length=8), MapKeyed("name")] = ()
    """Containers beside the engine. When a pod stops they are told to at once, while the engine still serves. A proxy
    that requests pass through belongs into initContainers, with restartPolicy Always. Default: none."""
    init_containers: Annotated[tuple[InitContainer, ...], Field(max_length=8), MapKeyed("name")] = ()
    """Containers that start before the engine, in this order, after Flyball's own. Default: none."""
    host_network: OnlyFalse = None
    """Only false: pods have a network of their own."""
    host_pid: Annotated[OnlyFalse, Field(alias="hostPID")] = None
    """Only false: pods see no process of the node."""
    host_ipc: Annotated[OnlyFalse, Field(alias="hostIPC")] = None
    """Only false: pods share no memory with the node."""
