"""`flyball doctor` against the real API server: an operator in a namespace of its own, and what is broken in it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from flyball_lab.harness.manifests import good
from support.cluster import apply, kubectl

ENVIRONMENT = [
    {"name": "FLYBALL_LEASE_NAME", "value": "flyball"},
    {"name": "FLYBALL_PLUGIN_IMAGE", "value": "flyball/plugin:1"},
]


def operator(place: str) -> dict[str, Any]:
    """A Deployment as the chart makes it, of no pods, so that nothing is started."""
    labels = {"app.kubernetes.io/name": "flyball", "app.kubernetes.io/component": "operator"}
    container = {"name": "operator", "image": "flyball/operator:1", "env": ENVIRONMENT}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "flyball", "namespace": place, "labels": labels},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def doctor(place: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code, and findings by check, of a process of its own."""
    command = [sys.executable, "-m", "flyball_operator.cli", "doctor", "-o", "json"]
    command += ["-n", place, "--operator-namespace", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(done.stdout)["checks"]:
        found.setdefault(one["check"], []).append(one)
    return done.returncode, found


def levels(findings: list[dict[str, str]]) -> list[str]:
    return [one["level"] for one in findings]


def test_a_namespace_without_an_operator_says_so_and_the_rest_is_well(place: str) -> None:
    code, found = doctor(place)
    assert code == 1
    assert levels(found["cluster-version"]) == ["OK"]
    assert levels(found["crd"]) == ["OK"]
    assert levels(found["operator"]) == ["FAIL"]
    assert found["services"][0]["message"] == "there are none"


def test_an_operator_without_leases_rights_and_pods_and_a_service_that_nobody_looks_at(place: str) -> None:
    apply(operator(place), namespace=place)
    apply(good(metadata__namespace=place), namespace=place)
    code, found = doctor(place)
    assert code == 1
    assert "scaled to 0" in found["operator"][0]["message"]
    assert "Lease flyball is not there" in found["leases"][0]["message"]
    (rights,) = found["rights"]
    assert rights["level"] == "FAIL"
    assert f"inferenceservices.serving.flyball.dev in namespace {place}" in rights["message"]
    assert "no operator has looked at it" in found["services"][0]["message"]


def test_with_rights_the_account_is_said_to_have_them(place: str) -> None:
    apply(operator(place), namespace=place)
    binding = ["--clusterrole=cluster-admin", f"--serviceaccount={place}:default"]
    kubectl("create", "rolebinding", "all", "-n", place, *binding)
    _, found = doctor(place)
    assert levels(found["rights"]) == ["OK"]
