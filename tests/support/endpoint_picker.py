"""The endpoint picker of the Gateway API inference extension, as a pod beside a service's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from flyball_engine.contract import MetricName
from flyball_operator.api.gateway import DEFAULT_PICKER_PORT
from support.binaries import imported
from support.cluster import Object, kubectl
from support.side_pods import apply_and_wait, restricted_pod, service_of

NAME: Final = "picker"
_TOOL: Final = "endpoint-picker"
_SCORER: Final = "headroom-scorer"
#: Nothing but the headroom is scored, so that nothing else explains whom the picker chooses. It does not read bodies:
#: of prompts it would refuse those that are token ids.
_CONFIGURATION: Final[Object] = {
    "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [
        {"type": "metrics-data-source"},
        {"type": "core-metrics-extractor"},
        {"type": "passthrough-parser"},
        {"type": "metric-scorer", "name": _SCORER, "parameters": {"metric": MetricName.HEADROOM_SECONDS}},
    ],
    "parser": {"pluginRef": "passthrough-parser"},
    "dataLayer": {
        "sources": [
            {
                "pluginRef": "metrics-data-source",
                "extractors": [{"pluginRef": "core-metrics-extractor"}, {"pluginRef": _SCORER}],
            }
        ]
    },
    "schedulingProfiles": [{"name": "default", "plugins": [{"pluginRef": _SCORER, "weight": 1}]}],
}


@contextmanager
def endpoint_picker(pool: str, namespace: str) -> Iterator[None]:
    """Who picks among the pods of an InferencePool, for as long as the block lasts."""
    objects = "\n---\n".join(map(json.dumps, (*_rights(namespace), _service())))
    pod = _pod(pool, namespace)
    try:
        kubectl("apply", "-n", namespace, "-f", "-", stdin=objects)
        apply_and_wait(pod, namespace)
        yield
    finally:
        kubectl("delete", "-n", namespace, "--ignore-not-found", "-f", "-", stdin=f"{objects}\n---\n{json.dumps(pod)}")


def _pod(pool: str, namespace: str) -> Object:
    command = [
        f"/bin/{_TOOL}",
        f"--pool-name={pool}",
        f"--pool-namespace={namespace}",
        f"--config-text={json.dumps(_CONFIGURATION)}",
        f"--grpc-port={DEFAULT_PICKER_PORT}",
        "--secure-serving=false",
        "--metrics-endpoint-auth=false",
        "--tracing=false",
        # Each read costs the engines some milliseconds.
        "--refresh-metrics-interval=500ms",
    ]
    pod = restricted_pod(NAME, imported(_TOOL)[_TOOL], command, port=DEFAULT_PICKER_PORT)
    pod["spec"] |= {"serviceAccountName": NAME, "automountServiceAccountToken": True}
    return pod


def _service() -> Object:
    service = service_of(NAME, DEFAULT_PICKER_PORT)
    (port,) = service["spec"]["ports"]
    port["appProtocol"] = "http2"
    return service


def _rights(namespace: str) -> tuple[Object, ...]:
    """An account that may read pods and pools of its namespace."""
    named = {"metadata": {"name": NAME}}
    rights = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [group], "resources": [kind], "verbs": ["get", "list", "watch"]}
        for group, kind in (("", "pods"), ("inference.networking.k8s.io", "inferencepools"))
    ]
    account = "ServiceAccount"
    return (
        {"apiVersion": "v1", "kind": account, **named},
        {"apiVersion": f"{rights}/v1", "kind": "Role", **named, "rules": rules},
        {
            "apiVersion": f"{rights}/v1",
            "kind": "RoleBinding",
            **named,
            "roleRef": {"apiGroup": rights, "kind": "Role", "name": NAME},
            "subjects": [{"kind": account, "name": NAME, "namespace": namespace}],
        },
    )
