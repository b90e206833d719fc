"""The InferenceService, `serving.flyball.dev/v1alpha1`, as pydantic models: the whole object and its names.

The CRD is generated from these models (`crd.py`), and the operator parses with them what it reads, as untrusted input
(`parse.py`). Shapes are for good: there is no conversion webhook, so every later change is additive. Pure.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from flyball_engine.contract import Metric
from flyball_operator.api import names
from flyball_operator.api.base import Check, Mode, Model, Order, Overload
from flyball_operator.api.containers import Resources, SecretKeyRef
from flyball_operator.api.gateway import EndpointPicker, FailureMode, Gateway, ParentReference
from flyball_operator.api.model_source import ModelCache, ModelSource
from flyball_operator.api.pod import PodTemplate
from flyball_operator.api.rollout import Canary, DisruptionBudget, Rollout
from flyball_operator.api.rules import Rule, matches
from flyball_operator.api.scaling import Scaling
from flyball_operator.api.service_spec import DEADLINES, InferenceServiceSpec
from flyball_operator.api.spec import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    DEFAULT_MIN_NUM_ACTIVE_SEQS,
    DEFAULT_MIN_NUM_SCHEDULED_TOKENS,
    Accelerator,
    Batching,
    Bounds,
    Engine,
    Objective,
    Parallelism,
    Range,
    RequestClass,
    Tuning,
)
from flyball_operator.api.status import (
    RECONCILER_CONDITIONS,
    TUNER_CONDITIONS,
    TUNER_FIELDS,
    AnalysisPhase,
    AnalysisStatus,
    CanaryStatus,
    ClassDeadline,
    Condition,
    ConditionType,
    DecisionStatus,
    InferenceServiceStatus,
    ObjectiveStatus,
    OrderStatus,
    RecommendedReplicas,
    ScalingStatus,
    SetpointStatus,
    SlowPodStatus,
    StepModelCoefficients,
    StepModelStatus,
    TuningStatus,
    WorkloadStatus,
)
from flyball_operator.api.strategies import LiveBatching, LiveQueue, QueuePolicy, Strategy
from flyball_operator.api.workload import Workload

__all__ = [
    "DEADLINES",
    "DEFAULT_MAX_NUM_BATCHED_TOKENS",
    "DEFAULT_MAX_NUM_SEQS",
    "DEFAULT_MIN_NUM_ACTIVE_SEQS",
    "DEFAULT_MIN_NUM_SCHEDULED_TOKENS",
    "RECONCILER_CONDITIONS",
    "TUNER_CONDITIONS",
    "TUNER_FIELDS",
    "Accelerator",
    "AnalysisPhase",
    "AnalysisStatus",
    "Batching",
    "Bounds",
    "Canary",
    "CanaryStatus",
    "ClassDeadline",
    "Condition",
    "ConditionType",
    "DecisionStatus",
    "DisruptionBudget",
    "EndpointPicker",
    "Engine",
    "FailureMode",
    "Gateway",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "LiveBatching",
    "LiveQueue",
    "Metric",
    "Mode",
    "Model",
    "ModelCache",
    "ModelSource",
    "ObjectMeta",
    "Objective",
    "ObjectiveStatus",
    "Order",
    "OrderStatus",
    "Overload",
    "Parallelism",
    "ParentReference",
    "PodTemplate",
    "QueuePolicy",
    "Range",
    "RecommendedReplicas",
    "RequestClass",
    "Resources",
    "Rollout",
    "Scaling",
    "ScalingStatus",
    "SecretKeyRef",
    "SetpointStatus",
    "SlowPodStatus",
    "StepModelCoefficients",
    "StepModelStatus",
    "Strategy",
    "Tuning",
    "TuningStatus",
    "Workload",
    "WorkloadStatus",
]


class ObjectMeta(Model):
    """The part of an object's metadata that decisions need."""

    name: str
    """Name of the object."""
    namespace: str
    """Its namespace."""
    uid: str
    """Identity: a re-created object of the same name has another."""
    generation: int = 0
    """Number of the spec."""
    resource_version: str = ""
    """Version of the object as stored."""
    deletion_timestamp: str | None = None
    """When deletion was asked for."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""


_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_NAME_MESSAGE = (
    f"must be a DNS label that begins with a letter, of at most {names.NAME_MAX_LENGTH} characters:"
    " the Service and the pods are named after it"
)


def _never_smaller(path: str) -> Rule:
    """The API server refuses a leader that was replaced; removing the field counts as smaller."""
    parts = path.split(".")
    present = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    had = " && ".join(f"has(oldSelf.{part})" for part in present)
    has = " && ".join(f"has(self.{part})" for part in present)
    return Rule(
        f"!({had}) || ({has} && self.{path} >= oldSelf.{path})",
        "may not become smaller or go away: a newer leader has written here",
        f".{path}",
    )


class InferenceService(Model):
    """A model, its hardware and its latency objectives: Flyball runs vLLM for it and keeps its batch limits tuned."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                f"self.metadata.name.size() <= {names.NAME_MAX_LENGTH} && {matches('self.metadata.name', _NAME)}",
                _NAME_MESSAGE,
                ".metadata.name",
            ),
            lambda service: (
                len(service.metadata.name) <= names.NAME_MAX_LENGTH
                and re.fullmatch(_NAME, service.metadata.name) is not None
            ),
        ),
        Check(
            Rule(
                "!has(self.spec.adapters) || !has(self.spec.model)"
                " || !self.spec.adapters.exists(a, a.name == self.spec.model.?servedName.orValue(self.metadata.name))",
                "may not hold the model's own name (spec.model.servedName, by default metadata.name): requests could"
                " not say which of the two they mean",
                ".spec.adapters",
            ),
            lambda service: (
                service.spec.served_model is None
                or all(
                    adapter.name != (service.spec.served_model.served_name or service.metadata.name)
                    for adapter in service.spec.adapters or ()
                )
            ),
        ),
    )
    #: Rules on an update, which a single object cannot break.
    transitions: ClassVar[tuple[Rule, ...]] = (
        _never_smaller("status.epoch"),
        _never_smaller("status.tuning.epoch"),
        Rule(
            "has(self.spec.workload) == has(oldSelf.spec.workload)",
            "may not be added or removed. Make a service of another name",
            ".spec.workload",
        ),
        Rule(
            "self.spec.parallelism.nodes == oldSelf.spec.parallelism.nodes",
            "may not change: a template that is kept is for as many nodes. Make a service of another name",
            ".spec.parallelism.nodes",
        ),
        Rule(
            "self.spec.parallelism.nodes == 1"
            " || (self.spec.parallelism.data == 1) == (oldSelf.spec.parallelism.data == 1)",
            "may not change from or to 1 where spec.parallelism.nodes is above 1: other pods of a group would serve."
            " Make a service of another name",
            ".spec.parallelism.data",
        ),
    )

    metadata: ObjectMeta
    """Standard metadata."""
    spec: InferenceServiceSpec
    """What the user wants."""
    status: InferenceServiceStatus = InferenceServiceStatus()
    """What is, written by the operator."""
