"""Outages, each begun and mended by itself, with the alerts that it is to fire. `outage_scene.py` has who is hit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flyball_engine.contract import CONTROL_PORT
from flyball_operator.api.names import ANNOTATION_TUNING, PUBLIC_KEYS
from support.cluster import Object, apply, kubectl, patch
from support.firing_alerts import Alert
from support.live import RELEASE, RESOURCE
from support.node import on_node, sandbox_pid
from support.outage_scene import (
    DEADLINE,
    KEYLESS,
    PROMETHEUS,
    REVOKED,
    SECOND,
    THIRD,
    UNSEEN,
    WORK,
    Scene,
    asked,
    service,
)

#: Nobody listens there.
_NOWHERE: Final = "localhost:1"
_LABEL_OF_A_SERVICE: Final = "__meta_kubernetes_pod_label_serving_flyball_dev_service"


@dataclass(frozen=True, kw_only=True)
class Outage:
    """What is broken, of whom, and what comes of it.

    `namespace` and `service` are those that its alerts name; empty where they name none. `fires`: each alert that is to
    fire, with what the first step of its runbook is to show. `entails`: alerts that the outage truly brings, too, if it
    lasts, with the reason. Any other alert of the same namespace and service is wrong. `operators`: the namespace of
    the operator that looks after it. `mend`: None where the alerts look back too far to be seen to go.
    """

    what: str
    fires: Mapping[str, str]
    begin: Callable[[Scene], None]
    mend: Callable[[Scene], None] | None = None
    namespace: str = WORK
    service: str = ""
    entails: Mapping[str, str] = field(default_factory=dict)
    operators: str = f"{RELEASE}-system"

    def befell(self, alert: Alert) -> bool:
        """Whether an alert is about whom this befell."""
        pod = alert.label("pod")
        named = alert.label("service") or (self.service if pod.startswith(f"{self.service}-") else pod)
        return (alert.label("namespace"), named) == (self.namespace, self.service)


# How they begin and end


def _ask(name: str, *, image: str | None = None, nodes: Mapping[str, str] | None = None) -> Callable[[Scene], None]:
    def ask(scene: Scene) -> None:
        found = asked(name, image or scene.first.refs["engine-cpu"])
        found["spec"]["podTemplate"]["nodeSelector"] = nodes or {}
        apply(found, namespace=WORK)

    return ask


def _edit(name: str, spec: Object) -> Callable[[Scene], None]:
    return lambda _: patch(RESOURCE, name, {"spec": spec}, namespace=WORK)


def _edit_engine(*more: Object) -> Callable[[Scene], None]:
    def edit(scene: Scene) -> None:
        found = asked("edited", scene.first.refs["engine-cpu"])["spec"]["engine"]
        _edit("edited", {"engine": {"env": [*found["env"], *more]}})(scene)

    return edit


def _annotate(name: str, value: str | None) -> Callable[[Scene], None]:
    change = {"metadata": {"annotations": {ANNOTATION_TUNING: value}}}
    return lambda _: patch(RESOURCE, name, change, namespace=WORK)


def _scrape_all_but(*names: str) -> Callable[[Scene], None]:
    def edit(scene: Scene) -> None:
        where, kind = ("-n", scene.first.namespace), "podmonitors.monitoring.coreos.com"
        name = f"{scene.first.release}-engines"
        ports = json.loads(kubectl("get", kind, name, *where, "-o", "json"))["spec"]["podMetricsEndpoints"]
        dropped = {"sourceLabels": [_LABEL_OF_A_SERVICE], "regex": "|".join(names), "action": "drop"}
        for port in ports:
            kept = [rule for rule in port.get("relabelings", ()) if rule.get("action") != "drop"]
            port["relabelings"] = [*kept, *([dropped] if names else [])]
        change = {"spec": {"podMetricsEndpoints": ports}}
        kubectl("patch", kind, name, *where, "--type=merge", "-p", json.dumps(change))

    return edit


def _close_control_port(scene: Scene) -> None:
    """The pod's network drops what the operator sends to it, and lets Prometheus in. Then there is news to send."""
    (operator,) = scene.first.operator_pods()
    rule = f"ip saddr {operator['status']['podIP']} tcp dport {CONTROL_PORT} drop"
    chain = f"chain input {{ type filter hook input priority 0; policy accept; {rule}; }}"
    _in_network_of("closed", f"table inet outage {{ {chain}; }}")
    _edit("closed", {"tuning": {"bounds": {"maxNumActiveSeqs": {"min": 7, "max": 7}}}})(scene)


def _open_control_port(_: Scene) -> None:
    _in_network_of("closed", "delete table inet outage")


def _in_network_of(name: str, command: str) -> None:
    on_node("nsenter", "-t", str(sandbox_pid(service(name).pod())), "-n", "nft", command)


def _overload(name: str) -> Callable[[Scene], None]:
    return lambda scene: scene.load(name, 32, patience=2 * DEADLINE)


def _lose_prometheus(scene: Scene) -> None:
    scene.second.install(prometheus={"url": f"http://{_NOWHERE}"})


def _mend_second(scene: Scene) -> None:
    """The runbook of a namespace that is not watched: `helm upgrade`."""
    scene.second.install(prometheus=PROMETHEUS)


