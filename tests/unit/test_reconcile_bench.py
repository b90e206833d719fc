"""What `hack/bench reconcile` makes of the audit log, and of its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flyball_lab.benches.reconcile.cost import PODS, ROWS, service, tables
from flyball_lab.benches.reconcile.operator import INSTANCE, AuditLog
from flyball_operator.api.parse import parse_service

NAMESPACE = "bench"
OURS = f"system:serviceaccount:{NAMESPACE}:{INSTANCE}"


def entry(user: str, verb: str, resource: str) -> str:
    return json.dumps({"user": {"username": user}, "verb": verb, "objectRef": {"resource": resource}}) + "\n"


def test_requests_of_the_operator_alone_are_counted_and_neither_watches_nor_leases(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text(entry(OURS, "patch", "deployments"))
    log = AuditLog(path, NAMESPACE)
    with path.open("a") as more:
        for user, verb, resource in (
            (OURS, "get", "pods"),
            (OURS, "list", "pods"),
            (OURS, "watch", "pods"),
            (OURS, "update", "leases"),
            (OURS, "patch", "inferenceservices"),
            ("kubernetes-admin", "patch", "inferenceservices"),
        ):
            more.write(entry(user, verb, resource))
        more.write('{"half of')
    reads, writes = log.requests()
    assert (dict(reads), dict(writes)) == ({"get pods": 1, "list pods": 1}, {"patch inferenceservices": 1})


def test_services_are_accepted_and_none_is_tuned() -> None:
    made = service(7)
    stored = made | {"metadata": made["metadata"] | {"namespace": "bench", "uid": "u-7", "generation": 1}}
    spec = parse_service(stored).spec
    assert (spec.replicas, spec.governed) == (PODS, False)


@pytest.mark.parametrize(("title", "missed"), [("1000 services of 5 pods", True), ("10 services of 5 pods", False)])
def test_what_is_asked_is_asked_of_a_thousand_services_alone(title: str, *, missed: bool) -> None:
    values = {key: 0.0 for _, key, _ in ROWS} | {"memory MiB": 301.0}
    page = tables({title: values})[""].markdown()
    assert ("301: missed" in page) is missed
    assert page.count("missed") == missed
