"""Mutating policies of the real API server beside the operator: what they add stays, and costs no write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.reconcile.plan import history
from support.audit import Audit, Write
from support.cluster import Object, apply, kubectl, patch, throughout
from support.kubelet import play_trouble
from support.operators import (
    IMAGE,
    OperatorProcess,
    condition,
    expect_condition,
    expect_no_node,
    idle_service,
    one,
    serve,
)
from support.policies import (
    ADDS_A_SIDECAR,
    ADDS_A_VARIABLE,
    INJECTS_A_SIDECAR,
    INJECTS_ISTIO,
    INJECTS_LINKERD,
    LABELS_IT,
    LABELS_THE_TEMPLATE,
    MIRRORED,
    PULLS_ALWAYS,
    TOLERATES_MORE,
    USES_THE_MIRROR,
    mutating,
    refusing,
    remove,
)
from support.shared_operator import SharedOperator, shared_operator

ASKED = {"key": "test/asked", "operator": "Exists"}
RESYNC = 5.0
#: Two resyncs, be they late: one after all that went before, and one after a look without a cause.
LONG = 2.5 * RESYNC


Looks = Callable[[str], AbstractContextManager[OperatorProcess]]


@pytest.fixture(scope="module")
def frequent_resync(crd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looks]:
    """An operator of this module's own that often looks at everything: a context of a namespace that it looks after."""
    with shared_operator(tmp_path_factory.mktemp("shared"), resync_seconds=str(RESYNC)) as one:
        yield one.at


def asked() -> Object:
    """A service that asks for something of each that policies change."""
    return idle_service(
        spec__engine__image=IMAGE,
        spec__engine__imagePullPolicy="IfNotPresent",
        spec__replicas=1,
        spec__podTemplate__tolerations=[ASKED],
    )


def edit_tolerations(place: str) -> None:
    """An edit that rolls the pods."""
    change = {"spec": {"podTemplate": {"tolerations": [ASKED, {"key": "test/more", "operator": "Exists"}]}}}
    patch(names.CRD_NAME, "chat", change, namespace=place)


def pod(place: str) -> Object:
    spec: Object = one("deployment", place)["spec"]["template"]["spec"]
    return spec


def owned(audit: Audit, place: str) -> list[Write]:
    """Writes to all but the service, whose status others write, too."""
    return [write for write in audit.writes(place) if write.resource != "inferenceservices"]


def expect_noted(place: str) -> None:
    """Wait until the Deployment notes the template that is asked for as good.

    Status may say so before: the conditions can be those of the template before, when nothing of the spec changed.
    """

    def noted() -> bool:
        kept = history.read(one("deployment", place))
        return kept.asked == kept.good

    eventually(noted, expecting="the template that is asked for to be noted as good")


def expect_quiet(place: str, audit: Audit) -> None:
    """Once the rollout is noted, several resyncs look at the service in a row and write to no owned object.

    A write may come late: the API server logs one after it answered, and a look that began before may still note
    something. An endless fight writes in each row.
    """
    expect_noted(place)

    def quiet() -> bool:
        before = owned(audit, place)
        throughout(
            lambda: condition(place, "Accepted")[:2] == ("True", "Accepted"),
            expecting="it to be accepted",
            seconds=LONG,
        )
        return owned(audit, place) == before

    eventually(quiet, expecting="several resyncs in a row without a write", within=10 * LONG)


@pytest.mark.parametrize(
    ("patches", "image"),
    [
        pytest.param(TOLERATES_MORE, IMAGE, marks=pytest.mark.long),
        pytest.param(LABELS_IT, IMAGE, marks=pytest.mark.long),
        (LABELS_THE_TEMPLATE, IMAGE),
        (ADDS_A_SIDECAR, IMAGE),
        pytest.param(ADDS_A_VARIABLE, IMAGE, marks=pytest.mark.long),
        (USES_THE_MIRROR, MIRRORED),
        pytest.param(PULLS_ALWAYS, IMAGE, marks=pytest.mark.long),
    ],
    ids=["toleration", "label", "template-label", "sidecar", "variable", "mirror", "pull-policy"],
)
def test_what_a_policy_adds_costs_no_writes(place: str, frequent_resync: Looks, patches: str, image: str) -> None:
    with mutating(place, patches), frequent_resync(place):
        audit = Audit()
        apply(asked(), namespace=place)
        expect_no_node(place)
        serve(place, image=image)
        expect_quiet(place, audit)
        written = [write.verb for write in audit.writes(place) if write.resource == "deployments" and write.code < 300]
        # Made, claimed, noted as waiting, noted as good. A look between the last two notes the end of the wait alone.
        assert written[0] == "create"
        assert set(written[1:]) == {"patch"}
        assert len(written) in (4, 5)
        # Some looks are those of the start; each resync and each change of the object may have one.
        assert len(audit.dry_runs(place)) < 25


