"""Two releases that watch one namespace: one acts, the other says whose it is, and follows when that one is gone."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.app.main import ExitCode
from support.audit import Audit
from support.cluster import apply, get, kubectl, patch
from support.operators import OperatorProcess, expect_condition, idle_service
from support.tenants import tenants

RESOURCE = "inferenceservices.serving.flyball.dev"


def holder(place: str) -> str:
    """The release that the namespace's Lease names."""
    lease = get("lease", names.NAMESPACE_LEASE, namespace=place) or {}
    found: str = (lease.get("spec") or {}).get("holderIdentity", "")
    return found


def expect_edits_to_be_seen(place: str) -> None:
    replicas = (get(RESOURCE, "chat", namespace=place) or {})["spec"].get("replicas", 0)
    patch(RESOURCE, "chat", {"spec": {"replicas": 1 + replicas % 3}}, namespace=place)

    def seen() -> bool:
        found = get(RESOURCE, "chat", namespace=place) or {}
        return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])

    eventually(seen, expecting=f"the edit in {place} to be seen", within=240)


def expect_watched(operator: OperatorProcess, place: str, *, so: bool) -> None:
    eventually(lambda: operator.watches(place) is so, expecting=f"{place} watched: {so}")


def said(operator: OperatorProcess, words: str) -> list[str]:
    lines = [json.loads(line) for line in operator.log.read_text().splitlines() if line.startswith("{")]
    return [line["message"] for line in lines if words in line["message"]]


def test_one_release_acts_and_the_other_takes_over_when_it_is_gone_for_good(crd: Path, tmp_path: Path) -> None:
    audit = Audit()
    with (
        tenants(1) as theirs,
        tenants(1, beside=theirs.names) as others,
        theirs.operator(tmp_path, name="first") as first,
    ):
        (shared,) = theirs.names
        _, alone = others.names
        apply(idle_service(), namespace=shared)
        expect_condition(shared, "Accepted", "True", "Accepted")
        assert holder(shared) == f"{theirs.own}/flyball-operator"
        with others.operator(tmp_path, name="second") as second:
            expect_watched(second, shared, so=False)
            apply(idle_service(), namespace=alone)
            expect_condition(alone, "Accepted", "True", "Accepted")
            assert second.watches(alone)
            expect_edits_to_be_seen(shared)
            words = f"namespace {shared} belongs to release {theirs.own}/flyball-operator"
            assert len(said(second, words)) == 1
            assert not [write for write in audit.writes(shared) if "second" in write.writer]
            # A restart of the first changes nothing: its release goes on.
            first.send(signal.SIGTERM)
            assert first.expect_exit() == ExitCode.OK
            with theirs.operator(tmp_path, name="first-again"):
                expect_edits_to_be_seen(shared)
                assert holder(shared) == f"{theirs.own}/flyball-operator"
                assert not [write for write in audit.writes(shared) if "second" in write.writer]
            # As if nobody had renewed it for its five minutes.
            kubectl(
                "patch", "lease", names.NAMESPACE_LEASE, "-n", shared, "--type=merge", "-p",
                json.dumps({"spec": {"leaseDurationSeconds": 1}}),
            )  # fmt: skip
            expect_watched(second, shared, so=True)
            assert holder(shared) == f"{others.own}/flyball-operator"
            expect_edits_to_be_seen(shared)
            assert [write for write in audit.writes(shared) if "second" in write.writer]
