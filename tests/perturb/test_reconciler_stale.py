"""The operator is shown the past, by a lagging API server: nothing of the present may be destroyed for it."""

from __future__ import annotations

import pytest

from flyball_operator.kube.resources import DEPLOYMENTS, OWNED
from support.memory_api import MemoryApi, Object
from support.memory_cluster import MemoryCluster, service


class LaggingApi(MemoryApi):
    """Reads show everything as it was some writes ago, while `lag` says so."""

    lag = 0

    def shown(self) -> dict[tuple[str, str, str], Object]:
        return self.past(self.lag)


def owned(api: MemoryApi) -> dict[str, str]:
    """UID of every owned object there is."""
    found = [item for resource in OWNED.values() for item in api.find(resource)]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in found}


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 8, 13, 21])
def test_a_service_made_again_keeps_its_objects_while_reads_show_the_old_one(lag: int) -> None:
    api = LaggingApi()
    world = MemoryCluster(api)
    world.apply(service())
    world.delete()
    world.apply(service(spec__engine__image="engine:2"))
    before, image = owned(api), world.image()
    api.lag = lag
    world.act()
    world.restart()
    world.act()
    assert owned(api) == before
    assert world.image() == image


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 8])
def test_an_old_spec_never_overwrites_the_new_one(lag: int) -> None:
    api = LaggingApi()
    world = MemoryCluster(api)
    world.apply(service(spec__engine__image="engine:1"))
    world.change(lambda found: found["spec"]["engine"].update(image="engine:2"))
    before = api.one(DEPLOYMENTS, "chat")
    api.lag = lag
    world.act()
    assert api.one(DEPLOYMENTS, "chat") == before
    api.lag = 0
    world.settle()
    assert world.condition("Progressing") == ("True", "RolloutComplete")
