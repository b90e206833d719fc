"""LoRA adapters of a service: what pods are started with, how the list reaches them, and what status says of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from flyball_engine.adapters import (
    ADAPTERS_KEY,
    ADAPTERS_WAIT_SECONDS,
    Adapter,
    AdapterList,
    AdapterReport,
    AdapterState,
)
from flyball_lab.harness.service_tuners import Harness
from flyball_lab.harness.tuning import signals
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.kube.errors import ForbiddenError
from flyball_operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_SERVICES, PODS, Resource
from flyball_operator.tuning.adapters import Told, adapters_verdict
from support.memory_api import MemoryApi, Object
from support.memory_cluster import MemoryCluster, service
from support.watched_cluster import WatchedCluster

SQL, LAW = {"name": "sql", "uri": "hf://org/sql", "revision": "v1"}, {"name": "law", "uri": "file:///adapters/law"}
WANTED = Adapter(name="sql", uri="hf://org/sql", revision="v1"), Adapter(name="law", uri="file:///adapters/law")
LOADED = AdapterState.LOADED


class ForbiddingApi(MemoryApi):
    """Refuses verbs on ConfigMaps, as where the account lacks the right."""

    def __init__(self, *verbs: str) -> None:
        super().__init__()
        self.verbs = verbs

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """A read."""
        if "get" in self.verbs and resource is CONFIG_MAPS:
            raise ForbiddenError("cannot get configmaps")
        return await super().get(resource, namespace, name)

    def _begin(self, verb: str, resource: Resource) -> None:
        if verb in self.verbs and resource is CONFIG_MAPS:
            raise ForbiddenError(f"cannot {verb} configmaps")
        super()._begin(verb, resource)


def adapted(*adapters: dict[str, str], **changes: Any) -> dict[str, Any]:
    return service(spec__adapters=list(adapters), **changes)


def listed(world: MemoryCluster) -> tuple[Adapter, ...]:
    """What pods read."""
    (found,) = world.api.find(CONFIG_MAPS)
    assert found["metadata"]["name"] == "chat-adapters"
    return AdapterList.model_validate_json(found["data"][ADAPTERS_KEY]).adapters


def say(*adapters: dict[str, str]) -> Any:
    return lambda found: found["spec"].update(adapters=list(adapters))


def report(adapter: Adapter, state: AdapterState = LOADED, message: str = "") -> AdapterReport:
    return AdapterReport(adapter=adapter, state=state, message=message)


# What pods are


def test_an_engine_is_started_for_adapters_and_reads_the_list_of_a_volume() -> None:
    world = MemoryCluster()
    world.apply(adapted(SQL))
    pod = world.template()["spec"]
    engine = pod["containers"][0]
    assert "--enable-lora" in json.loads(engine["command"][3].removeprefix("--owned="))
    user = engine["command"][engine["command"].index("--") + 1 :]
    assert user[:2] == ["--max-loras=4", "--max-cpu-loras=32"], "before the user's, which vLLM prefers"
    config_map = {"name": "chat-adapters", "optional": True}
    assert {"name": "flyball-adapters", "configMap": config_map} in pod["volumes"]
    mount = {"name": "flyball-adapters", "mountPath": "/flyball-adapters", "readOnly": True}
    assert mount in engine["volumeMounts"]
    variables = {one["name"]: one.get("value") for one in engine["env"]}
    assert variables["FLYBALL_ADAPTERS_FILE"] == "/flyball-adapters/adapters.json"
    assert listed(world) == WANTED[:1]


@pytest.mark.parametrize(
    ("args", "mixed", "in_memory"),
    [
        (["--max-loras=8"], 4, 32),
        (["--max-loras", "64"], 4, 64),
        (["--max_loras=64"], 4, 64),
        (["--max-loras=64", "--max-loras=2"], 4, 32),
        (["--max-cpu-loras=2"], 2, 32),
        (["--max-cpu-loras=64"], 4, 32),
        (["--max-loras=many"], 4, 32),
        (["--max-loras"], 4, 32),
        (["--max-lora-rank=64"], 4, 32),
    ],
)
def test_each_size_fits_the_user_s_other_one_or_vllm_would_not_start(
    args: list[str], mixed: int, in_memory: int
) -> None:
    world = MemoryCluster()
    world.apply(adapted(SQL, spec__engine={"image": "engine:good", "args": args}))
    command = world.template()["spec"]["containers"][0]["command"]
    ours = [f"--max-loras={mixed}", f"--max-cpu-loras={in_memory}"]
    assert command[command.index("--") + 1 :] == [*ours, *args], "of two spellings vLLM takes the last"


def test_an_engine_has_time_to_load_its_adapters() -> None:
    """It is not Ready meanwhile, and may not be restarted for it."""
    world = MemoryCluster()
    world.apply(adapted(SQL, spec__rollout={"startupTimeout": "5m"}))
    probe = world.template()["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 300 + ADAPTERS_WAIT_SECONDS


def test_a_service_without_a_list_is_as_it_was() -> None:
    world = MemoryCluster()
    world.apply(service())
    assert "lora" not in json.dumps(world.template())
    assert not world.api.find(CONFIG_MAPS)


def test_the_first_list_replaces_the_pods() -> None:
    """Be it empty: then the first adapter replaces none."""
    world = MemoryCluster()
    world.apply(service())
    world.change(say())
    assert "lora" in json.dumps(world.template())
    assert world.condition("Ready") == ("True", "Serving")


def test_the_list_changes_and_no_pod_does() -> None:
    world = MemoryCluster()
    world.apply(adapted())
    before = copy.deepcopy(world.template())
    pods = {pod["metadata"]["uid"] for pod in world.api.find(PODS)}
    for adapters in ((SQL,), (SQL, LAW), (LAW,), ()):
        world.change(say(*adapters))
        assert listed(world) == tuple(one for one in WANTED if one.name in {each["name"] for each in adapters})
    assert world.template() == before
    assert {pod["metadata"]["uid"] for pod in world.api.find(PODS)} == pods


def test_a_hub_s_token_is_in_pods_that_download_adapters_though_the_model_is_in_a_cache() -> None:
    model = {"uri": "hf://org/m", "cache": {"claimName": "models"}, "tokenSecretRef": {"name": "hf", "key": "token"}}
    world = MemoryCluster()
    world.apply(adapted(SQL, spec__model=model))
    variables = {one["name"]: one for one in world.template()["spec"]["containers"][0]["env"]}
    assert variables["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "hf"


def test_the_list_stays_for_pods_of_the_earlier_template_where_adapters_are_removed() -> None:
    world = MemoryCluster()
    world.apply(adapted(SQL))
    before = copy.deepcopy(world.template())
    world.change(lambda found: found["spec"].pop("adapters"))
    assert world.template() != before
    assert "lora" not in json.dumps(world.template())
    assert listed(world) == WANTED[:1]


def test_a_config_map_of_somebody_else_is_left_alone_and_named() -> None:
    world = MemoryCluster()
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "chat-adapters", "namespace": "ns"}}
    world.api.put(CONFIG_MAPS, theirs | {"data": {"mine": "x"}})
    world.apply(adapted(SQL))
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert "kubectl delete configmap chat-adapters -n ns" in world.message("Accepted")
    (found,) = world.api.find(CONFIG_MAPS)
    assert found["data"] == {"mine": "x"}


def test_what_others_write_into_the_list_is_written_anew_at_the_next_resync() -> None:
    world = MemoryCluster()
    world.apply(adapted(SQL))
    world.api.edit(CONFIG_MAPS, "chat-adapters", lambda found: found["data"].update({ADAPTERS_KEY: "{}"}))
    world.wait(600)
    world.settle()
    assert listed(world) == WANTED[:1]


@pytest.mark.parametrize("verb", ["get", "create"])
def test_without_the_right_on_config_maps_all_else_goes_on_and_the_right_is_named(verb: str) -> None:
    api = ForbiddingApi(verb)
    world = MemoryCluster(api)
    world.apply(adapted(SQL, spec__replicas=1))
    assert world.condition("Accepted") == ("False", "RefusedByServer")
    assert f"cannot {verb} configmaps" in world.message("Accepted")
    assert "get, create and patch ConfigMaps in namespace ns" in world.message("Accepted")
    assert world.condition("Available") == ("True", "EndpointsReady")
    world.change(lambda found: found["spec"].update(replicas=3))
    assert world.api.one(DEPLOYMENTS, "chat")["spec"]["replicas"] == 3
    assert len(world.api.find(PODS)) == 3
    api.verbs = ()
    world.settle()
    assert world.condition("Accepted") == ("True", "Accepted")
    assert listed(world) == WANTED[:1]


def test_a_change_of_the_list_that_is_refused_leaves_the_earlier_list_to_pods() -> None:
    api = ForbiddingApi()
    world = MemoryCluster(api)
    world.apply(adapted(SQL))
    api.verbs = ("apply",)
    world.change(say(SQL, LAW))
    assert world.condition("Accepted") == ("False", "RefusedByServer")
    assert listed(world) == WANTED[:1]
    world.change(lambda found: found["spec"].update(replicas=2))
    assert len(world.api.find(PODS)) == 2


def test_who_may_not_touch_config_maps_is_rolled_back_all_the_same() -> None:
    api = ForbiddingApi()
    world = MemoryCluster(api)
    world.apply(adapted(SQL))
    good = world.image()
    api.verbs = ("get", "apply")
    world.change(lambda found: found["spec"]["engine"].update(image="engine:bad"))
    assert world.image() == good
    assert world.condition("Progressing") == ("False", "RolledBack")


def test_a_list_that_somebody_deletes_is_made_again_once_a_pod_lacks_it_before_the_next_resync() -> None:
    world = WatchedCluster(spec__adapters=[SQL])
    world.api.objects.pop((CONFIG_MAPS.plural, "ns", "chat-0-adapters"))
    world.now_passes(60)
    world.run()
    assert not world.api.find(CONFIG_MAPS), "nobody tells"
    lacks = {"type": "AdaptersLoaded", "status": "False", "reason": "ListMissing", "message": "pod-1: it is not there"}
    world.api.edit(INFERENCE_SERVICES, "chat-0", lambda found: found["status"]["conditions"].append(lacks))
    world.run()
    assert [found["metadata"]["name"] for found in world.api.find(CONFIG_MAPS)] == ["chat-0-adapters"]


# What status says


@pytest.mark.parametrize(
    ("pods", "status", "reason", "says"),
    [
        ({"a": Told((report(WANTED[0]), report(WANTED[1])))}, "True", "Loaded", "2 adapters in every Ready pod"),
        ({"a": Told(())}, "Unknown", "Loading", "yet to be loaded or unloaded: a: sql, law"),
        ({}, "Unknown", "Loading", "some pods were not read yet"),
        ({"a": Told(None)}, "False", "StartedWithoutAdapters", "a: its engine was started without adapters"),
        ({"a": Told((), listed=False)}, "False", "ListMissing", "a: the list of adapters is not there"),
        (
            {"a": Told((report(WANTED[0], AdapterState.FAILED, "no\nsuch repository."), report(WANTED[1])))},
            "False",
            "LoadFailed",
            "sql in a: no such repository. It is tried again",
        ),
        (
            {"a": Told(tuple(report(one, AdapterState.FAILED, "away") for one in WANTED))},
            "False",
            "LoadFailed",
            "(1 more)",
        ),
    ],
)
def test_the_condition_says_what_pods_say(pods: Any, status: str, reason: str, says: str) -> None:
    verdict = adapters_verdict(WANTED, pods, ready_pods=1, rolled_out=False)
    assert (verdict.status, verdict.reason) == (status, reason)
    assert says in verdict.message


def test_what_failed_under_another_address_is_no_failure_of_this_one() -> None:
    earlier = Adapter(name="sql", uri="hf://org/sql", revision="v0")
    pods = {"a": Told((report(earlier, AdapterState.FAILED, "no such revision"),))}
    assert adapters_verdict(WANTED[:1], pods, ready_pods=1, rolled_out=True).reason == "Loading"


def test_a_plugin_that_is_older_than_adapters_is_named_where_no_rollout_replaces_it() -> None:
    verdict = adapters_verdict(WANTED, {"a": Told(None, plugin_version="0.1.0")}, ready_pods=1, rolled_out=True)
    assert (verdict.status, verdict.reason) == ("False", "StartedWithoutAdapters")
    assert "its plugin 0.1.0 cannot load adapters" in verdict.message
    assert "set the annotation serving.flyball.dev/adopt to a new value" in verdict.message


def test_pods_that_are_not_read_yet_are_not_taken_to_have_them() -> None:
    verdict = adapters_verdict(WANTED[:1], {"a": Told((report(WANTED[0]),))}, ready_pods=2, rolled_out=True)
    assert verdict.reason == "Loading"


@in_virtual_time
async def test_status_follows_the_pods() -> None:
    harness = Harness()
    harness.edit(adapters=[SQL])
    tuner = harness.tuner()

    async def minute() -> tuple[str, str]:
        for _ in range(12):
            await harness.tick(tuner, signals(now()))
        return harness.condition(ConditionType.ADAPTERS_LOADED)

    harness.engines.adapters["pod-1"] = (report(WANTED[0], AdapterState.LOADING),)
    assert await minute() == ("Unknown", "Loading")
    harness.engines.adapters["pod-1"] = (report(WANTED[0]),)
    assert await minute() == ("True", "Loaded")
    harness.edit(adapters=[SQL, LAW])
    assert await minute() == ("Unknown", "Loading")
    harness.engines.adapters["pod-1"] = (report(WANTED[0]), report(WANTED[1], AdapterState.FAILED, "no such folder"))
    assert await minute() == ("False", "LoadFailed")


@in_virtual_time
async def test_a_service_without_a_list_has_no_such_condition() -> None:
    harness = Harness()
    tuner = harness.tuner()
    for _ in range(12):
        await harness.tick(tuner, signals(now()))
    assert all(one.type != ConditionType.ADAPTERS_LOADED for one in harness.service.status.conditions)
