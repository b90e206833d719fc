"""What engines say of the LoRA adapters of their pods, against what the spec asks for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flyball_engine.adapters import Adapter, AdapterReport, AdapterState
from flyball_operator.tuning.reasons import ConditionState, Reason

#: What a pod says: None where its engine follows no list.
Told = tuple[AdapterReport, ...] | None

#: So many adapters are named in one sentence.
_NAMED: Final = 3


def pending(wanted: Sequence[Adapter], told: Told) -> list[str]:
    """Names of adapters that a pod has yet to load or to unload; none where its engine follows no list."""
    if told is None:
        return []
    reports = {report.adapter: report for report in told}
    loading = [one.name for one in wanted if one not in reports or reports[one].state is AdapterState.LOADING]
    kept = {one.name for one in wanted}
    return [*loading, *(one.name for one in reports if one.name not in kept)]


def adapters_verdict(wanted: Sequence[Adapter], told: Mapping[str, Told], *, ready_pods: int) -> ConditionState:
    """Whether every Ready pod answers all adapters and no others. `told`: by name of the pods that were read."""
    if ready_pods == 0:
        return ConditionState("Unknown", Reason.NO_READY_PODS, "no pod is Ready")
    if (earlier := [pod for pod, reports in told.items() if reports is None]) and wanted:
        message = f"{earlier[0]}: its engine was started without adapters. A rollout replaces it: see Progressing"
        return ConditionState("False", Reason.ADAPTERS_UNSUPPORTED, f"{message}{_others(earlier)}")
    failed = [
        f"{report.adapter.name} in {pod}: {' '.join(report.message.split())}"
        for pod, reports in told.items()
        for report in reports or ()
        if report.state is AdapterState.FAILED and report.adapter in wanted
    ]
    if failed:
        again = "It is tried again, at least every 5 minutes"
        return ConditionState("False", Reason.ADAPTER_FAILED, f"{failed[0].rstrip('.')}. {again}{_others(failed)}")
    late = {pod: names for pod, reports in told.items() if (names := pending(wanted, reports))}
    if late or len(told) < ready_pods:
        which = "; ".join(f"{pod}: {', '.join(names[:_NAMED])}" for pod, names in list(late.items())[:_NAMED])
        message = f"yet to be loaded or unloaded: {which}" if which else "some pods were not read yet"
        return ConditionState(
            "Unknown", Reason.ADAPTERS_LOADING, f"{message}. A change of the list reaches a pod in about a minute"
        )
    number = "no adapter" if not wanted else "1 adapter" if len(wanted) == 1 else f"{len(wanted)} adapters"
    return ConditionState("True", Reason.ADAPTERS_LOADED, f"{number} in every Ready pod")


def _others(found: Sequence[str]) -> str:
    return f" ({len(found) - 1} more)" if len(found) > 1 else ""
