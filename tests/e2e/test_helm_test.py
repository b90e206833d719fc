"""`helm test` of an installation: the doctor in a pod of the release, with the chart's rights for it."""

from __future__ import annotations

import json

import pytest

from support.cluster import kubectl
from support.live import RELEASE, Flyball, helm

POD = f"{RELEASE}-test"
CHECKS = ("crd", "operator", "leases", "rights", "metrics-port", "prometheus-answers")


def point_metrics_at(flyball: Flyball, component: str) -> None:
    """Let the Service of the operator's metrics lead to these pods."""
    patch = {"spec": {"selector": {"app.kubernetes.io/component": component}}}
    kubectl("patch", "service", f"{RELEASE}-metrics", "-n", flyball.namespace, "--patch", json.dumps(patch))


def test_a_good_installation_passes_and_one_whose_metrics_nobody_serves_fails(flyball: Flyball) -> None:
    try:
        told = helm("test", RELEASE, "-n", flyball.namespace, "--logs", "--timeout", "3m")
        assert [check for check in CHECKS if f"OK    {check}: " not in told] == [], told
        assert "services: " not in told, "no service was looked at"
        left = kubectl("get", "roles", "-n", flyball.namespace, "-o", "name").split()
        assert f"role.rbac.authorization.k8s.io/{POD}" not in left, "the rights go with the test"

        point_metrics_at(flyball, "nobody")
        with pytest.raises(AssertionError, match="failed"):
            helm("test", RELEASE, "-n", flyball.namespace, "--timeout", "3m")
        assert "FAIL  metrics-port: " in kubectl("logs", POD, "-n", flyball.namespace)
    finally:
        point_metrics_at(flyball, "operator")
        kubectl("delete", "pod", POD, "-n", flyball.namespace, "--ignore-not-found")
