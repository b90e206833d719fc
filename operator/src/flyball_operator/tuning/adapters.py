"""What engines say of the LoRA adapters of their pods, against what the spec asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.adapters import Adapter, AdapterReport, AdapterState
from flyball_engine.contract import ReadBack
from flyball_operator.api import names
from flyball_operator.tuning.reasons import ConditionState, Reason

#: So many adapters are named in one sentence.
_NAMED: Final = 3


@dataclass(frozen=True)
class Told:
    """What a pod says. `reports`: None where its engine follows no list; `listed`: whether that list is there."""

    reports: tuple[AdapterReport, ...] | None
    listed: bool = True
    plugin_version: str = ""


def told(read: ReadBack) -> Told:
    """What a pod's read-back says of adapters."""
    return Told(read.adapters, read.adapters_listed, read.plugin_version)


def pending(wanted: Sequence[Adapter], pod: Told) -> list[str]:
    """Names of adapters that a pod has yet to load or to unload; none where its engine follows no list."""
    if pod.reports is None:
        return []
    reports = {report.adapter: report for report in pod.reports}
    loading = [one.name for one in wanted if one not in reports or reports[one].state is AdapterState.LOADING]
    kept = {one.name for one in wanted}
    return [*loading, *(one.name for one in reports if one.name not in kept)]


def adapters_verdict(
    wanted: Sequence[Adapter], pods: Mapping[str, Told], *, ready_pods: int, rolled_out: bool
) -> ConditionState:
    """Whether every Ready pod answers all adapters and no others.

    `pods`: those that were read, by name. `rolled_out`: whether all pods have the template asked for.
    """
    if ready_pods == 0:
        return ConditionState("Unknown", Reason.NO_READY_PODS, "no pod is Ready")
    if (earlier := [pod for pod, found in pods.items() if found.reports is None]) and wanted:
        message = _unsupported(earlier[0], pods[earlier[0]], rolled_out=rolled_out)
        return ConditionState("False", Reason.ADAPTERS_UNSUPPORTED, f"{message}{_others(earlier)}")
    if unlisted := [pod for pod, found in pods.items() if not found.listed]:
        message = (
            f"{unlisted[0]}: the list of adapters is not there. Its ConfigMap was deleted, and the operator makes it"
            " again: see Accepted if it does not. Meanwhile a new pod answers no adapter"
        )
        return ConditionState("False", Reason.ADAPTERS_UNLISTED, f"{message}{_others(unlisted)}")
    failed = [
        f"{report.adapter.name} in {pod}: {' '.join(report.message.split())}"
        for pod, found in pods.items()
        for report in found.reports or ()
        if report.state is AdapterState.FAILED and report.adapter in wanted
    ]
    if failed:
        again = "It is tried again, at least every 5 minutes"
        return ConditionState("False", Reason.ADAPTER_FAILED, f"{failed[0].rstrip('.')}. {again}{_others(failed)}")
    late = {pod: missing for pod, found in pods.items() if (missing := pending(wanted, found))}
    if late or len(pods) < ready_pods:
        which = "; ".join(f"{pod}: {', '.join(missing[:_NAMED])}" for pod, missing in list(late.items())[:_NAMED])
        message = f"yet to be loaded or unloaded: {which}" if which else "some pods were not read yet"
        return ConditionState(
            "Unknown", Reason.ADAPTERS_LOADING, f"{message}. A change of the list reaches a pod in about a minute"
        )
    number = "no adapter" if not wanted else "1 adapter" if len(wanted) == 1 else f"{len(wanted)} adapters"
    return ConditionState("True", Reason.ADAPTERS_LOADED, f"{number} in every Ready pod")


def _unsupported(pod: str, found: Told, *, rolled_out: bool) -> str:
    if not rolled_out:
        return f"{pod}: its engine was started without adapters. A rollout replaces it: see Progressing"
    return (
        f"{pod}: its plugin {found.plugin_version} cannot load adapters, and the pod has the template asked for. To"
        f" replace the pods with this operator's plugin, set the annotation {names.ANNOTATION_ADOPT} to a new value"
    )


def _others(found: Sequence[str]) -> str:
    return f" ({len(found) - 1} more)" if len(found) > 1 else ""
