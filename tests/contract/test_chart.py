"""What the chart promises, whatever the values: rights, settings, a confined pod, and values that are checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_engine.control.tokens import load_public_keys
from flyball_lab.harness.engine import SetpointSigner
from flyball_operator.api import names
from flyball_operator.api.shards import MOST_SHARDS, Shard, shards
from flyball_operator.app.settings import ENV_PREFIX, Settings
from flyball_operator.app.startup import needed
from flyball_operator.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    HTTP_ROUTES,
    INFERENCE_POOLS,
    LEADER_WORKER_SETS,
    LEASES,
    NAMESPACES,
    OWNED,
    SECRETS,
    STATEFUL_SETS,
)
from flyball_operator.kube.resources import watched as granted_on
from flyball_operator.reconcile.plan.network_policy import IngressPeers
from support import helm
from support.certificates import Authority
from support.helm import CHART, VALUE_SETS, HelmError, Object, of_kind, render, rights

SYSTEM = "flyball-system"
SIGNING = "flyball-signing-key"
CONFIG_MAPS_POLICY = "flyball-system-flyball-configmaps"
#: Whatever the number of shards is.
ELECTED_BY = [shard.lease("flyball") for shard in shards(MOST_SHARDS)]


@pytest.mark.parametrize("fenced", [False, True], ids=["without NetworkPolicies", "with NetworkPolicies"])
@pytest.mark.parametrize(
    ("watch", "watched"),
    [
        ({}, [SYSTEM]),
        ({"namespaces": ["team-a", "team-b"]}, ["team-a", "team-b"]),
        ({"scope": "Cluster"}, [None]),
    ],
    ids=["own namespace", "two namespaces", "all namespaces"],
)
def test_the_account_has_the_rights_the_operator_asks_for_and_no_others(
    watch: Object, watched: list[str | None], fenced: bool
) -> None:
    given = rights(render({"watch": watch, "networkPolicy": {"enabled": fenced}}), account="flyball")
    asked = {
        (right.resource.group, right.resource.plural, right.verb, right.namespace or "*", right.name or "*")
        for right in needed(watched, SYSTEM, ELECTED_BY, granted_on(network_policies=fenced), secret=SIGNING)
    }
    asked |= set().union(*(key_rights(namespace or "*") | unwatched_rights(namespace or "*") for namespace in watched))
    asked |= {(CRDS.group, CRDS.plural, "get", "*", names.CRD_NAME)}
    asked |= set().union(*(lease_rights(namespace or "*", names.NAMESPACE_LEASE) for namespace in watched))
    asked |= {(NAMESPACES.group, NAMESPACES.plural, "get", namespace, namespace) for namespace in watched if namespace}
    assert given == asked


@pytest.mark.parametrize("granted", [[], ["team-a"]])
def test_of_selected_namespaces_it_has_rights_where_they_are_bound_alone(granted: list[str]) -> None:
    selector = {"matchLabels": {"serving": "flyball"}}
    rendered = render({"watch": {"scope": "Selector", "namespaceSelector": selector, "namespaces": granted}})
    asked = {
        (right.resource.group, right.resource.plural, right.verb, right.namespace or "*", right.name or "*")
        for right in needed(granted, SYSTEM, ELECTED_BY, selected=True, secret=SIGNING)
    }
    asked |= set().union(*(key_rights(namespace) | unwatched_rights(namespace) for namespace in granted))
    asked |= {(CRDS.group, CRDS.plural, "get", "*", names.CRD_NAME)}
    asked |= set().union(*(lease_rights(namespace, names.NAMESPACE_LEASE) for namespace in granted))
    assert rights(rendered, account="flyball") == asked
    (role,) = (one for one in of_kind(rendered, "ClusterRole") if one["metadata"]["name"].endswith("-bind"))
    assert role["rules"][0]["resourceNames"] == ["flyball-system-flyball"]


def test_the_selector_is_told_as_kubectl_takes_it() -> None:
    expressions: list[Object] = [
        {"key": "tier", "operator": "NotIn", "values": ["x", "y"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "new", "operator": "Exists"},
    ]
    selector = {"matchLabels": {"b/c": "d", "a": "b"}, "matchExpressions": expressions}
    rendered = render({"watch": {"scope": "Selector", "namespaceSelector": selector}})
    given = {item["name"]: item.get("value") for item in environment(rendered)}
    assert given["FLYBALL_WATCH_NAMESPACE_SELECTOR"] == "a=b,b/c=d,tier notin (x,y),!old,new"
    assert "FLYBALL_NAMESPACES" not in given


def lease_rights(namespace: str, lease: str) -> set[tuple[str, str, str, str, str]]:
    """To make any Lease in a namespace, and to read and take one of them."""
    group = LEASES.group
    return {(group, "leases", verb, namespace, "*" if verb == "create" else lease) for verb in LEASES.verbs}


def key_rights(namespace: str) -> set[tuple[str, str, str, str, str]]:
    """To make any ConfigMap in a namespace, and to read and change the one of public keys."""
    verbs = CONFIG_MAPS.verbs
    return {("", "configmaps", verb, namespace, "*" if verb == "create" else names.PUBLIC_KEYS) for verb in verbs}


@pytest.mark.parametrize("key", [{}, {"existingSecret": "mine"}], ids=["own key", "key of others"])
def test_only_with_adapters_may_it_read_and_change_config_maps_of_any_name(key: Object) -> None:
    before, after = (
        {right for right in rights(render({"signingKey": key, **more}), account="flyball") if right[1] == "configmaps"}
        for more in ({}, {"adapters": {"enabled": True}})
    )
    assert before == (set() if key else key_rights(SYSTEM))
    assert after == {("", "configmaps", verb, SYSTEM, "*") for verb in CONFIG_MAPS.verbs}


def unwatched_rights(namespace: str) -> set[tuple[str, str, str, str, str]]:
    """Which are not asked for at the start: what lacks is told by services that name a gateway, or are over nodes."""
    kinds = (HTTP_ROUTES, INFERENCE_POOLS, LEADER_WORKER_SETS, STATEFUL_SETS)
    return {(one.group, one.plural, verb, namespace, "*") for one in kinds for verb in one.verbs}


def test_no_lease_but_its_own_can_be_read_or_taken() -> None:
    values = {"watch": {"namespaces": ["team"]}}
    given = {right for right in rights(render(values), account="flyball") if right[1] == "leases"}
    own = (lease_rights(SYSTEM, lease) for lease in ELECTED_BY)
    assert given == set().union(*own) | lease_rights("team", names.NAMESPACE_LEASE)
    (lease,) = (item["value"] for item in environment(render({})) if item["name"] == "FLYBALL_LEASE_NAME")
    assert lease == "flyball"


def test_replicas_of_more_shards_keep_their_leases_while_they_are_replaced() -> None:
    before, after = (rights(render({"shards": count}), account="flyball") for count in (12, 4))
    assert before - after == set()


def test_no_release_may_elect_by_a_lease_of_another_s_shards() -> None:
    assert Shard(1, 2).lease("flyball") == "flyball-shard-1"
    for values, release in (({"fullnameOverride": "flyball-shard-1"}, "flyball"), ({}, "flyball-shard-12")):
        with pytest.raises(HelmError, match="ends in -shard-<number>"):
            render(values, release=release)
    assert render({}, release="flyball-1")


def test_of_shards_each_has_a_lease_and_the_replicas_know_how_many_they_are() -> None:
    rendered = render({"replicas": 3, "shards": 12})
    asked = {(right.verb, right.name or "*") for right in needed([], SYSTEM, ELECTED_BY)}
    given = {right for right in rights(rendered, account="flyball") if right[1:2] == ("leases",)}
    assert {right[2::2] for right in given if right[4] != names.NAMESPACE_LEASE} == asked
    told = {item["name"]: item.get("value") for item in environment(rendered)}
    assert (told["FLYBALL_SHARDS"], told["FLYBALL_REPLICAS"]) == ("12", "3")
    assert "FLYBALL_SHARDS" not in {item["name"] for item in environment(render({"replicas": 3}))}


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
def test_no_object_that_serves_can_be_deleted(scope: str) -> None:
    given = rights(render({"watch": {"scope": scope}, "networkPolicy": {"enabled": True}}), account="flyball")
    assert {right[1] for right in given if right[2] == "delete"} == {
        "controllerrevisions",
        "httproutes",
        "inferencepools",
        "jobs",
        "poddisruptionbudgets",
    }


def environment(rendered: list[Object]) -> list[Object]:
    """Variables of the operator's container."""
    (deployment,) = of_kind(rendered, "Deployment")
    found: list[Object] = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return found


