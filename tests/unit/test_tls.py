"""TLS on the OpenAI port: what the Service and the status say follows the pods that there are."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Object
from flyball_operator.kube.resources import INFERENCE_SERVICES, SERVICES
from support.memory_cluster import MemoryCluster, service

PLAIN = "http://chat.ns.svc:8000"
SECURE = "https://chat.ns.svc:8000"
HTTP: Object = {"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}
#: The same port of the pods: those of an earlier template are endpoints until the last of them is replaced.
HTTPS = HTTP | {"name": "https", "appProtocol": "https"}


def serving(**changes: Any) -> MemoryCluster:
    world = MemoryCluster()
    world.apply(service(**changes))
    return world


def with_tls(image: str = "engine:good") -> Any:
    """An edit that asks for TLS, and for this image."""
    return lambda found: found["spec"]["engine"].update(tls={"secretName": "chat-tls"}, image=image)


def ports(world: MemoryCluster) -> list[Object]:
    found: list[Object] = world.api.one(SERVICES, "chat")["spec"]["ports"]
    return found


def url(world: MemoryCluster) -> str:
    return str(world.api.one(INFERENCE_SERVICES, "chat")["status"]["url"])


def test_the_service_and_the_url_say_the_scheme() -> None:
    assert (ports(serving()), url(serving())) == ([HTTP], PLAIN)
    secured = serving(spec__engine__tls={"secretName": "chat-tls"})
    assert (ports(secured), url(secured)) == ([HTTPS], SECURE)


def test_tls_comes_and_goes_with_an_edit() -> None:
    world = serving()
    world.change(with_tls())
    assert (ports(world), url(world)) == ([HTTPS], SECURE)
    world.change(lambda found: found["spec"]["engine"].pop("tls"))
    assert (ports(world), url(world)) == ([HTTP], PLAIN)


def test_after_a_rollout_that_failed_they_say_what_the_pods_that_are_back_speak() -> None:
    world = serving(spec__rollout={"startupTimeout": "10s"})
    world.change(with_tls("engine:bad"))
    world.wait(600)
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert (ports(world), url(world)) == ([HTTP], PLAIN)


def test_a_spec_that_is_refused_changes_neither() -> None:
    world = serving(spec__engine__tls={"secretName": "chat-tls"})
    # As a server with another CRD would have let it pass.
    world.change(lambda found: found["spec"]["engine"].update(tls={"secretName": "Not_A_Name"}))
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert (ports(world), url(world)) == ([HTTPS], SECURE)
