"""Gateways on the real API server, by the CRDs as they are published, with the rights that the chart grants.

The CRDs are the cluster's: they come and go here, so one process has these tests.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support import others_crds
from support.cluster import apply, get, kubectl, patch
from support.operators import RESOURCE, condition, expect_condition, idle_service, made, one, serve
from support.tenants import tenant_namespace

(EXAMPLE,) = (
    found["spec"]["gateway"] for found in yaml.safe_load_all((ROOT / "docs/examples/gateway.yaml").read_text())
)


def answer(place: str, kind: str, accepted: str, reason: str) -> None:
    """A gateway's controller says what it makes of a route or pool."""
    generation = one(kind, place)["metadata"]["generation"]
    conditions = [
        {
            "type": what,
            "status": status,
            "reason": why,
            "message": "no listener allows this namespace",
            "observedGeneration": generation,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for what, status, why in (("Accepted", accepted, reason), ("ResolvedRefs", "True", "ResolvedRefs"))
    ]
    (parent,) = EXAMPLE["parentRefs"]
    controller = {} if kind == "inferencepool" else {"controllerName": "flyball.test/gateway"}
    status = {"status": {"parents": [{"parentRef": parent, "conditions": conditions, **controller}]}}
    kubectl("patch", kind, "chat", "-n", place, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def test_a_route_is_made_once_the_cluster_knows_such_goes_with_the_field_and_never_takes_another_s(
    gateway_crds_gone: tuple[Path, ...], tmp_path: Path
) -> None:
    with tenant_namespace(tmp_path, resync_seconds="5") as place:
        apply(idle_service(spec__gateway=EXAMPLE), namespace=place)
        made(place)
        serve(place)
        message = expect_condition(place, "Routed", "False", "GatewayApiMissing")
        assert message.startswith("HTTPRoute: the cluster has no gateway.networking.k8s.io/v1")
        assert condition(place, "Ready")[0] == "True"
        for crd in gateway_crds_gone:
            others_crds.install(crd)
        expect_condition(place, "Routed", "False", "RoutePending")
        route = one("httproute", place)["spec"]
        assert route["hostnames"] == EXAMPLE["hostnames"]
        assert route["rules"][0]["backendRefs"][0]["kind"] == "InferencePool"
        assert one("inferencepool", place)["spec"]["endpointPickerRef"]["name"] == "llm-d-router"
        answer(place, "httproute", "False", "NotAllowedByListeners")
        message = expect_condition(place, "Routed", "False", "RefusedByGateway")
        assert "Accepted is False, NotAllowedByListeners: no listener allows this namespace" in message
        answer(place, "httproute", "True", "Accepted")
        answer(place, "inferencepool", "True", "Accepted")
        expect_condition(place, "Routed", "True", "AcceptedByGateway")
        edited = {**EXAMPLE, "hostnames": ["other.example.com"]}
        patch(RESOURCE, "chat", {"spec": {"gateway": edited}}, namespace=place)
        eventually(
            lambda: one("httproute", place)["spec"]["hostnames"] == ["other.example.com"], expecting="the new name"
        )
        assert condition(place, "Accepted")[:2] == ("True", "Accepted")
        patch(RESOURCE, "chat", {"spec": {"gateway": None}}, namespace=place)
        eventually(lambda: get("httproute", "chat", namespace=place) is None, expecting="no route")
        eventually(lambda: get("inferencepool", "chat", namespace=place) is None, expecting="no pool")
        eventually(lambda: condition(place, "Routed") == ("", "", ""), expecting="no condition Routed")
        assert condition(place, "Ready")[0] == "True"
        version = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute"}
        apply({**version, "metadata": {"name": "chat"}, "spec": {"hostnames": ["theirs.example.com"]}}, namespace=place)
        patch(RESOURCE, "chat", {"spec": {"gateway": EXAMPLE}}, namespace=place)
        assert expect_condition(place, "Routed", "False", "NameConflict").startswith("HTTPRoute chat has no owner")
        assert condition(place, "Ready")[0] == "True", "pods and Service need no route"
        assert one("httproute", place)["spec"]["hostnames"] == ["theirs.example.com"]