def test_only_the_operator_and_prometheus_reach_the_control_port() -> None:
    prometheus: Object = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    rendered = render({"networkPolicy": {"enabled": True, "prometheus": [prometheus]}})
    (text,) = (item["value"] for item in environment(rendered) if item["name"] == "FLYBALL_NETWORK_POLICY")
    peers = json.loads(text)
    assert IngressPeers.model_validate(peers)
    operator, *others = peers["control"]
    assert others == [prometheus]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": SYSTEM}
    (deployment,) = of_kind(rendered, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert operator["podSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]
    assert operator["podSelector"]["matchLabels"].items() <= labels.items()
    assert peers["api"] == [{"namespaceSelector": {}}, prometheus]
    (own,) = of_kind(rendered, "NetworkPolicy")
    assert own["spec"]["podSelector"] == deployment["spec"]["selector"]
    assert own["spec"]["ingress"] == [
        {"from": [helm_test(rendered), prometheus], "ports": [{"protocol": "TCP", "port": "metrics"}]}
    ]


def helm_test(rendered: list[Object]) -> Object:
    """The pod of `helm test` as a peer."""
    (pod,) = of_kind(rendered, "Pod")
    return {"podSelector": {"matchLabels": pod["metadata"]["labels"]}}


def test_a_fenced_operator_without_prometheus_is_scraped_by_nobody_but_helm_test() -> None:
    rendered = render({"networkPolicy": {"enabled": True, "prometheus": [], "clients": []}})
    (own,) = of_kind(rendered, "NetworkPolicy")
    assert [rule["from"] for rule in own["spec"]["ingress"]] == [[helm_test(rendered)]]
    (text,) = (item["value"] for item in environment(rendered) if item["name"] == "FLYBALL_NETWORK_POLICY")
    assert json.loads(text)["api"] == []
    assert len(json.loads(text)["control"]) == 1


def test_the_console_is_off_and_on_loopback_unless_it_has_a_service() -> None:
    def made(values: Object) -> tuple[dict[str, str], set[str]]:
        """Settings, and names of Services."""
        rendered = render(values)
        given = {one["name"]: one.get("value", "") for one in environment(rendered)}
        services = {one["metadata"]["name"] for one in of_kind(rendered, "Service")}
        return {name: value for name, value in given.items() if "CONSOLE" in name}, services

    assert made({}) == ({}, {"flyball-metrics"})
    # On loopback by the operator's own default.
    assert made({"console": {"enabled": True}}) == ({"FLYBALL_CONSOLE_PORT": "8081"}, {"flyball-metrics"})
    assert Settings(console_port=8081).console_address.is_loopback
    served = {"FLYBALL_CONSOLE_PORT": "8081", "FLYBALL_CONSOLE_ADDRESS": "0.0.0.0"}
    both = {"flyball-metrics", "flyball-console"}
    assert made({"console": {"enabled": True, "service": True}}) == (served, both)


def test_a_fenced_console_is_reached_by_the_peers_that_are_named_alone() -> None:
    def reached(*peers: Object) -> list[Object]:
        fenced: Object = {"enabled": True, "prometheus": [], "console": list(peers)}
        (own,) = of_kind(
            render({"networkPolicy": fenced, "console": {"enabled": True, "service": True}}), "NetworkPolicy"
        )
        return [rule for rule in own["spec"]["ingress"] if rule["ports"][0]["port"] == "console"]

    assert reached() == [], "an empty list of peers would be all"
    proxy: Object = {"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}
    assert reached(proxy) == [{"from": [proxy], "ports": [{"protocol": "TCP", "port": "console"}]}]


def test_helm_test_asks_what_is_there_with_rights_to_read_that_go_with_it() -> None:
    def arguments(values: Object) -> list[str]:
        (pod,) = of_kind(render(values), "Pod")
        return [one.partition("=")[0] for one in pod["spec"]["containers"][0]["args"]]

    always = ["--no-services", "--operator-namespace"]
    bare = {"metrics": {"service": False}}
    assert arguments(bare) == always
    assert arguments({}) == [*always, "--metrics"]
    assert arguments(bare | {"prometheus": {"url": "http://p"}}) == [*always, "--ask-prometheus"]
    # With the token of another account nothing is known of the operator's.
    token = {"url": "http://p", "bearerToken": {"serviceAccount": True}}
    assert arguments(bare | {"prometheus": token}) == always

    rendered = render({"prometheus": {"url": "http://p", "basicAuth": {"username": "u", "secret": "s"}}})
    given = rights(rendered, account="flyball-test")
    assert {verb for _, _, verb, _, _ in given} == {"get", "list", "create"}
    assert {resource for _, resource, verb, _, _ in given if verb == "create"} == {"subjectaccessreviews"}
    assert {"inferenceservices", "pods", "configmaps"}.isdisjoint(resource for _, resource, _, _, _ in given)
    hooks = [one for one in rendered if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in hooks} == {"test"}
    assert len(hooks) == 6
    (pod,), (deployment,) = of_kind(rendered, "Pod"), of_kind(rendered, "Deployment")
    assert not deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    mounted = {one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["spec"]["volumes"]} == {"tmp", "prometheus"}
    assert not of_kind(render({"rbac": {"create": False}}), "Pod")


def test_public_keys_of_an_existing_secret_are_brought_to_all_watched_namespaces() -> None:
    pair = [SetpointSigner().public_pem, SetpointSigner().public_pem]
    signing = {"existingSecret": "mine", "publicKeys": pair}
    rendered = render({"watch": {"namespaces": ["team-a", "team-b"]}, "signingKey": signing})
    maps = of_kind(rendered, "ConfigMap")
    assert [one["metadata"]["namespace"] for one in maps] == ["team-a", "team-b"]
    for one in maps:
        assert one["metadata"]["name"] == names.PUBLIC_KEYS
        assert len(load_public_keys(one["data"][names.PUBLIC_KEYS_KEY])) == 2
    assert of_kind(render({}), "ConfigMap") == []


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_two_renderings_are_the_same_and_hold_no_key(value_set: str) -> None:
    values = helm.values(value_set)
    rendered = render(values)
    assert render(values) == rendered
    assert all(one["data"] == {} and "stringData" not in one for one in of_kind(rendered, "Secret"))
    assert "PRIVATE" not in json.dumps(rendered)


def test_the_operator_is_told_where_to_keep_its_key_and_mounts_none() -> None:
    rendered = render({"signingKey": {"rotationPeriod": "24h"}})
    (secret,) = of_kind(rendered, "Secret")
    given = {item["name"]: item.get("value") for item in environment(rendered)}
    assert given["FLYBALL_SIGNING_KEY_SECRET"] == secret["metadata"]["name"] == SIGNING
    assert given["FLYBALL_SIGNING_KEY_ROTATION_PERIOD"] == "24h"
    assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    (deployment,) = of_kind(rendered, "Deployment")
    assert not [volume for volume in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in volume]


def test_with_an_existing_secret_it_has_no_right_on_secrets_and_config_maps() -> None:
    values: Object = {"signingKey": {"existingSecret": "mine"}, "admissionPolicies": {"operator": True}}
    rendered = render(values)
    assert of_kind(rendered, "Secret") == []
    assert not {right for right in rights(rendered, account="flyball") if right[1] in ("secrets", "configmaps")}
    given = {item["name"] for item in environment(rendered)}
    assert "FLYBALL_SIGNING_KEY_FILE" in given
    assert "FLYBALL_SIGNING_KEY_SECRET" not in given
    assert CONFIG_MAPS_POLICY not in policies_of(rendered)


@pytest.mark.parametrize("key", [{}, {"existingSecret": "mine"}], ids=["own key", "key of others"])
@pytest.mark.parametrize("adapters", [False, True], ids=["without adapters", "with adapters"])
def test_the_policy_on_config_maps_allows_what_the_values_need(adapters: bool, key: Object) -> None:
    policy = {"admissionPolicies": {"operator": True}}
    made = policies_of(render({"adapters": {"enabled": adapters}, "signingKey": key, **policy}))
    rules = made.get(CONFIG_MAPS_POLICY, {"validations": [{"expression": "", "message": ""}]})["validations"]
    for allowed, asked in ((names.ADAPTERS_SUFFIX, adapters), (names.PUBLIC_KEYS, not key)):
        assert (f"'{allowed}'" in rules[0]["expression"]) is asked
    assert ("InferenceService's adapters" in rules[0]["message"]) is adapters
    assert (names.PUBLIC_KEYS in rules[0]["message"]) is (not key)


_SERVES = "--api-versions=admissionregistration.k8s.io"


@pytest.mark.parametrize(
    ("cluster", "version"),
    [
        (["--kube-version=1.36.0"], "v1"),
        (["--kube-version=1.35.2"], "v1beta1"),
        (["--kube-version=1.33.4"], "v1beta1"),
        (
            ["--kube-version=1.34.0-eks-1", "--api-versions=v1/Pod", f"{_SERVES}/v1beta1/MutatingAdmissionPolicy"],
            "v1beta1",
        ),
        (["--kube-version=1.35.0", f"{_SERVES}/v1/MutatingAdmissionPolicy"], "v1"),
    ],
    ids=["1.36, unasked", "1.35, unasked", "1.33, unasked", "v1beta1 served", "v1 served"],
)
def test_the_policy_that_injects_is_of_a_version_that_the_cluster_serves(cluster: list[str], version: str) -> None:
    rendered = render({"inject": {"enabled": True}}, cluster=cluster)
    made = of_kind(rendered, "MutatingAdmissionPolicy") + of_kind(rendered, "MutatingAdmissionPolicyBinding")
    assert {one["apiVersion"] for one in made} == {f"admissionregistration.k8s.io/{version}"}
    assert len(made) == 2


@pytest.mark.parametrize("version", ["1.33.4", "1.35.0"])
def test_where_no_such_policy_is_served_the_chart_says_what_to_turn_on(version: str) -> None:
    cluster = [f"--kube-version={version}", "--api-versions=v1/Pod"]
    with pytest.raises(HelmError, match="feature gate MutatingAdmissionPolicy and --runtime-config"):
        render({"inject": {"enabled": True}}, cluster=cluster)
    assert not of_kind(render({}, cluster=cluster), "MutatingAdmissionPolicy")


@pytest.mark.parametrize("scope", ["Namespaced", "Cluster"])
def test_the_public_key_may_be_in_a_config_map_that_somebody_else_made(scope: str) -> None:
    # NOTES say so.
    values: Object = {"inject": {"enabled": True}, "signingKey": {"existingSecret": "mine"}, "watch": {"scope": scope}}
    assert of_kind(render(values), "MutatingAdmissionPolicy")


def policies(values: Object) -> dict[str, Object]:
    """Admission policies that these values of theirs make, by name."""
    return policies_of(render({"admissionPolicies": values}))


def policies_of(rendered: list[Object]) -> dict[str, Object]:
    """Admission policies by name; each has a binding that denies."""
    found = {one["metadata"]["name"]: one["spec"] for one in of_kind(rendered, "ValidatingAdmissionPolicy")}
    bindings = [one["spec"] for one in of_kind(rendered, "ValidatingAdmissionPolicyBinding")]
    assert {one["policyName"] for one in bindings} == set(found)
    assert all(one["validationActions"] == ["Deny"] for one in bindings)
    assert all(spec["failurePolicy"] == "Fail" for spec in found.values())
    return found


def test_admission_policies_are_made_only_where_asked() -> None:
    assert policies({}) == {}
    of_the_operator = {f"flyball-system-flyball-{what}" for what in ("claims", "configmaps", "owned", "pods")}
    assert set(policies({"operator": True})) == of_the_operator
    of_services = {f"flyball-system-flyball-{what}" for what in ("allowed", "status")}
    assert set(policies({"inferenceServices": {"enabled": True}})) == of_services


@pytest.mark.parametrize(
    ("watch", "where"),
    [
        ({"scope": "Cluster"}, {}),
        (
            {"namespaces": ["a"]},
            {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a"]}]},
        ),
        ({"scope": "Selector", "namespaceSelector": {"matchLabels": {"team": "a"}}}, {}),
    ],
    ids=["cluster", "namespaced", "selector"],
)
def test_the_policy_on_status_holds_wherever_the_release_may_watch(watch: Object, where: Object) -> None:
    rendered = render({"admissionPolicies": {"inferenceServices": {"enabled": True}}, "watch": watch})
    bindings = of_kind(rendered, "ValidatingAdmissionPolicyBinding")
    (spec,) = (one["spec"] for one in bindings if one["spec"]["policyName"].endswith("-status"))
    assert spec.get("matchResources", {}).get("namespaceSelector", {}) == where


def test_operators_of_other_releases_may_write_a_status_where_they_are_named() -> None:
    other = "system:serviceaccount:flyball-b:flyball"
    made = policies({"inferenceServices": {"enabled": True, "statusAccounts": [other]}})
    (rule,) = made["flyball-system-flyball-status"]["validations"]
    ours = "system:serviceaccount:flyball-system:flyball"
    assert rule["expression"] == f'request.userInfo.username in ["{ours}","{other}"]'


def test_all_that_the_operator_writes_for_a_service_is_under_its_policy() -> None:
    made = policies({"operator": True})
    held = {
        (group, plural)
        for what in ("claims", "configmaps", "owned")
        for rule in made[f"flyball-system-flyball-{what}"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    }
    assert held == {(resource.group, resource.plural) for resource in OWNED.values()}


def test_a_list_that_is_null_has_no_rule_and_an_empty_one_allows_nothing() -> None:
    def rules(**lists: Any) -> list[Object]:
        spec = policies({"inferenceServices": {"enabled": True, **lists}})["flyball-system-flyball-allowed"]
        found: list[Object] = spec["validations"][1:]
        return found

    assert rules() == []
    *claims, of_class = rules(claims=[])
    for one in claims:
        assert " in []" in one["expression"]
        assert one["message"].endswith("accepted: none")
    assert of_class["expression"].endswith("!= ''"), "no free volume without a class"
    lists = {"images": 3, "secrets": 7, "csiDrivers": 1, "claims": 4, "serviceAccounts": 1, "priorityClasses": 1}
    assert {name: len(rules(**{name: ["x"]})) for name in lists} == lists
    assert len(rules(**{name: ["x"] for name in lists})) == sum(lists.values())


def test_no_network_policy_is_made_unasked() -> None:
    assert of_kind(render({}), "NetworkPolicy") == []
    assert not [item for item in environment(render({})) if item["name"] == "FLYBALL_NETWORK_POLICY"]


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_nobody_gets_a_right_on_secrets_but_the_operator_on_its_own(value_set: str) -> None:
    rendered = render(helm.values(value_set))
    rules = [rule for one in rendered for rule in one.get("rules", ())]
    found = [rule for rule in rules if {"secrets", "*"} & {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}]
    for rule in found:
        assert rule == {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [SIGNING],
            "verbs": ["get", "patch"],
        }
    given = {right for right in rights(rendered, account="flyball") if right[1] == "secrets"}
    own = {("", "secrets", verb, SYSTEM, SIGNING) for verb in SECRETS.verbs} if of_kind(rendered, "Secret") else set()
    assert given == (own if found else set())


#: Where the chart mounts what Prometheus is asked with.
MOUNTED = "/etc/flyball-prometheus"


def mounted(pod: Object, folder: Path) -> None:
    """Write the files of the projected volume that the pod mounts for Prometheus."""
    authority = Authority()
    contents = {
        "token": "a-token",
        "password": "a-password",
        "headers": "X-Scope-OrgID: team-a",
        "ca.crt": authority.pem,
        "tls.crt": (pair := authority.issue("client"))[0],
        "tls.key": pair[1],
    }
    for volume in pod["volumes"]:
        for source in volume.get("projected", {}).get("sources", ()):
            ((_, given),) = source.items()
            for item in given.get("items", [given]):
                (folder / item["path"]).write_text(contents[item["path"]])


def operator_of(rendered: list[Object]) -> tuple[Object, Object]:
    """The operator's Deployment, and its container."""
    (deployment,) = of_kind(rendered, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return deployment, container


def settings_of(container: Object) -> set[str]:
    """Names of the settings that a container's environment gives."""
    names = (item["name"] for item in container["env"])
    return {name.removeprefix(ENV_PREFIX).lower() for name in names if name.startswith(ENV_PREFIX)}


def test_each_of_the_operators_settings_is_a_value_of_the_chart() -> None:
    charts = (render(helm.values(value_set)) for value_set in VALUE_SETS)
    given = {name for rendered in charts for name in settings_of(operator_of(rendered)[1])}
    assert given == set(Settings.model_fields)


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_the_operator_reads_every_setting_the_chart_gives(
    value_set: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rendered = render(helm.values(value_set))
    deployment, container = operator_of(rendered)
    given = {item["name"]: item.get("value", "from-the-pod") for item in container["env"]}
    assert settings_of(container) <= set(Settings.model_fields)
    mounted(deployment["spec"]["template"]["spec"], tmp_path)
    for name, value in given.items():
        monkeypatch.setenv(name, value.replace(MOUNTED, str(tmp_path)))
    settings = Settings()
    assert settings.metrics_port == container["ports"][0]["containerPort"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    if (folder := mounts.get("signing-key")) is not None:
        assert str(settings.signing_key_file) == f"{folder}/signing-key.pem"
    else:
        assert [settings.signing_key_secret] == [one["metadata"]["name"] for one in of_kind(rendered, "Secret")]
    assert mounts.get("prometheus", MOUNTED) == MOUNTED
    # Every file that is mounted is one that the operator is told of.
    assert {str(path) for path in tmp_path.iterdir()} == {
        str(value) for name, value in settings if name.startswith("prometheus_") and isinstance(value, Path)
    }


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_the_pod_is_confined(value_set: str) -> None:
    (deployment,) = of_kind(render(helm.values(value_set)), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["terminationGracePeriodSeconds"] >= 30


def test_two_replicas_are_never_evicted_together() -> None:
    assert of_kind(render({}), "PodDisruptionBudget") == []
    (budget,) = of_kind(render({"replicas": 2}), "PodDisruptionBudget")
    (deployment,) = of_kind(render({"replicas": 2}), "Deployment")
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_common_labels_are_on_all_objects_but_the_crd_and_change_nothing_else(value_set: str) -> None:
    without = [one for one in render(helm.values(value_set)) if one["kind"] != "CustomResourceDefinition"]
    labelled = render(helm.values(value_set) | {"commonLabels": {"owner": "serving"}})
    labelled = [one for one in labelled if one["kind"] != "CustomResourceDefinition"]
    for one in labelled:
        assert one["metadata"]["labels"].pop("owner") == "serving"
    for deployment in of_kind(labelled, "Deployment"):
        assert deployment["spec"]["template"]["metadata"]["labels"].pop("owner") == "serving"
    assert labelled == without


def test_labels_of_one_kind_of_object_win_over_common_ones() -> None:
    objects = render(
        {
            "commonLabels": {"release": "all", "owner": "serving"},
            "podLabels": {"owner": ""},
            "metrics": {"podMonitor": {"engines": True, "labels": {"release": "kube-prometheus-stack"}}},
        }
    )
    (monitor,) = of_kind(objects, "PodMonitor")
    (deployment,) = of_kind(objects, "Deployment")
    of_monitor, of_pod = monitor["metadata"]["labels"], deployment["spec"]["template"]["metadata"]["labels"]
    assert (of_monitor["release"], of_monitor["owner"]) == ("kube-prometheus-stack", "serving")
    assert (of_pod["release"], of_pod["owner"]) == ("all", "")


def test_a_digest_beats_the_tag_and_the_plugin_follows_the_registry() -> None:
    digest = "sha256:" + "a" * 64
    image = {"registry": "mirror.example.com/x", "repository": "operator", "tag": "1", "digest": digest}
    _, container = operator_of(render({"image": image}))
    assert container["image"] == f"mirror.example.com/x/operator@{digest}"
    plugin = next(item["value"] for item in container["env"] if item["name"] == "FLYBALL_PLUGIN_IMAGE")
    assert plugin == "mirror.example.com/x/flyball/plugin:0.1.0"


def test_series_of_engines_carry_the_labels_that_tuning_reads() -> None:
    rendered = render({"metrics": {"podMonitor": {"engines": True}}})
    (monitor,) = of_kind(rendered, "PodMonitor")
    assert names.LABEL_SERVICE_UID in monitor["spec"]["podTargetLabels"]
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} == {"http", "control"}
    # A pod must not say of itself whose it is.
    assert not any("honorLabels" in endpoint for endpoint in monitor["spec"]["podMetricsEndpoints"])
    # Pods that others make have it, too. A worker of a group has no series.
    assert monitor["spec"]["selector"]["matchExpressions"] == [
        {"key": names.LABEL_SERVICE_UID, "operator": "Exists"},
        {"key": names.LABEL_WORKER, "operator": "DoesNotExist"},
    ]


def test_beside_kube_prometheus_stack_its_prometheus_selects_all_that_is_for_it() -> None:
    example = CHART.parents[1] / "docs/examples/kube-prometheus-stack/values.yaml"
    rendered = render(yaml.safe_load(example.read_text()))
    chosen = [one["metadata"] for kind in ("PodMonitor", "PrometheusRule") for one in of_kind(rendered, kind)]
    assert [one["name"] for one in chosen] == ["flyball", "flyball-engines", "flyball"]
    assert {one["labels"]["release"] for one in chosen} == {"kube-prometheus-stack"}


def test_the_proxy_of_the_example_reaches_the_console_and_nobody_else_does() -> None:
    example = CHART.parents[1] / "docs/examples/oidc-proxy"
    rendered = render(yaml.safe_load((example / "values.yaml").read_text()))
    proxy = of_kind([*yaml.safe_load_all((example / "oauth2-proxy.yaml").read_text())], "Deployment")[0]
    (container,) = proxy["spec"]["template"]["spec"]["containers"]
    (service,) = (one for one in of_kind(rendered, "Service") if one["metadata"]["name"] == "flyball-console")
    assert f"--upstream=http://flyball-console:{service['spec']['ports'][0]['port']}" in container["args"]
    (policy,) = of_kind(rendered, "NetworkPolicy")
    (reached,) = (rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "console")
    assert reached["from"] == [{"podSelector": {"matchLabels": proxy["spec"]["template"]["metadata"]["labels"]}}]


def test_users_of_the_namespace_may_edit_or_view_but_not_write_the_status() -> None:
    roles = {one["metadata"]["name"]: one for one in of_kind(render({}), "ClusterRole")}
    edit = roles["flyball-system-flyball-edit"]
    written = {resource for rule in edit["rules"] for resource in rule["resources"]}
    assert written == {names.PLURAL, f"{names.PLURAL}/scale"}
    view = roles["flyball-system-flyball-view"]
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"


PEM = SetpointSigner().public_pem
WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "additional properties 'replica' not allowed"),
    ({"replicas": 0}, "minimum: got 0, want 1"),
    ({"shards": 65}, "maximum: got 65, want 64"),
    ({"tickSeconds": 0.1}, "at '/tickSeconds': minimum: got 0.1, want 0.5"),
    ({"resyncSeconds": 4000}, "at '/resyncSeconds': maximum: got 4,000, want 3,600"),
    ({"workers": 1.5}, "at '/workers': got number, want integer"),
    ({"runAsAssignedUser": "yes"}, "at '/runAsAssignedUser': got string, want boolean"),
    ({"watch": {"scope": "All"}}, "value must be one of 'Namespaced', 'Cluster', 'Selector'"),
    ({"watch": {"scope": "Cluster", "namespaces": ["a"]}}, "maxItems: got 1, want 0"),
    ({"watch": {"scope": "Selector"}}, "minProperties: got 0, want 1"),
    ({"watch": {"scope": "Selector", "namespaceSelector": {"matchLabels": {}}}}, "watch.namespaceSelector selects all"),
    (
        {"watch": {"scope": "Selector", "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}},
        "watch.namespaceSelector: a In needs values",
    ),
    ({"watch": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}, "maxProperties: got 1, want 0"),
    ({"watch": {"namespaces": ["Team A"]}}, "'Team A' does not match pattern"),
    ({"prometheus": {"url": "prometheus:9090"}}, "'prometheus:9090' does not match pattern"),
    ({"prometheus": {"url": "https://me:word@prometheus"}}, "at '/prometheus/url'"),
    ({"tracing": {"endpoint": "collector:4317"}}, "at '/tracing/endpoint'"),
    ({"console": {"service": True}}, "at '/console/enabled'"),
    ({"networkPolicy": {"console": [{}]}}, "minProperties: got 0, want 1"),
    ({"prometheus": {"bearerToken": {"token": "eyJ"}}}, "additional properties 'token' not allowed"),
    (
        {"prometheus": {"bearerToken": {"secret": "a"}, "basicAuth": {"secret": "b", "username": "c"}}},
        "prometheus.bearerToken.secret and prometheus.basicAuth.secret are set; accepted: one of them",
    ),
    (
        {"prometheus": {"bearerToken": {"secret": "a", "serviceAccount": True}}},
        "prometheus.bearerToken.secret and prometheus.bearerToken.serviceAccount are set; accepted: one of them",
    ),
    ({"prometheus": {"bearerToken": {"audience": "a"}}}, "needs prometheus.bearerToken.serviceAccount"),
    ({"prometheus": {"basicAuth": {"secret": "b"}}}, "prometheus.basicAuth.username and prometheus.basicAuth.secret"),
    ({"prometheus": {"basicAuth": {"username": "a:b"}}}, "'a:b' does not match pattern"),
    ({"prometheus": {"headers": {"secret": "a", "configMap": "b"}}}, "prometheus.headers.configMap are set"),
    (
        {"prometheus": {"tls": {"insecureSkipVerify": True, "ca": {"secret": "a"}}}},
        "prometheus.tls.insecureSkipVerify and prometheus.tls.ca are set; accepted: one of them",
    ),
    ({"prometheus": {"tls": {"insecureSkipVerify": "yes"}}}, "got string, want boolean"),
    ({"image": "localhost/flyball/operator:1"}, "got string, want object"),
    ({"image": {"digest": "sha256:1"}}, "'sha256:1' does not match pattern"),
    ({"image": {"repository": "flyball/operator/"}}, "'flyball/operator/' does not match pattern"),
    ({"image": {"repository": "flyball..operator"}}, "'flyball..operator' does not match pattern"),
    ({"image": {"registry": "https:/mirror"}}, "'https:/mirror' does not match pattern"),
    ({"resources": {"limits": {"memory": "1 GB"}}}, "'1 GB' does not match pattern"),
    ({"commonLabels": {"owner": "my team"}}, "at '/commonLabels/owner': 'my team' does not match pattern"),
    ({"commonLabels": {"owner": 7}}, "at '/commonLabels/owner': got number, want string"),
    ({"commonLabels": {"helm.sh/chart": "mine"}}, "accepted: labels outside of app.kubernetes.io/, helm.sh/"),
    ({"metrics": {"podMonitor": {"interval": "0s"}}}, "'0s' does not match pattern"),
    ({"log": {"level": "debug"}}, "value must be one of 'DEBUG', 'INFO', 'WARNING', 'ERROR'"),
    ({"metrics": {"podMonitor": {"engines": "yes"}}}, "got string, want boolean"),
    (
        {"signingKey": {"existingSecret": "mine", "publicKeys": ["ssh-ed25519 AAAA"]}},
        "'ssh-ed25519 AAAA' does not match pattern",
    ),
    (
        {"signingKey": {"existingSecret": "mine", "publicKeys": [PEM]}, "watch": {"scope": "Cluster"}},
        "maxItems: got 1, want 0",
    ),
    ({"signingKey": {"publicKeys": [PEM]}}, "maxItems: got 1, want 0"),
    ({"signingKey": {"rotationPeriod": "30s"}}, "'30s' does not match pattern"),
    ({"signingKey": {"rotationPeriod": 720}}, "got number, want string"),
    ({"admissionPolicies": {"inferenceServices": {"secrets": ["A b"]}}}, "'A b' does not match pattern"),
    ({"admissionPolicies": {"inferenceServices": {"images": ["a b"]}}}, "'a b' does not match pattern"),
    ({"networkPolicy": {"prometheus": [{}]}}, "minProperties: got 0, want 1"),
    ({"networkPolicy": {"clients": [{"podSelector": {"matchLabel": {}}}]}}, "'matchLabel' not allowed"),
    ({"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.1"}}]}}, "'10.0.0.1' does not match pattern"),
    ({"networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}}, "maxProperties"),
]


@pytest.mark.parametrize(
    ("wrong", "says"), WRONG_VALUES, ids=[str(wrong).replace(repr(PEM), "PEM") for wrong, _ in WRONG_VALUES]
)
def test_wrong_values_are_refused_with_their_place(wrong: Object, says: str) -> None:
    with pytest.raises(HelmError) as refusal:
        render(wrong)
    assert says in str(refusal.value)
    assert "at '/" in str(refusal.value) or next(iter(wrong)) in str(refusal.value)


def test_the_chart_passes_helms_own_lint() -> None:
    for value_set in VALUE_SETS:
        assert "0 chart(s) failed" in helm.run(
            "lint", "--strict", str(CHART), values=helm.values(value_set), offline=True
        )
