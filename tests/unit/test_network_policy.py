"""The NetworkPolicy of a service's pods: who reaches which port, and that nobody widens it unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.app.main import ExitCode, main
from flyball_operator.app.settings import Settings
from flyball_operator.kube.resources import DEPLOYMENTS, NETWORK_POLICIES
from flyball_operator.reconcile.plan.network_policy import IngressPeers
from support.memory_api import MemoryApi, Object
from support.memory_cluster import CONFIG, MemoryCluster, service
from support.wrong_inputs.command_lines import NETWORK_POLICY

OPERATOR: Object = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "flyball-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
}
EVERYBODY: Object = {"namespaceSelector": {}}
PEERS: Object = {"api": [EVERYBODY], "control": [OPERATOR]}


class Api(MemoryApi):
    """Notes in which order objects are made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    async def create(self, resource: Any, namespace: str, body: Object) -> Object:
        """POST."""
        self.made.append(resource.plural)
        return await super().create(resource, namespace, body)


def fenced(peers: Object = PEERS, api: Api | None = None) -> MemoryCluster:
    """A service of an operator that makes NetworkPolicies."""
    world = MemoryCluster(api, replace(CONFIG, ingress_peers=IngressPeers.model_validate(peers)))
    world.apply(service())
    world.settle()
    return world


def spec(world: MemoryCluster) -> Object:
    """That of the one policy there is."""
    found: Object = world.api.one(NETWORK_POLICIES, "chat")["spec"]
    return found


def sources(world: MemoryCluster) -> dict[int, list[Object]]:
    """Who is let in, by port; there is one rule a port."""
    return {rule["ports"][0]["port"]: rule["from"] for rule in spec(world)["ingress"]}


def test_the_control_port_is_the_operators_and_the_api_everybodys() -> None:
    world = fenced()
    assert sources(world) == {8000: [EVERYBODY], 8001: [OPERATOR]}
    assert spec(world)["policyTypes"] == ["Ingress"]
    selected = spec(world)["podSelector"]["matchLabels"]
    assert set(selected) == {names.LABEL_SERVICE, names.LABEL_SERVICE_UID}
    assert selected.items() <= world.api.one(DEPLOYMENTS, "chat")["spec"]["template"]["metadata"]["labels"].items()


def test_it_is_there_before_the_first_pod_can_be() -> None:
    api = Api()
    fenced(api=api)
    assert api.made.index("networkpolicies") < api.made.index("deployments")


def test_it_changes_no_pod_template() -> None:
    plain = MemoryCluster()
    plain.apply(service())
    plain.settle()
    template = plain.api.one(DEPLOYMENTS, "chat")["spec"]["template"]
    assert fenced().api.one(DEPLOYMENTS, "chat")["spec"]["template"] == template


def test_without_the_setting_none_is_made_and_none_is_read() -> None:
    class Blind(MemoryApi):
        async def get(self, resource: Any, namespace: str, name: str) -> Object:
            assert resource is not NETWORK_POLICIES, "there is no right to"
            return await super().get(resource, namespace, name)

    world = MemoryCluster(Blind())
    world.apply(service())
    world.settle()
    assert world.api.find(NETWORK_POLICIES) == []


def test_a_port_for_nobody_has_no_rule_because_one_without_peers_admits_everybody() -> None:
    assert sources(fenced({"api": [], "control": [OPERATOR]})) == {8001: [OPERATOR]}
    assert sources(fenced({"api": [], "control": []})) == {}


def _open_a_port(found: Object) -> None:
    found["ingress"][0]["ports"].append({"protocol": "TCP", "port": 8001})


def _admit(found: Object) -> None:
    found["ingress"][1]["from"].append(EVERYBODY)


def _add_a_rule(found: Object) -> None:
    found["ingress"].append({})


def _select_no_pod(found: Object) -> None:
    found["podSelector"]["matchLabels"]["no"] = "pod"


@pytest.mark.parametrize("change", [_open_a_port, _admit, _add_a_rule, _select_no_pod])
def test_what_others_add_is_taken_back(change: Callable[[Object], None]) -> None:
    world = fenced()
    wanted = spec(world)
    world.api.edit(NETWORK_POLICIES, "chat", lambda found: change(found["spec"]))
    assert spec(world) != wanted
    world.settle()
    assert spec(world) == wanted
    assert world.condition("Accepted") == ("True", "Accepted")


def test_a_foreign_policy_of_that_name_is_left_alone() -> None:
    world = MemoryCluster(config=replace(CONFIG, ingress_peers=IngressPeers.model_validate(PEERS)))
    theirs = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"podSelector": {}}}
    world.api.put(NETWORK_POLICIES, theirs)
    world.apply(service())
    world.settle()
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert spec(world) == {"podSelector": {}}


def test_peers_are_rendered_as_the_api_server_returns_them() -> None:
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    sent: Object = {"namespaceSelector": {"matchLabels": {}, "matchExpressions": []}}
    assert sources(fenced({"api": [sent, block], "control": []})) == {8000: [EVERYBODY, block]}


@pytest.mark.parametrize(("text", "says"), NETWORK_POLICY)
def test_wrong_peers_end_the_process_and_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, says: Sequence[str]
) -> None:
    monkeypatch.setenv("FLYBALL_NETWORK_POLICY", text)
    assert main() == ExitCode.MISCONFIGURED
    answer = capsys.readouterr().err
    assert answer.startswith("FLYBALL_NETWORK_POLICY")
    assert [words for words in says if words not in answer] == [], answer


def test_peers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().network_policy is None
    monkeypatch.setenv("FLYBALL_NETWORK_POLICY", json.dumps(PEERS))
    assert Settings().network_policy == IngressPeers.model_validate(PEERS)
