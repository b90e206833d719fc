"""The way from gateways to a service: what is made and removed, what gateways answer, and what a cluster may lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flyball_operator.api.objects import timestamp
from flyball_operator.kube.errors import ClusterError, ForbiddenError, UnavailableError
from flyball_operator.kube.resources import HTTP_ROUTES, INFERENCE_POOLS, INFERENCE_SERVICES, SERVICES, Resource
from support.memory_api import CrashError, MemoryApi, Object
from support.memory_cluster import MemoryCluster, service
from support.watched_cluster import WatchedCluster

EDGE: Object = {"name": "edge", "namespace": "infra"}
GATEWAY: Object = {"parentRefs": [EDGE], "hostnames": ["llm.example.com"]}
PICKED: Object = {**GATEWAY, "endpointPicker": {"name": "picker"}}
KINDS = (HTTP_ROUTES, INFERENCE_POOLS)
YES: dict[str, str] = {"Accepted": "True", "ResolvedRefs": "True"}


class ForbiddingApi(MemoryApi):
    """Refuses verbs on kinds of the Gateway API."""

    def __init__(self, *verbs: str, error: type[ClusterError] = ForbiddenError) -> None:
        super().__init__()
        self.verbs, self.error = verbs, error

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """A read."""
        if "get" in self.verbs and resource in KINDS:
            raise self.error(f"cannot get {resource.plural}")
        return await super().get(resource, namespace, name)

    def _begin(self, verb: str, resource: Resource) -> None:
        if verb in self.verbs and resource in KINDS:
            raise self.error(f"cannot {verb} {resource.plural}")
        super()._begin(verb, resource)


class EndingApi(MemoryApi):
    """Ends the operator as it has made the route."""

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """POST."""
        made = await super().create(resource, namespace, body)
        if resource is HTTP_ROUTES:
            raise CrashError
        return made


def routed(gateway: Object = GATEWAY, api: MemoryApi | None = None) -> MemoryCluster:
    """A service that names gateways, once all is made."""
    world = MemoryCluster(api)
    world.apply(service(spec__gateway=gateway))
    return world


def change_gateway(world: MemoryCluster, gateway: Object | None) -> None:
    def change(found: Object) -> None:
        found["spec"].pop("gateway", None)
        found["spec"] |= {} if gateway is None else {"gateway": gateway}

    world.change(change)


def answers(
    world: MemoryCluster,
    resource: Resource = HTTP_ROUTES,
    said: Mapping[str, str] = YES,
    *,
    parent: Object = EDGE,
    generation: int | None = None,
    **words: Any,
) -> None:
    """A gateway says of a route or pool what it makes of it, of that generation or of the present one."""

    def change(found: Object) -> None:
        of = found["metadata"]["generation"] if generation is None else generation
        conditions = [
            {"type": kind, "status": status, "observedGeneration": of, "reason": "Why", "message": "so", **words}
            for kind, status in said.items()
        ]
        found["status"] = {"parents": [{"parentRef": parent, "conditions": conditions}]}

    world.api.edit(resource, "chat", change)
    world.settle()


def made_now(world: MemoryCluster) -> None:
    """Route and pool are so young that gateways may be about to answer."""
    made = timestamp(world.now)
    for kind in KINDS:
        world.api.edit(kind, "chat", lambda found: found["metadata"].update(creationTimestamp=made))


def spec(world: MemoryCluster, resource: Resource = HTTP_ROUTES) -> Object:
    found: Object = world.api.one(resource, "chat")["spec"]
    return found


def test_the_route_leads_the_openai_api_to_the_service_for_as_long_as_an_answer_takes() -> None:
    world = routed()
    (rule,) = spec(world)["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"], backend["port"]) == ("Service", "chat", 8000)
    assert rule["timeouts"] == {"request": "0s"}
    assert spec(world)["hostnames"] == ["llm.example.com"]
    assert world.api.find(INFERENCE_POOLS) == []
    assert world.condition("Ready") == ("True", "Serving"), "of pods, whatever gateways say"


def test_a_picker_chooses_among_the_pods_of_the_service() -> None:
    world = routed(PICKED)
    (rule,) = spec(world)["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["group"], backend["kind"], backend["name"]) == (
        "inference.networking.k8s.io",
        "InferencePool",
        "chat",
    )
    pool = spec(world, INFERENCE_POOLS)
    assert pool["selector"]["matchLabels"] == world.api.one(SERVICES, "chat")["spec"]["selector"]
    assert pool["targetPorts"] == [{"number": 8000}]
    picker = pool["endpointPickerRef"]
    assert (picker["name"], picker["port"], picker["failureMode"]) == ("picker", {"number": 9002}, "FailClose")


def test_edits_are_applied_and_what_is_not_asked_for_any_more_is_removed() -> None:
    world = routed(PICKED)
    change_gateway(world, GATEWAY | {"hostnames": []})
    assert "hostnames" not in spec(world)
    assert spec(world)["rules"][0]["backendRefs"][0]["kind"] == "Service"
    assert world.api.find(INFERENCE_POOLS) == []
    change_gateway(world, None)
    assert world.api.find(HTTP_ROUTES) == []
    assert "Routed" not in world.conditions()


def test_what_others_change_in_the_route_is_taken_back() -> None:
    world = routed()
    wanted = spec(world)
    world.api.edit(HTTP_ROUTES, "chat", lambda found: found["spec"].update(hostnames=["other.example.com"]))
    world.settle()
    assert spec(world) == wanted


@pytest.mark.parametrize("resource", KINDS)
def test_a_foreign_object_of_that_name_is_left_alone(resource: Resource) -> None:
    world = MemoryCluster()
    theirs = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"theirs": True}}
    world.api.put(resource, theirs)
    world.apply(service(spec__gateway=PICKED))
    assert world.condition("Accepted") == ("True", "Accepted"), "pods and Service need no route"
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Routed") == ("False", "NameConflict")
    assert "kubectl delete" in world.message("Routed")
    assert [len(world.api.find(kind)) for kind in KINDS if kind is not resource] == [0], "no half of the way is made"
    change_gateway(world, None)
    assert "Routed" not in world.conditions(), "where none is made, the name is anybody's"
    assert spec(world, resource) == {"theirs": True}


def test_it_is_routed_once_every_gateway_has_accepted_route_and_pool() -> None:
    world = routed(PICKED | {"parentRefs": [EDGE, {"name": "inner", "sectionName": "https"}]})
    inner: Object = {"name": "inner", "namespace": "ns", "sectionName": "https", "kind": "Gateway"}
    answers(world)
    assert world.condition("Routed") == ("False", "RoutePending")
    assert "HTTPRoute on Gateway ns/inner (https)" in world.message("Routed")
    both = [_answer(one) for one in (EDGE, inner)]
    world.api.edit(HTTP_ROUTES, "chat", lambda found: found.update(status={"parents": both}))
    made_now(world)
    world.look()
    assert world.message("Routed").startswith("InferencePool on Gateway infra/edge")
    pools = [_answer({**one, "sectionName": ""}) for one in (EDGE, inner)]
    world.api.edit(INFERENCE_POOLS, "chat", lambda found: found.update(status={"parents": pools}))
    world.settle()
    assert world.condition("Routed") == ("True", "AcceptedByGateway")


def _answer(parent: Object) -> Object:
    conditions = [{"type": kind, "status": "True", "reason": kind, "message": ""} for kind in YES]
    return {"parentRef": parent, "conditions": conditions}


@pytest.mark.parametrize("refused", YES)
def test_a_gateway_s_refusal_is_told_in_its_words(refused: str) -> None:
    world = routed()
    answers(world, said={**YES, refused: "False"}, reason="NotAllowedByListeners", message="no listener allows ns")
    assert world.condition("Routed") == ("False", "RefusedByGateway")
    assert world.message("Routed").startswith(
        f"HTTPRoute on Gateway infra/edge: {refused} is False, NotAllowedByListeners: no listener allows ns"
    )
    assert world.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    "unsaid",
    [
        {"parent": {"name": "edge"}},
        {"parent": {"name": "edge", "namespace": "infra", "kind": "Service"}},
        {"generation": 0},
        {"said": {"Accepted": "True"}},
        {"said": {"Accepted": "Unknown", "ResolvedRefs": "True"}},
    ],
    ids=["of another namespace", "of another kind", "of an earlier route", "in part", "not yet known"],
)
def test_an_answer_that_is_of_something_else_is_none(unsaid: dict[str, Any]) -> None:
    world = routed()
    if unsaid.get("generation") == 0:
        world.api.edit(HTTP_ROUTES, "chat", lambda found: found["metadata"].update(generation=5))
        unsaid = {"generation": 4}
    answers(world, **unsaid)
    assert world.condition("Routed") == ("False", "RoutePending")


def test_without_the_gateway_api_the_service_serves_and_the_route_is_made_once_it_is_there() -> None:
    api = MemoryApi()
    api.unknown |= set(KINDS)
    world = routed(PICKED, api)
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Routed") == ("False", "GatewayApiMissing")
    assert world.message("Routed").startswith(
        "HTTPRoute: the cluster has no gateway.networking.k8s.io/v1; install the Gateway API CRDs"
    )
    api.unknown.remove(HTTP_ROUTES)
    world.settle()
    assert world.message("Routed").startswith("InferencePool: the cluster has no inference.networking.k8s.io/v1")
    assert api.find(HTTP_ROUTES) == [], "no route leads to a pool that is not there"
    api.unknown.clear()
    world.settle()
    assert world.condition("Routed") == ("False", "RoutePending")
    assert [len(api.find(kind)) for kind in KINDS] == [1, 1]


@pytest.mark.parametrize("verb", ["get", "create"])
def test_what_the_api_server_refuses_of_it_holds_up_nothing_else(verb: str) -> None:
    api = ForbiddingApi(verb)
    world = routed(api=api)
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Accepted") == ("True", "Accepted")
    assert world.condition("Routed") == ("False", "RefusedByServer")
    assert f"cannot {verb} httproutes" in world.message("Routed")
    api.verbs = ()
    world.settle()
    assert world.condition("Routed") == ("False", "RoutePending")


@pytest.mark.parametrize("verb", ["get", "create", "apply"])
def test_an_api_server_that_cannot_do_it_holds_up_nothing_else(verb: str) -> None:
    api = ForbiddingApi(error=UnavailableError)
    world = routed(api=api)
    api.verbs = (verb,)
    change_gateway(world, GATEWAY | {"hostnames": ["other.example.com"]})
    if verb == "create":
        api.objects.pop((HTTP_ROUTES.plural, "ns", "chat"))
        world.settle()
    world.change(lambda found: found["spec"].update(replicas=2))
    assert world.condition("Routed") == ("False", "RefusedByServer")
    assert world.condition("Ready") == ("True", "Serving")
    found = world.api.one(INFERENCE_SERVICES, "chat")
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    api.verbs = ()
    world.settle()
    assert spec(world)["hostnames"] == ["other.example.com"]


def test_who_rewrites_the_route_after_each_apply_is_told_and_the_service_goes_on() -> None:
    world = routed()
    for _ in range(4):
        world.api.edit(HTTP_ROUTES, "chat", lambda found: found["spec"]["rules"][0].update(timeouts={"request": "5s"}))
        world.settle()
    assert world.condition("Routed") == ("False", "ChangedByOthers")
    assert "HTTPRoute chat" in world.message("Routed")
    assert world.condition("Accepted") == ("True", "Accepted")
    assert world.condition("Ready") == ("True", "Serving")


def test_a_gateway_that_says_nothing_of_pools_is_believed_by_its_answer_on_the_route() -> None:
    world = routed(PICKED)
    made_now(world)
    world.api.edit(HTTP_ROUTES, "chat", lambda found: found.update(status={"parents": [_answer(EDGE)]}))
    world.look()
    assert world.condition("Routed") == ("False", "RoutePending")
    world.settle()
    assert world.condition("Routed") == ("True", "AcceptedByGateway")
    answers(world, INFERENCE_POOLS, {**YES, "ResolvedRefs": "False"})
    assert world.condition("Routed") == ("False", "RefusedByGateway")


def test_the_route_says_no_timeout_where_the_gateway_is_to_have_its_own() -> None:
    world = routed(GATEWAY | {"requestTimeout": "GatewayDefault"})
    assert "timeouts" not in spec(world)["rules"][0]


def test_a_route_that_nobody_may_look_at_is_not_taken_for_gone() -> None:
    api = ForbiddingApi()
    world = routed(api=api)
    api.verbs = ("get",)
    change_gateway(world, None)
    assert world.condition("Routed") == ("False", "RefusedByServer")
    api.verbs = ()
    world.settle()
    assert api.find(HTTP_ROUTES) == []
    assert "Routed" not in world.conditions()


def test_a_removed_field_takes_the_route_away_though_the_operator_ended_as_it_was_made() -> None:
    world = MemoryCluster(EndingApi())
    world.api.put(INFERENCE_SERVICES, service(spec__gateway=GATEWAY))
    world.look()
    assert world.condition("Routed") == ("False", "RoutePending"), "said before anything is made"
    with pytest.raises(CrashError):
        world.look()
    assert world.api.find(HTTP_ROUTES)
    world.restart()
    change_gateway(world, None)
    assert world.api.find(HTTP_ROUTES) == []


def test_a_service_without_gateways_costs_no_read_of_their_kinds() -> None:
    world = MemoryCluster()
    world.apply(service())
    world.change(lambda found: found["spec"].update(replicas=2))
    assert not [kind for kind in KINDS if world.api.reads["get", kind.plural]]


def test_gateways_that_may_be_about_to_answer_are_asked_soon_and_others_with_the_resync() -> None:
    world = routed()
    made = timestamp(world.now)
    world.api.edit(HTTP_ROUTES, "chat", lambda found: found["metadata"].update(creationTimestamp=made))
    soon = world.look()
    assert soon is not None
    assert soon < 10
    world.wait(200)
    assert world.look() is None


def test_a_routed_service_is_looked_at_once_a_resync_and_no_more() -> None:
    world = WatchedCluster(spec__gateway=GATEWAY)
    world.counted()
    world.now_passes(60)
    world.resync()
    assert not world.api.reads["get", "httproutes"], "nothing is newer, and the last look is young"
    world.api.edit(HTTP_ROUTES, "chat-0", lambda found: found["spec"].update(hostnames=["other.example.com"]))
    world.now_passes(250)
    world.resync()
    world.run()
    assert world.api.one(HTTP_ROUTES, "chat-0")["spec"]["hostnames"] == ["llm.example.com"]


def test_while_a_spec_is_not_accepted_it_says_what_gateways_do_meanwhile() -> None:
    world = routed()
    break_spec(world)
    assert world.condition("Routed") == ("False", "NotAccepted")
    change_gateway(world, GATEWAY)
    answers(world)
    break_spec(world)
    assert world.condition("Routed") == ("True", "NotAccepted"), "the gateway serves on"
    change_gateway(world, GATEWAY)
    assert world.condition("Routed") == ("True", "AcceptedByGateway")


def break_spec(world: MemoryCluster) -> None:
    """An edit that the schema of an older CRD let through."""
    change_gateway(world, {"parentRefs": []})
