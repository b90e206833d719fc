"""A gateway before the cluster's pods: Istio's controller, and an Envoy that has its configuration from it.

Both run on the node. Where Istio makes a gateway it is a pod with Istio's own build of Envoy. This one is Envoy as its
project publishes it, so Istio is told to ask for nothing that only its own build knows. No connection has TLS.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from flyball_lab.harness.waiting import eventually
from support import others_crds
from support.binaries import binary
from support.cluster import Object, apply, kubectl
from support.node import daemon_on_node, node_address
from support.remnants import mark

#: Name and namespace of the Gateway.
NAME: Final = "edge"
NAMESPACE: Final = "flyball-e2e-gateway"
#: What Istio calls itself in answers to routes.
CONTROLLER: Final = "istio.io/gateway-controller"
#: The node's port that requests go to, and where Envoy asks Istio.
_PORT: Final = 18080
_ISTIO: Final = ("127.0.0.1", 15010)
#: By these Istio knows which Gateway an Envoy is.
_LABELS: Final = {"gateway.networking.k8s.io/gateway-name": NAME}
_SETTINGS: Final = {
    "ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
    # Filters of Istio's own build of Envoy.
    "PILOT_ENABLE_ALPN_FILTER": "false",
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
    # It makes no pods, no certificates and no webhooks.
    "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER": "false",
    "ENABLE_CA_SERVER": "false",
    "PILOT_CERT_PROVIDER": "none",
    "INJECT_ENABLED": "false",
    "INJECTION_WEBHOOK_CONFIG_NAME": "",
    "VALIDATION_WEBHOOK_CONFIG_NAME": "",
    "POD_NAME": "istiod",
    "POD_NAMESPACE": NAMESPACE,
}


@contextmanager
def istio_gateway(folder: Path, namespace: str) -> Iterator[str]:
    """The address of a Gateway that takes HTTPRoutes of this namespace, for as long as the block lasts."""
    kinds = (*others_crds.of_gateways(), *others_crds.of_gateway_controllers())
    for kind in kinds:
        others_crds.expect_absent(kind)
    try:
        for kind in kinds:
            others_crds.install(kind)
        kubectl("apply", "-f", "-", stdin=json.dumps(mark({**_of("v1", "Namespace"), "metadata": {"name": NAMESPACE}})))
        apply(_service(), namespace=NAMESPACE)
        apply(_gateway(), namespace=NAMESPACE)
        with _istio(folder, namespace), _envoy(folder):
            url = f"http://{node_address()}:{_PORT}"
            eventually(lambda: httpx.get(url, trust_env=False).status_code == 404, expecting="a gateway without routes")
            yield url
    finally:
        others_crds.uninstall()
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=300)


@contextmanager
def _istio(folder: Path, namespace: str) -> Iterator[None]:
    host, port = _ISTIO
    mesh = {
        "rootNamespace": NAMESPACE,
        "discoverySelectors": [
            {"matchLabels": {"kubernetes.io/metadata.name": name}} for name in (NAMESPACE, namespace)
        ],
        "ingressControllerMode": "OFF",
        "enableAutoMtls": False,
        "enableTracing": False,
        "defaultConfig": {"discoveryAddress": f"{host}:{port}"},
    }
    settings, log = folder / "mesh.json", folder / "istio.log"
    settings.write_text(json.dumps(mesh))
    options = {
        "kubeconfig": os.environ["KUBECONFIG"],
        "namespace": NAMESPACE,
        "meshConfig": settings,
        "grpcAddr": f"{host}:{port}",
        "httpAddr": f"{host}:15080",
        "monitoringAddr": f"{host}:15014",
        "httpsAddr": "",
        "secureGRPCAddr": "",
    }
    program = binary("pilot-discovery")
    with daemon_on_node(program, options, log, verb="discovery", environment=_SETTINGS) as process:
        yield
        _expect_alive(process, log)


@contextmanager
def _envoy(folder: Path) -> Iterator[None]:
    start, log = folder / "envoy.json", folder / "envoy.log"
    start.write_text(json.dumps(_start()))
    verb = f"--config-path {start} --concurrency 1 --disable-hot-restart --log-level warn"
    with daemon_on_node(binary("envoy"), {}, log, verb=verb) as process:
        yield
        _expect_alive(process, log)


def _expect_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.poll() is None, log.read_text(errors="replace")[-2000:]


def _start() -> Object:
    """With what Envoy begins: who it is, and whom it asks for all else."""
    host, port = _ISTIO
    asked = {"ads": {}, "resource_api_version": "V3"}
    http2 = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    endpoint = {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
    istio = {
        "name": "istio",
        "type": "STATIC",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": {"cluster_name": "istio", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    return {
        "node": {
            "id": f"router~{node_address()}~{NAME}.{NAMESPACE}~{NAMESPACE}.svc.cluster.local",
            "cluster": NAME,
            "metadata": {
                "NAMESPACE": NAMESPACE,
                "CLUSTER_ID": "Kubernetes",
                "ISTIO_VERSION": "1.31.0",
                "LABELS": _LABELS,
            },
        },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": "istio"}}],
            },
            "cds_config": asked,
            "lds_config": asked,
        },
        "static_resources": {"clusters": [istio]},
    }


def _service() -> Object:
    """The Gateway's Service. It has no pods; its ports tell where Envoy listens."""
    spec = {"selector": _LABELS, "ports": [{"name": "http", "port": 80, "targetPort": _PORT}]}
    return {**_of("v1", "Service"), "metadata": {"name": NAME}, "spec": spec}


def _gateway() -> Object:
    """A Gateway with an address is one that Istio makes no pods for."""
    spec = {
        "gatewayClassName": "istio",
        "addresses": [{"type": "Hostname", "value": f"{NAME}.{NAMESPACE}.svc.cluster.local"}],
        "listeners": [
            {"name": "http", "protocol": "HTTP", "port": 80, "allowedRoutes": {"namespaces": {"from": "All"}}}
        ],
    }
    return {**_of("gateway.networking.k8s.io/v1", "Gateway"), "metadata": {"name": NAME}, "spec": spec}


def _of(version: str, kind: str) -> Object:
    return {"apiVersion": version, "kind": kind}
