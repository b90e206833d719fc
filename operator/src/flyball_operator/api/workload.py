"""Pods that others make and replace: which of a namespace's pods a service tunes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from flyball_engine.contract import CONTROL_PORT
from flyball_operator.api.base import Model
from flyball_operator.api.pod import ChosenLabels
from flyball_operator.api.volumes import LabelName


class WorkloadSelector(Model):
    """Which pods of the service's namespace are meant."""

    match_labels: ChosenLabels
    """Labels that a pod must have, all of them, such as {app: llm}; nothing else chooses pods."""


class Workload(Model):
    """Pods that others make, such as those of a Deployment, of a StatefulSet, of KServe or of llm-d."""

    selector: WorkloadSelector
    """Which pods these are, by `selector.matchLabels` alone. No name of a Deployment is accepted, and no
    `matchExpressions`. Only those are tuned that have the label `serving.flyball.dev/service` with this object's
    name, too, and whose vLLM was started with Flyball's plugin for it. The condition Ready names the others."""

    container: LabelName | None = None
    """Name of the container that vLLM runs in, such as KServe's `main`. Default: the first one of the pod."""
    control_port: Annotated[int, Field(ge=1, le=65_535)] = CONTROL_PORT
    """Port of the plugin in new pods. Choose another one where 8001 is taken, as in KServe's pods that decode. Default:
    8001."""

    @property
    def text(self) -> str:
        """The selector, as the API server takes it."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.selector.match_labels.items()))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is meant."""
        return self.selector.match_labels.items() <= labels.items()
