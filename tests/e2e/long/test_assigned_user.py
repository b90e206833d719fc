"""The operator as a user that its platform assigns, as OpenShift does: one that no image knows, in the group root."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, apply, delete, kubectl
from support.live import RELEASE, RESOURCE, Flyball, helm
from support.node import container_pid, on_node
from support.operators import expect_condition, idle_service
from support.policies import assigning_users

pytestmark = pytest.mark.cluster

#: Of the range of a namespace on OpenShift.
USER = 1_000_670_000


@pytest.fixture
def assigned(flyball: Flyball) -> Iterator[Flyball]:
    """The release, its pods all made anew where each gets this user and none may ask for another."""
    try:
        with assigning_users(flyball.namespace, USER):
            flyball.install(runAsAssignedUser=True)
            yield flyball
            kubectl("delete", "pod", f"{RELEASE}-test", "-n", flyball.namespace, "--ignore-not-found")
    finally:
        flyball.install(runAsAssignedUser=False)


def credentials(pod: Object, what: str) -> set[int]:
    """Users or groups of the operator's process, as the node sees it: real, effective, saved and of the file system."""
    status = on_node("cat", f"/proc/{container_pid(pod, container='operator')}/status")
    (line,) = re.findall(rf"^{what}:(.*)$", status, re.MULTILINE)
    return {int(one) for one in line.split()}


def test_the_operator_and_its_helm_test_run_as_an_assigned_user(assigned: Flyball) -> None:
    eventually(lambda: len(assigned.operator_pods()) == 1, expecting="the pod before is gone")
    (pod,) = assigned.operator_pods()
    assert pod["spec"]["securityContext"]["runAsUser"] == USER
    assert (credentials(pod, "Uid"), credentials(pod, "Gid")) == ({USER}, {0})
    eventually(lambda: assigned.leader() == pod["metadata"]["name"], expecting="it leads", within=240)
    apply(idle_service("assigned"), namespace=assigned.watched)
    try:
        expect_condition(assigned.watched, "Accepted", "True", "Accepted", name="assigned")
    finally:
        delete(RESOURCE, "assigned", namespace=assigned.watched)
    told = helm("test", RELEASE, "-n", assigned.namespace, "--logs", "--timeout", "3m")
    assert "OK    operator: " in told