def _revoke(_: Scene) -> None:
    kubectl("delete", "rolebinding", "-n", REVOKED, "-l", f"app.kubernetes.io/instance={SECOND}")


def _take_name_of_keys(scene: Scene) -> None:
    """Somebody else's ConfigMap is there before the first service is."""
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": PUBLIC_KEYS}}, namespace=KEYLESS)
    apply(asked("keyless", scene.first.refs["engine-cpu"], replicas=0), namespace=KEYLESS)


def _give_name_of_keys_back(_: Scene) -> None:
    kubectl("delete", "configmap", PUBLIC_KEYS, "-n", KEYLESS)


def _scale_third(replicas: int) -> Callable[[Scene], None]:
    def scale(scene: Scene) -> None:
        selector = f"app.kubernetes.io/instance={THIRD}"
        kubectl("scale", "deployment", "-n", scene.third.namespace, "-l", selector, f"--replicas={replicas}")

    return scale


#: Alerts that outages truly bring, too, if they last.
_BURNS_ON: Final = {"FlyballObjectiveBurnsSlowly": "what is missed in an hour is more than a day may miss, too"}
_WAITS_ON: Final = {"FlyballRolloutWaits": "after half an hour the rollout waits for the same"}

OUTAGES: Final[Sequence[Outage]] = (
    Outage(
        what="the registry of a new service's image does not answer",
        service="no-registry",
        fires={"FlyballServiceUnavailable": "RegistryUnavailable"},
        entails=_WAITS_ON,
        begin=_ask("no-registry", image=f"{_NOWHERE}/vllm:1"),
        mend=_ask("no-registry"),
    ),
    Outage(
        what="no node fits a new service",
        service="no-node",
        fires={"FlyballServiceUnavailable": "Unschedulable"},
        entails=_WAITS_ON,
        begin=_ask("no-node", nodes={"flyball.test/absent": "true"}),
        mend=_ask("no-node"),
    ),
    Outage(
        what="an edit names a Secret that is missing",
        service="edited",
        fires={"FlyballRolloutFailed": "absent-secret"},
        begin=_edit_engine({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "absent-secret", "key": "token"}}}),
        mend=_edit_engine(),
    ),
    Outage(
        what="the scrape job leaves a service out",
        service="unscraped",
        fires={"FlyballMetricsLost": "NotScraped"},
        begin=_scrape_all_but("unscraped"),
        mend=_scrape_all_but(),
    ),
    Outage(
        what="a pod's network drops what the operator sends",
        service="closed",
        fires={"FlyballPushesFail": "EngineUnreachable", "FlyballNotTuned": "EngineUnreachable"},
        begin=_close_control_port,
        mend=_open_control_port,
    ),
    Outage(
        what="the annotation that pauses has a value that nobody knows",
        service="paused",
        fires={"FlyballNotTuned": "is 'Pause', accepted: Paused"},
        begin=_annotate("paused", "Pause"),
        mend=_annotate("paused", None),
    ),
    Outage(
        what="the cluster has no Gateway API",
        service="unrouted",
        fires={"FlyballNotRouted": "HTTPRoute"},
        begin=_edit("unrouted", {"gateway": {"parentRefs": [{"name": "edge", "namespace": "infra"}]}}),
        mend=_edit("unrouted", {"gateway": None}),
    ),
    Outage(
        what="several times as much arrives as is carried, and all wait",
        service="queueing",
        fires={
            "FlyballObjectiveBurnsFast": "CapacitySufficient False",
            "FlyballCapacityShort": "More arrives than the pods carry",
        },
        entails=_BURNS_ON,
        begin=_overload("queueing"),
    ),
    Outage(
        what="several times as much arrives as is carried, and what comes too late is refused",
        service="shedding",
        fires={
            "FlyballRequestsRefused": "More arrives than the pods carry",
            "FlyballCapacityShort": "More arrives than the pods carry",
        },
        entails={"FlyballObjectiveBurnsSlowly": "who leaves late counts as late: a tenth do where refusals are slow"},
        begin=_overload("shedding"),
    ),
    # The second installation: an upgrade would grant again what was revoked before.
    Outage(
        what="prometheus.url is wrong",
        namespace=UNSEEN,
        service="unseen",
        operators=f"{SECOND}-system",
        fires={"FlyballMetricsLost": "PrometheusUnreachable"},
        begin=_lose_prometheus,
        mend=_mend_second,
    ),
    Outage(
        what="a RoleBinding is deleted",
        namespace=REVOKED,
        operators=f"{SECOND}-system",
        fires={"FlyballNamespaceNotWatched": f"{REVOKED} is not watched: no right is granted"},
        begin=_revoke,
        mend=_mend_second,
    ),
    Outage(
        what="the ConfigMap of public keys is somebody else's",
        namespace="",
        operators=f"{SECOND}-system",
        fires={"FlyballPublicKeysNotWritten": KEYLESS},
        begin=_take_name_of_keys,
        mend=_give_name_of_keys_back,
    ),
    Outage(
        what="an operator is scaled to 0",
        namespace=f"{THIRD}-system",
        operators=f"{THIRD}-system",
        fires={"FlyballOperatorAway": "0/0"},
        begin=_scale_third(0),
        mend=_scale_third(1),
    ),
)
