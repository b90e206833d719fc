"""What may be added to the engine's pods, and Kubernetes' own structures in it: tolerations, affinity, resources.

The structures are typed dictionaries, so that the CRD states their shape (a misspelt field is refused, not dropped at
some later step) and the renderer gets plain JSON. Every list is bounded, as all of the API is. Pure.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field
from typing_extensions import TypedDict

from flyball_operator.api import names
from flyball_operator.api.base import Check, Model
from flyball_operator.api.quantities import EnoughBytes, ReadsAsQuantity
from flyball_operator.api.rules import QUALIFIED, SUBDOMAIN, KeysMatch, MapKeyed, Matches, ObjectName, Rule

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
AnnotationMap = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=64), _KEYS]
Quantity = Annotated[int | str, ReadsAsQuantity()]
ResourceMap = Annotated[
    dict[str, Quantity], Field(max_length=16), EnoughBytes("memory"), EnoughBytes("ephemeral-storage")
]


class Resources(Model):
    """Requests and limits of the engine container, as in a pod."""

    requests: ResourceMap = Field(default_factory=dict)
    """Amounts that the scheduler sets aside."""
    limits: ResourceMap = Field(default_factory=dict)
    """Amounts that the container may not exceed."""


class LocalObjectReference(Model):
    """Name of an object in the service's namespace."""

    name: ObjectName
    """Name of the object."""


def _all_keys(field: str, condition: str) -> str:
    return f"!has(self.{field}) || self.{field}.all(key, {condition})"


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
    """Requests and limits of the engine container, without the accelerator. Default: none."""
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], Field(max_length=16), MapKeyed("name")] = ()
    """Secrets to pull the images with. Default: none."""
    priority_class_name: ObjectName | None = None
    """Priority class of the pods. Default: the cluster's."""
    runtime_class_name: ObjectName | None = None
    """Runtime class of the pods, such as `nvidia`. Default: the cluster's."""