#: Said by manifests, and kept by no API server.
SAID_BUT_NOT_KEPT = {
    "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache", "readOnly": False}}],
    "volumeMounts": [{"name": "cache", "mountPath": "/cache", "readOnly": False}],
    "containers": [
        {
            "name": "beside",
            "image": "mirror.test/beside:1",
            "env": [{"name": "EMPTY", "value": ""}],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache", "readOnly": False}],
            "readinessProbe": {"tcpSocket": {"port": 9000}, "initialDelaySeconds": 0},
        }
    ],
}


@pytest.mark.parametrize("more", [{}, SAID_BUT_NOT_KEPT], ids=["plain", "said-but-not-kept"])
def test_a_settled_service_without_policies_is_asked_for_nothing(
    place: str, frequent_resync: Looks, more: Object
) -> None:
    with frequent_resync(place):
        audit = Audit()
        service = asked()
        service["spec"]["podTemplate"].update(more)
        apply(service, namespace=place)
        serve(place)
        expect_quiet(place, audit)
        assert not audit.dry_runs(place)


def test_a_policy_that_comes_later_waits_for_the_next_edit(place: str, frequent_resync: Looks) -> None:
    with frequent_resync(place):
        audit = Audit()
        apply(asked(), namespace=place)
        serve(place)
        expect_noted(place)
        generation = one("deployment", place)["metadata"]["generation"]
        with mutating(place, USES_THE_MIRROR):
            expect_quiet(place, audit)
            assert one("deployment", place)["metadata"]["generation"] == generation
            edit_tolerations(place)
            serve(place, image=MIRRORED)
            expect_quiet(place, audit)


def test_a_policy_that_goes_away_leaves_what_was_asked_for(place: str, frequent_resync: Looks) -> None:
    with frequent_resync(place):
        audit = Audit()
        with mutating(place, USES_THE_MIRROR):
            apply(asked(), namespace=place)
            serve(place, image=MIRRORED)
            remove(place)
        eventually(lambda: pod(place)["containers"][0]["image"] == IMAGE, expecting="the image asked for")
        serve(place)
        expect_quiet(place, audit)


def test_what_a_policy_had_added_stays_until_somebody_removes_it(place: str, frequent_resync: Looks) -> None:
    with frequent_resync(place):
        audit = Audit()
        with mutating(place, ADDS_A_SIDECAR):
            apply(asked(), namespace=place)
            serve(place)
            remove(place)
        edit_tolerations(place)
        serve(place)
        assert [container["name"] for container in pod(place)["containers"]] == ["engine", "added"]
        gone = [{"op": "remove", "path": "/spec/template/spec/containers/1"}]
        kubectl("patch", "deployment", "chat", "-n", place, "--type=json", "-p", json.dumps(gone))
        serve(place)
        expect_quiet(place, audit)
        assert [container["name"] for container in pod(place)["containers"]] == ["engine"]


def test_an_edit_by_hand_of_what_a_policy_changes_is_undone(place: str, frequent_resync: Looks) -> None:
    with mutating(place, TOLERATES_MORE), frequent_resync(place):
        audit = Audit()
        apply(asked(), namespace=place)
        serve(place)
        theirs = {"spec": {"template": {"spec": {"tolerations": [{"key": "by-hand", "operator": "Exists"}]}}}}
        patch("deployment", "chat", theirs, namespace=place)
        eventually(lambda: ASKED in pod(place)["tolerations"], expecting="the toleration asked for")
        serve(place)
        expect_quiet(place, audit)


@pytest.mark.parametrize(
    ("patches", "name", "statuses"),
    [
        (INJECTS_A_SIDECAR, "added", "containerStatuses"),
        (INJECTS_LINKERD, "linkerd-proxy", "containerStatuses"),
        (INJECTS_ISTIO, "istio-proxy", "initContainerStatuses"),
    ],
    ids=["last", "linkerd", "istio"],
)
def test_a_sidecar_that_is_put_into_pods_is_named_when_it_fails(
    place: str, shared: SharedOperator, patches: str, name: str, statuses: str
) -> None:
    with mutating(place, patches, pods=True), shared.at(place):
        apply(asked(), namespace=place)
        serve(place)
        assert name not in [container["name"] for container in pod(place)["containers"]], "the Deployment is as asked"
        ended = {"terminated": {"exitCode": 1, "message": "no certificate", "reason": "Error"}}
        play_trouble(place, image=IMAGE, statuses=statuses, name=name, state=ended)
        said = expect_condition(place, "Available", "False", "ContainerFailed")
        assert f"container {name}" in said
        assert "no certificate" in said
        serve(place)


def test_a_policy_that_refuses_is_named(place: str, shared: SharedOperator) -> None:
    with shared.at(place), refusing(place, "no Deployments today"):
        apply(asked(), namespace=place)
        said = expect_condition(place, "Accepted", "False", "RefusedByServer")
        assert f"ValidatingAdmissionPolicy '{place}'" in said
        assert "no Deployments today" in said
