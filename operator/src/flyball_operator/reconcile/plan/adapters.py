"""The ConfigMap that brings the list of LoRA adapters to pods: the kubelet keeps their copy current.

So a change of the list changes no pod, and a pod that starts needs no operator. It is made for services with
`spec.adapters`, and stays where that is removed: pods of the earlier template read it. Pure.
"""

from __future__ import annotations

from flyball_engine.adapters import ADAPTERS_KEY, AdapterList
from flyball_operator.api import names
from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.reconcile.plan.model_reasons import one_line
from flyball_operator.reconcile.plan.owned_objects import owned
from flyball_operator.reconcile.plan.snapshot import Snapshot


def config_map_name(service: str) -> str:
    """Its name, by that of the service."""
    return f"{service}{names.ADAPTERS_SUFFIX}"


def render(service: InferenceService) -> Object | None:
    """The ConfigMap, None where the spec names no list."""
    if service.spec.adapters is None:
        return None
    wanted = AdapterList(adapters=tuple(adapter.contract for adapter in service.spec.adapters))
    meta = service.metadata
    return owned(Kind.CONFIG_MAP, meta, name=config_map_name(meta.name), data={ADAPTERS_KEY: wanted.model_dump_json()})


def refusal(snapshot: Snapshot) -> str:
    """Why the list does not reach pods, and what to do; empty where the API server refuses nothing."""
    words = snapshot.adapters_refused or snapshot.unreadable.get(Kind.CONFIG_MAP)
    if not words:
        return ""
    meta = snapshot.desire.meta
    return (
        f"ConfigMap {config_map_name(meta.name)} of spec.adapters: {one_line(words).rstrip('.')}. Let the operator"
        f" get, create and patch ConfigMaps in namespace {meta.namespace} (chart value adapters.enabled: true). Pods"
        " keep the adapters that they have; all else of the service goes on"
    )
