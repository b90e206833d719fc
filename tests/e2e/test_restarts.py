"""The operator killed, restarted and upgraded while its services serve."""

from __future__ import annotations

import pytest

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import patch
from support.engine_starts import EngineStarts
from support.live import MODEL, RESOURCE, Flyball, Service
from support.node import kill_container

pytestmark = pytest.mark.cluster


def pin(chat: Service, seqs: int | None) -> None:
    """Pin the active requests by the bounds, or give them free again."""
    bounds = None if seqs is None else {"maxNumActiveSeqs": {"min": seqs, "max": seqs}}
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": bounds}}}, namespace=chat.namespace)
    if seqs is not None:
        eventually(lambda: chat.effective()["max_num_active_seqs"] == seqs, expecting=f"{seqs} at once")


def test_a_killed_operator_costs_no_request_resumes_and_writes_to_no_owned_object(
    chat: Service, flyball: Flyball, starts: EngineStarts
) -> None:
    # Of a service whose engine has just begun to serve, the operator writes that its template is good.
    starts.expect_none()
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=8)
    with load.running() as totals:
        eventually(lambda: trusted(chat), expecting="a model that is trusted", within=300)
        chat.expect_condition("Ready", "True")
        epoch, since = chat.obeyed_epoch(), len(flyball.writes())
        (operator,) = flyball.operator_pods()
        kill_container(operator, container="operator")
        eventually(lambda: chat.obeyed_epoch() > epoch, expecting="the restarted operator governs", within=180)
        assert {resource for _, resource in flyball.writes()[since:]} <= {"inferenceservices"}, "its status alone"
        pin(chat, 13)
        # What the new leader knows at its first change. A busy machine may give it reason to learn anew later.
        resumed = trusted(chat)
        pin(chat, None)
        finished = totals.finished
        eventually(lambda: totals.finished > finished, expecting="requests go on")
    totals.expect_nothing_lost()
    assert resumed, "the learnt model was forgotten"


def trusted(chat: Service) -> bool:
    """Whether the step-time model is used."""
    return bool(chat.tuning().get("model", {}).get("trusted"))


def test_helm_upgrade_keeps_serving(chat: Service, flyball: Flyball) -> None:
    pod = chat.pod()
    epoch = chat.obeyed_epoch()
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=8)
    with load.running() as totals:
        flyball.install(podAnnotations={"flyball.dev/upgrade": "1"})
        eventually(lambda: chat.obeyed_epoch() > epoch, expecting="the new operator leads", within=240)
        chat.expect_governed()
    totals.expect_nothing_lost()
    assert chat.pod()["metadata"]["uid"] == pod["metadata"]["uid"]
    assert (
        chat.pod()["status"]["containerStatuses"][0]["restartCount"]
        == (pod["status"]["containerStatuses"][0]["restartCount"])
    )
