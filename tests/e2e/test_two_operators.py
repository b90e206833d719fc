"""Two replicas of the operator: one acts, the other takes over, and never do both write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby

import pytest

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, kubectl, patch, throughout
from support.live import RESOURCE, Flyball, Service
from support.node import container_pid, kill_container, signal_process

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pair(flyball: Flyball) -> Iterator[Flyball]:
    """The release with two operators; what a scenario did to one before may still be mending."""
    flyball.install(replicas=2)
    yield flyball
    flyball.install(replicas=1)


def expect_a_leader_and_a_standby(pair: Flyball) -> str:
    """Assert that both operators run and one of them leads; its name."""
    eventually(
        lambda: len([pod for pod in pair.operator_pods() if runs(pod)]) == 2 and pair.leader(),
        expecting="a leader and a standby",
        within=240,
    )
    return pair.leader()


def exercise(chat: Service, seqs: int) -> None:
    """Make the leader write: a pinned limit is an intent in status, a push, a confirmation."""
    bounds = {"maxNumActiveSeqs": {"min": seqs, "max": seqs}}
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": bounds}}}, namespace=chat.namespace)
    eventually(lambda: chat.effective()["max_num_active_seqs"] == seqs, expecting=f"{seqs} at once", within=180)


def expect_successions(flyball: Flyball, since: int, *, leaders: int) -> None:
    """Assert that writers follow each other and never interleave."""
    order = [pod for pod, _ in groupby(pod for pod, _ in flyball.writes()[since:])]
    assert len(order) == len(set(order)) <= leaders, f"writers interleave: {order}"


#: Seconds from the SIGTERM of a deletion to the SIGKILL.
GRACE = {"KILL": "1", "TERM": "30"}


# A lease that runs out is waited for below, too, where the one that held it comes back.
@pytest.mark.parametrize("how", [pytest.param("KILL", marks=pytest.mark.long), "TERM"])
def test_the_other_takes_over(chat: Service, pair: Flyball, how: str, note_figure: Callable[[str], None]) -> None:
    first = expect_a_leader_and_a_standby(pair)
    since = len(pair.writes())
    exercise(chat, 17)
    (leader,) = (pod for pod in pair.operator_pods() if pod["metadata"]["name"] == first)
    epoch = chat.obeyed_epoch()
    began = time.monotonic()
    if how == "KILL":
        kill_container(leader, container="operator")
    # Deleting sends a SIGTERM, upon which a leader hands over in order; one that was killed hears nothing of it.
    # The pod is to go in any case: the kubelet starts an ended container again, and that may be the next leader.
    kubectl("delete", "pod", first, "-n", pair.namespace, "--wait=false", "--grace-period=" + GRACE[how])
    eventually(lambda: pair.leader() not in ("", first), expecting="another leader", within=240)
    taken = time.monotonic() - began
    eventually(lambda: chat.obeyed_epoch() > epoch, expecting="the new leader's epoch in the status", within=240)
    exercise(chat, 19)
    expect_successions(pair, since, leaders=2)
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)
    note_figure(
        f"SIG{how}: another leader after {taken:.1f} s; the engine refused {chat.refused_setpoints()} setpoints"
    )


@pytest.mark.long
def test_a_leader_that_stands_still_and_goes_on_moves_no_engine(
    chat: Service, pair: Flyball, note_figure: Callable[[str], None]
) -> None:
    first = expect_a_leader_and_a_standby(pair)
    since = len(pair.writes())
    exercise(chat, 17)
    epoch = chat.obeyed_epoch()
    (leader,) = (pod for pod in pair.operator_pods() if pod["metadata"]["name"] == first)
    pid = container_pid(leader, container="operator")
    signal_process(pid, "STOP")
    try:
        eventually(lambda: pair.leader() not in ("", first), expecting="another leader", within=240)
        eventually(lambda: chat.obeyed_epoch() > epoch, expecting="the new leader's epoch", within=240)
        exercise(chat, 19)
        epoch = chat.obeyed_epoch()
    finally:
        with suppress(AssertionError):  # the kubelet may have ended it: it answered no probe
            signal_process(pid, "CONT")
    expect_a_leader_and_a_standby(pair)
    throughout(
        lambda: chat.effective()["max_num_active_seqs"] == 19 and chat.obeyed_epoch() == epoch,
        expecting="the engine to obey the new leader alone",
        seconds=15,
    )
    expect_successions(pair, since, leaders=2)
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)
    note_figure(f"the engine refused {chat.refused_setpoints()} setpoints")


def runs(pod: Object) -> bool:
    """Whether its operator is up, and ready to lead or to stand by."""
    (status,) = pod["status"].get("containerStatuses") or [{}]
    return bool(status.get("ready"))
