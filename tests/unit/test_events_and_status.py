"""Events do not repeat themselves, and the tuner's status is written no more often than it must be."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.api.parse import parse_service
from flyball_operator.api.v1alpha1 import Condition, ConditionType, InferenceService, SetpointStatus, TuningStatus
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import ConflictError, UnavailableError
from flyball_operator.kube.events import BURST, REPEAT_SECONDS, EventPoster
from flyball_operator.kube.status import QUIET_SECONDS, TunerStatus


class Recorder:
    """Takes writes down, and refuses as many as it is told to."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.sent: list[Object] = []
        self.refusals: list[Exception] = []
        self.uid = "s1"

    async def create(self, resource: object, namespace: str, body: Object) -> Object:
        return self._take(body)

    async def apply(self, resource: object, body: Object, *, subresource: str) -> Object:
        return self._take(body)

    async def get(self, resource: object, namespace: str, name: str) -> Object:
        return {"metadata": {"name": name, "namespace": namespace, "uid": self.uid, "resourceVersion": "99"}}

    def _take(self, body: Object) -> Object:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(body)
        return body


def service(*, version: str = "5", **status: Any) -> InferenceService:
    found = good(metadata__namespace="ns")
    found["metadata"] |= {"uid": "s1", "resourceVersion": version, "generation": 3}
    return parse_service(found | {"status": status})


def poster(api: Recorder) -> EventPoster:
    return EventPoster(
        cast("KubeApi", api),
        instance="pod-1",
        clock=lambda: api.clock,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        new_id=lambda: str(len(api.sent)),
    )


def post(events: EventPoster, reason: str, message: str = "") -> None:
    asyncio.run(events.post(service(), type="Normal", reason=reason, message=message))


def test_the_same_words_are_said_once_in_ten_minutes() -> None:
    api = Recorder()
    events = poster(api)
    for _ in range(3):
        post(events, "Retuned", "seqs 8 to 16")
    post(events, "Retuned", "seqs 16 to 8")
    assert len(api.sent) == 2
    api.clock = REPEAT_SECONDS
    post(events, "Retuned", "seqs 8 to 16")
    assert len(api.sent) == 3


def test_a_storm_of_different_words_is_bounded() -> None:
    api = Recorder()
    events = poster(api)
    for number in range(500):
        post(events, "Retuned", str(number))
    assert len(api.sent) == BURST


def test_an_event_that_cannot_be_posted_hurts_nobody() -> None:
    api = Recorder()
    api.refusals = [UnavailableError("down")]
    post(poster(api), "Retuned")
    assert not api.sent


def test_an_event_names_its_service_by_uid() -> None:
    api = Recorder()
    post(poster(api), "Retuned", "x" * 5000)
    (event,) = api.sent
    assert event["involvedObject"]["uid"] == "s1"
    assert len(event["message"]) <= 1024


def writer(api: Recorder) -> TunerStatus:
    return TunerStatus(cast("KubeApi", api), clock=lambda: api.clock, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))


def write(
    status: TunerStatus, *, seqs: int = 8, met: str = "", tuned: str = "True", found: InferenceService | None = None
) -> None:
    tuning = TuningStatus(epoch=1, generation=seqs, setpoint=SetpointStatus(max_num_active_seqs=seqs))
    condition = Condition(type=ConditionType.TUNED, status=tuned, reason="Because", observed_generation=3)
    asyncio.run(
        status.write(
            found or service(),
            tuning=tuning,
            objectives=(),
            objectives_met=met,
            desired_replicas=None,
            conditions=[condition],
        )
    )


def test_figures_wait_a_minute_setpoints_and_conditions_do_not() -> None:
    api = Recorder()
    status = writer(api)
    write(status, met="1/2")
    api.clock += 5
    write(status, met="2/2")
    assert len(api.sent) == 1
    write(status, met="2/2", seqs=9)
    write(status, met="2/2", seqs=9, tuned="False")
    assert len(api.sent) == 3
    write(status, met="1/2", seqs=9, tuned="False")
    assert len(api.sent) == 3
    api.clock += QUIET_SECONDS
    write(status, met="1/2", seqs=9, tuned="False")
    assert len(api.sent) == 4


def test_a_new_process_finds_its_part_written_and_writes_nothing() -> None:
    api = Recorder()
    write(writer(api))
    (sent,) = api.sent
    write(writer(api), found=service(**sent["status"]))
    assert len(api.sent) == 1


def test_a_status_of_a_newer_version_is_written_once_by_its_own_dates() -> None:
    api = Recorder()
    status = writer(api)
    write(status, met="1/2")
    (sent,) = api.sent
    later = copy.deepcopy(sent["status"])
    later["conditions"][0]["lastTransitionTime"] = "2026-01-01T01:00:00Z"
    for _ in range(3):
        api.clock += QUIET_SECONDS
        write(status, met="1/2", found=service(version="8", **later))
    assert [one["status"]["conditions"][0]["lastTransitionTime"] for one in api.sent[1:]] == ["2026-01-01T01:00:00Z"]


def test_a_write_that_failed_but_landed_is_put_right() -> None:
    api = Recorder()
    status = writer(api)
    write(status)
    (sent,) = api.sent
    api.refusals = [UnavailableError("timed out")]
    with pytest.raises(UnavailableError):
        write(status, seqs=9)
    landed = {**sent["status"]["tuning"], "generation": 9, "setpoint": {"maxNumActiveSeqs": 9}}
    write(status, found=service(**sent["status"] | {"tuning": landed}))
    assert [item["status"]["tuning"]["generation"] for item in api.sent] == [8, 8]


def test_a_conflict_with_the_reconciler_is_written_again_to_what_is_there_now() -> None:
    api = Recorder()
    api.refusals = [ConflictError("moved on"), ConflictError("moved on")]
    write(writer(api))
    (sent,) = api.sent
    assert sent["metadata"]["resourceVersion"] == "99"


def test_the_status_of_another_service_of_the_name_is_not_written() -> None:
    api = Recorder()
    api.uid = "s2"
    api.refusals = [ConflictError("another UID")]
    with pytest.raises(ConflictError):
        write(writer(api))
    assert not api.sent
