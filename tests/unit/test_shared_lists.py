"""What many want to read of a namespace at the same time, and who gets what of one request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from flyball_lab.harness.manifests import Object
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.errors import UnavailableError
from flyball_operator.kube.resources import EVENTS, PODS, REVISIONS
from flyball_operator.kube.shared_lists import MOST_VALUES, SharedLists
from support.memory_api import chosen

LABEL = "team.example/service"
#: Of several objects at once: all events but those that tell of no trouble.
TELLING = (
    "reason!=Scheduled,reason!=Created,reason!=Started,reason!=Killing,reason!=SuccessfulCreate,"
    "reason!=ScalingReplicaSet"
)


class Server:
    """Has a pod of each service. It answers once it is let; `asked` has what was asked, in order."""

    def __init__(self) -> None:
        self.pods = [pod(f"u{number}") for number in range(200)]
        self.asked: list[str] = []
        self.let = asyncio.Event()
        self.error: Exception | None = None

    async def list(
        self, resource: Any, namespace: str, *, selector: str = "", fields: str = "", part: Any = None
    ) -> tuple[list[Object], str]:
        self.asked.append(f"{namespace}/{resource.plural} {selector}{fields}")
        await self.let.wait()
        if self.error is not None:
            raise self.error
        if resource is EVENTS:
            of_several = {"p": TELLING, "s": "involvedObject.kind=StatefulSet"}
            return [
                part(event(one))
                for one in ("p1", "p2", "p3", "s1", "s2")
                if fields in (f"involvedObject.uid={one}", of_several[one[0]])
            ], ""
        return [one for one in self.pods if chosen(one["metadata"]["labels"], selector)], "1"

    def expect_asked(self, *requests: str) -> None:
        assert self.asked == list(requests)


def pod(service: str) -> Object:
    return {"metadata": {"name": f"of-{service}", "labels": {LABEL: service}}}


def event(about: str) -> Object:
    return {"metadata": {"name": f"of-{about}"}, "involvedObject": {"uid": about}, "reason": "FailedMount"}


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
def lists(server: Server) -> SharedLists:
    return SharedLists(cast("KubeApi", server))


def wanted(lists: SharedLists, *services: str, namespace: str = "team") -> list[asyncio.Task[list[Object]]]:
    """Each is asked for in a task of its own."""
    return [asyncio.create_task(lists.of(PODS, namespace, LABEL, service)) for service in services]


async def sent() -> None:
    """Let the tasks go on until each waits for the server."""
    for _ in range(5):
        await asyncio.sleep(0)


async def expect_each_its_own(tasks: list[asyncio.Task[list[Object]]], *services: str) -> None:
    assert await asyncio.gather(*tasks) == [[pod(service)] for service in services]


async def test_one_that_nobody_else_wants_is_asked_for_at_once(server: Server, lists: SharedLists) -> None:
    tasks = wanted(lists, "u1")
    await sent()
    server.expect_asked(f"team/pods {LABEL}=u1")
    server.let.set()
    await expect_each_its_own(tasks, "u1")


async def test_those_that_are_wanted_meanwhile_are_one_request_after_it(server: Server, lists: SharedLists) -> None:
    tasks = wanted(lists, "u1")
    await sent()
    tasks += wanted(lists, "u3", "u2")
    await sent()
    server.expect_asked(f"team/pods {LABEL}=u1")
    server.let.set()
    await expect_each_its_own(tasks, "u1", "u3", "u2")
    server.expect_asked(f"team/pods {LABEL}=u1", f"team/pods {LABEL} in (u2,u3)")


async def test_an_answer_is_never_older_than_the_question(server: Server, lists: SharedLists) -> None:
    first = wanted(lists, "u1")
    await sent()
    again = wanted(lists, "u1")
    server.let.set()
    await asyncio.gather(*first, *again)
    server.expect_asked(*[f"team/pods {LABEL}=u1"] * 2)


async def test_of_a_service_without_any_the_list_is_empty(server: Server, lists: SharedLists) -> None:
    server.let.set()
    tasks = wanted(lists, "u1", "none")
    assert await asyncio.gather(*tasks) == [[pod("u1")], []]


async def test_another_namespace_or_kind_waits_for_nobody(server: Server, lists: SharedLists) -> None:
    tasks = wanted(lists, "u1")
    tasks += wanted(lists, "u1", namespace="other")
    tasks.append(asyncio.create_task(lists.of(REVISIONS, "team", LABEL, "u1")))
    await sent()
    server.expect_asked(*(f"{of} {LABEL}=u1" for of in ("team/pods", "other/pods", "team/controllerrevisions")))
    server.let.set()
    await asyncio.gather(*tasks)


async def test_a_request_has_a_bound(server: Server, lists: SharedLists) -> None:
    services = [f"u{number:03}" for number in range(100, 100 + MOST_VALUES + 1)]
    server.let.set()
    await expect_each_its_own(wanted(lists, *services), *services)
    assert [request.count(",") + 1 for request in server.asked] == [MOST_VALUES, 1]


async def test_events_of_one_object_are_asked_for_by_its_uid_and_of_several_in_one_request(
    server: Server, lists: SharedLists
) -> None:
    first = asyncio.create_task(lists.events("team", "p1"))
    await sent()
    later = [asyncio.create_task(lists.events("team", pod)) for pod in ("p2", "p3", "p2", "none")]
    await sent()
    server.let.set()
    assert await asyncio.gather(first, *later) == [[event("p1")], [event("p2")], [event("p3")], [event("p2")], []]
    server.expect_asked("team/events involvedObject.uid=p1", f"team/events {TELLING}")


async def test_of_several_stateful_sets_all_events_of_their_kind_are_read(server: Server, lists: SharedLists) -> None:
    asked = [asyncio.create_task(lists.events_of_stateful_set("team", one)) for one in ("s1", "s2")]
    pods = asyncio.create_task(lists.events("team", "p1"))
    await sent()
    server.let.set()
    assert await asyncio.gather(*asked, pods) == [[event("s1")], [event("s2")], [event("p1")]]
    server.expect_asked("team/events involvedObject.kind=StatefulSet", "team/events involvedObject.uid=p1")


async def test_who_shares_a_request_shares_its_refusal_and_the_next_one_is_sent(
    server: Server, lists: SharedLists
) -> None:
    server.error = UnavailableError("away")
    server.let.set()
    for outcome in await asyncio.gather(*wanted(lists, "u1", "u2"), return_exceptions=True):
        assert isinstance(outcome, UnavailableError)
    server.error = None
    await expect_each_its_own(wanted(lists, "u1"), "u1")


async def test_who_waits_no_more_holds_up_nobody(server: Server, lists: SharedLists) -> None:
    left, *others = wanted(lists, "u1", "u2")
    await sent()
    left.cancel()
    server.let.set()
    await expect_each_its_own(others, "u2")
    await expect_each_its_own(wanted(lists, "u3"), "u3")


async def test_who_waits_for_a_request_that_is_cancelled_waits_no_more(server: Server, lists: SharedLists) -> None:
    tasks = wanted(lists, "u1")
    await sent()
    tasks += wanted(lists, "u2")
    await sent()
    (request,) = (one for one in asyncio.all_tasks() if "_ask" in repr(one.get_coro()))
    request.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError)
    server.let.set()
    await expect_each_its_own(wanted(lists, "u1"), "u1")
