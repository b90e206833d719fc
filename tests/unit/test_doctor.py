"""`flyball doctor`: each broken installation is named by the check that it is the matter of, and a good one by none."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace
from typing import Any

import pytest

from flyball_operator import __version__
from flyball_operator.api import names
from flyball_operator.cli.doctor.examine import examine
from flyball_operator.cli.doctor.findings import Finding, Level, as_json, healthy, text_lines
from flyball_operator.cli.doctor.installation import Installation, Operator, Tenant, Unread
from flyball_operator.tuning.observe.signals import Missing
from support.installations import HOME, NOW, OPERATOR_LABELS, TEAM, Change, World

#: As the chart names the operator's pods.
OPERATOR_PEER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": HOME}},
    "podSelector": {"matchLabels": OPERATOR_LABELS},
}


def installation(world: World) -> Installation:
    """What is collected of it; the account has all rights but those that the world denies."""
    operators = [
        Operator(
            one,
            {name: lease for (space, name), lease in world.leases.items() if space == HOME},
            [f"{verb} {resource} in namespace {TEAM}" for verb, resource in sorted(world.denied)],
            world.operator_pods,
            world.operator_events,
        )
        for one in world.operators
    ]
    tenant = Tenant(
        TEAM,
        world.services,
        pods=[world.pod],
        policies=world.policies,
        keys=world.keys,
        lease=world.leases.get((TEAM, names.NAMESPACE_LEASE)),
    )
    return Installation(
        now=NOW,
        server=world.version,
        crd=world.crd or None,
        operators=operators,
        tenants=[tenant] if world.services and world.services_asked else [],
        admission=world.admission,
        bindings=world.bindings,
        namespace_labels={HOME: world.home["metadata"]["labels"]},
        searched=world.searched,
        searched_exists=world.searched_exists,
        services_asked=world.services_asked,
    )


def examined(*changes: Change) -> list[Finding]:
    world = World()
    for change in changes:
        change(world)
    return examine(installation(world))


def bad(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.level is not Level.OK]


def test_a_good_installation_is_told_by_every_check_and_needs_no_mend() -> None:
    findings = examined()
    assert bad(findings) == []
    assert not any(one.mend for one in findings)
    assert [one.check for one in findings] == [
        "cluster-version",
        "crd",
        "operator",
        "versions",
        "leases",
        "rights",
        "admission-policies",
        "namespaces",
        "signing-key",
        "network-policies",
        "prometheus",
        "scraping",
        "plugin",
        "rollouts",
        "services",
        "gateways",
    ]


def older_crd(world: World) -> None:
    world.crd["metadata"]["annotations"] = {}
    root = world.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del root["properties"]["spec"]["properties"]["tuning"]


def older_crd_of_a_release(world: World) -> None:
    older_crd(world)
    world.crd["metadata"]["annotations"] = {
        "meta.helm.sh/release-name": "fly",
        "meta.helm.sh/release-namespace": "flyball-system",
    }


def newer_crd(world: World) -> None:
    world.crd["metadata"]["annotations"] = {names.ANNOTATION_SCHEMA_HASH: "another"}
    root = world.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root["properties"]["spec"]["properties"]["later"] = {"type": "string"}


def other_clients_only(world: World) -> None:
    world.isolate({"from": [{"podSelector": {}}], "ports": [{"port": 8000}]})


def older_plugin(world: World) -> None:
    world.pod["spec"]["initContainers"][0]["image"] = "flyball/plugin:0.0.9"


def without_its_image(world: World) -> None:
    world.operator["status"] = {}
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "flyball/operator:0.1"'}
    status = {"containerStatuses": [{"name": "operator", "state": {"waiting": waiting}}]}
    world.operator_pods = [{"metadata": {"name": "flyball-0"}, "status": status}]


def upgrade_that_hangs(world: World) -> None:
    world.operator["status"].update(replicas=2)
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "flyball/operator:9"'}
    status = {"containerStatuses": [{"name": "operator", "state": {"waiting": waiting}}]}
    world.operator_pods = [{"metadata": {"name": "flyball-1"}, "status": status}]


def without_a_secret(world: World) -> None:
    world.operator["status"] = {}
    creating = {"containerStatuses": [{"name": "operator", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
    pod = {"metadata": {"name": "flyball-0", "uid": "uid-0"}, "status": creating, "spec": {"nodeName": "node-1"}}
    failed = {"reason": "FailedMount", "message": 'secret "prometheus" not found', "metadata": {}}
    world.operator_pods, world.operator_events = [pod], [failed | {"involvedObject": {"uid": "uid-0"}}]


def not_annotated(world: World) -> None:
    world.pod["metadata"]["annotations"] = {}
    world.say("MetricsAvailable", "False", "NotScraped", "no job scrapes port 8001")


def hand_over(world: World, renewed: str) -> None:
    lease = world.leases[TEAM, names.NAMESPACE_LEASE]
    lease["spec"].update(holderIdentity="gone/flyball", renewTime=renewed)


def in_one_namespace(world: World) -> None:
    hand_over(world, "2026-01-01T11:00:00.000000Z")
    world.searched = HOME


BROKEN: list[Any] = [
    pytest.param(
        lambda world: world.version.update(minor="29"), "cluster-version", Level.FAIL, "too old", "1.31", id="cluster"
    ),
    pytest.param(lambda world: world.crd.clear(), "crd", Level.FAIL, "is not there", "kubectl apply", id="no-crd"),
    pytest.param(
        lambda world: world.crd.update(status={}),
        "crd",
        Level.FAIL,
        "is not served",
        "kubectl describe",
        id="not-served",
    ),
    pytest.param(
        older_crd,
        "crd",
        Level.FAIL,
        "it lacks spec.tuning",
        "apply --server-side --force-conflicts -f -",
        id="older-crd",
    ),
    pytest.param(
        older_crd_of_a_release,
        "crd",
        Level.FAIL,
        "it lacks spec.tuning",
        "helm upgrade fly charts/flyball -n flyball-system --reset-then-reuse-values --force-conflicts   "
        "# Helm 3: without --force-conflicts; if that release is gone: "
        "flyball crd | kubectl apply --server-side --force-conflicts -f -",
        id="older-crd-of-a-release",
    ),
    pytest.param(newer_crd, "crd", Level.WARN, "is newer than this program", "newer flyball", id="newer-crd"),
    pytest.param(lambda world: world.operators.clear(), "operator", Level.FAIL, "no operator", "install", id="none"),
    pytest.param(
        lambda world: world.operator.update(status={}), "operator", Level.FAIL, "0 of 1", "kubectl logs", id="not-ready"
    ),
    pytest.param(
        lambda world: world.operator["spec"].update(replicas=0),
        "operator",
        Level.FAIL,
        "scaled to 0",
        "--replicas=1",
        id="scaled-to-0",
    ),
    pytest.param(
        lambda world: world.operator["metadata"]["labels"].update({"app.kubernetes.io/version": "9.9.9"}),
        "versions",
        Level.WARN,
        "is of version 9.9.9",
        "flyball command of version 9.9.9",
        id="other-version",
    ),
    pytest.param(
        lambda world: world.set(FLYBALL_PLUGIN_IMAGE="flyball/plugin:v9.9.9-rc.1"),
        "versions",
        Level.WARN,
        "with the plugin v9.9.9-rc.1",
        f"--set image.tag={__version__} --set plugin.image.tag={__version__}",
        id="other-plugin",
    ),
    pytest.param(
        lambda world: world.set(FLYBALL_PLUGIN_IMAGE=""),
        "versions",
        Level.FAIL,
        "no plugin image",
        "set",
        id="no-plugin",
    ),
    pytest.param(
        lambda world: world.leases.pop((HOME, "flyball")), "leases", Level.FAIL, "is not there", "logs", id="no-lease"
    ),
    pytest.param(
        lambda world: world.leases[HOME, "flyball"]["spec"].update(renewTime="2026-01-01T11:50:00.000000Z"),
        "leases",
        Level.FAIL,
        "last renewed",
        "logs",
        id="lease-expired",
    ),
    pytest.param(
        lambda world: world.set(FLYBALL_SHARDS="3"),
        "leases",
        Level.FAIL,
        "flyball-shard-1 is not there",
        "",
        id="shard-lost",
    ),
    pytest.param(
        lambda world: world.denied.add(("patch", "deployments.apps")),
        "rights",
        Level.FAIL,
        "not granted: patch deployments.apps",
        "helm upgrade",
        id="rights",
    ),
    pytest.param(
        lambda world: world.admission.clear(),
        "admission-policies",
        Level.WARN,
        "none",
        "admissionPolicies",
        id="policies",
    ),
    pytest.param(
        lambda world: world.bindings.clear(),
        "admission-policies",
        Level.FAIL,
        "flyball-owned: no binding",
        "helm upgrade",
        id="unbound",
    ),
    pytest.param(
        upgrade_that_hangs,
        "operator",
        Level.FAIL,
        "1 of 1 pods Ready, but not of its present template; pod flyball-1, container operator: Back-off pulling",
        "image.tag",
        id="hanging-upgrade",
    ),
    pytest.param(
        lambda world: world.operator["status"].update(updatedReplicas=0),
        "operator",
        Level.WARN,
        "1 of 1 pods Ready, but not of its present template",
        "kubectl rollout status deployment/flyball -n flyball-system",
        id="upgrade",
    ),
    pytest.param(
        without_a_secret,
        "operator",
        Level.FAIL,
        'secret "prometheus" not found',
        "make the named object in namespace flyball-system",
        id="no-secret",
    ),
    pytest.param(
        lambda world: (world.set(FLYBALL_NAMESPACES="team-b"), world.service.update(status={})),
        "services",
        Level.FAIL,
        "no operator has looked at it",
        "--set 'watch.namespaces={team-b,team-a}'",
        id="namespace-not-named",
    ),
    pytest.param(
        lambda world: hand_over(world, "2026-01-01T11:54:59.000000Z"),
        "namespaces",
        Level.FAIL,
        "looked after by gone/flyball",
        "kubectl delete lease",
        id="release-gone",
    ),
    pytest.param(
        lambda world: hand_over(world, "2026-01-01T11:55:01.000000Z"),
        "namespaces",
        Level.WARN,
        "looked after by gone/flyball, which was not found, though it renewed its Lease 299 s ago",
        f"kubectl get lease {names.NAMESPACE_LEASE} -n team-a",
        id="release-lives",
    ),
    pytest.param(
        in_one_namespace,
        "namespaces",
        Level.WARN,
        "looked after by gone/flyball, which is not in namespace flyball-system",
        "without --operator-namespace",
        id="release-elsewhere",
    ),
    pytest.param(
        lambda world: setattr(world, "keys", None), "signing-key", Level.FAIL, "is not there", "logs", id="no-key"
    ),
    pytest.param(
        lambda world: world.keys["metadata"].update(labels={names.LABEL_MANAGED_BY: "Helm"}),
        "signing-key",
        Level.FAIL,
        "is not the operator's: it lacks the label app.kubernetes.io/managed-by: flyball",
        "kubectl delete configmap flyball-public-keys -n team-a",
        id="foreign-key",
    ),
    pytest.param(
        lambda world: world.set(FLYBALL_SIGNING_KEY_SECRET=""),
        "signing-key",
        Level.FAIL,
        "no signing key",
        "",
        id="unsigned",
    ),
    pytest.param(
        other_clients_only,
        "network-policies",
        Level.FAIL,
        "deny lets",
        "patch networkpolicy deny -n team-a --type=json",
        id="network-policy",
    ),
    pytest.param(
        lambda world: world.set(FLYBALL_PROMETHEUS_URL=""),
        "prometheus",
        Level.WARN,
        "no Prometheus",
        "",
        id="no-prometheus",
    ),
    pytest.param(
        lambda world: world.say("MetricsAvailable", "False", "PrometheusUnauthorized", "HTTP 401"),
        "prometheus",
        Level.FAIL,
        "PrometheusUnauthorized for team-a/chat: HTTP 401",
        "",
        id="prometheus-refuses",
    ),
    pytest.param(not_annotated, "scraping", Level.FAIL, "NotScraped", "prometheus.io/scrape=true", id="not-scraped"),
    pytest.param(
        lambda world: world.say("MetricsAvailable", "True", "ScrapedTwice", "jobs a and b"),
        "scraping",
        Level.WARN,
        "jobs a and b",
        "switch",
        id="scraped-twice",
    ),
    pytest.param(older_plugin, "plugin", Level.WARN, "runs flyball/plugin:0.0.9", "annotate", id="older-plugin"),
    pytest.param(
        lambda world: world.service.update(status={}),
        "services",
        Level.FAIL,
        "no operator has looked",
        "",
        id="unwatched",
    ),
    pytest.param(
        lambda world: world.leases[TEAM, names.NAMESPACE_LEASE]["spec"].update(
            renewTime="2025-12-31T00:00:00Z", leaseDurationSeconds=300
        ),
        "services",
        Level.FAIL,
        "no operator has looked after team-a since 2025-12-31T00:00:00Z",
        "kubectl logs deployment/flyball -n flyball-system",
        id="unattended",
    ),
    pytest.param(
        without_its_image,
        "operator",
        Level.FAIL,
        '0 of 1 pods Ready; pod flyball-0, container operator: Back-off pulling image "flyball/operator:0.1"',
        "image.tag",
        id="no-image",
    ),
    pytest.param(
        lambda world: world.say("Accepted", "False", "NameConflict", "Deployment chat is left alone"),
        "services",
        Level.FAIL,
        "NameConflict",
        "explain chat",
        id="not-accepted",
    ),
    pytest.param(
        lambda world: world.say("Tuned", "False", "EngineUngoverned", "pod chat-1 runs as plain vLLM"),
        "services",
        Level.FAIL,
        "runs as plain vLLM",
        "explain chat",
        id="plain-vllm",
    ),
    pytest.param(
        lambda world: world.say("Tuned", "False", "Paused", "an annotation pauses"),
        "services",
        Level.WARN,
        "Paused",
        "flyball resume chat -n team-a",
        id="paused",
    ),
    pytest.param(
        lambda world: world.say("Stalled", "True", "RolledBack", "ArgumentRefused: --nonsense"),
        "rollouts",
        Level.FAIL,
        "RolledBack: ArgumentRefused: --nonsense",
        "Correct the spec",
        id="rolled-back",
    ),
    pytest.param(
        lambda world: world.say(
            "Progressing", "True", "RollingOut", 'ConfigMissing: pod chat-1: secret "hub" not found'
        ),
        "rollouts",
        Level.WARN,
        'RollingOut: ConfigMissing: pod chat-1: secret "hub" not found',
        "Create the Secret",
        id="waits-for-a-secret",
    ),
    pytest.param(
        lambda world: world.say("Progressing", "True", "Unschedulable", "pod chat-1: 0/3 nodes; the rollout waits"),
        "rollouts",
        Level.WARN,
        "Unschedulable: pod chat-1",
        "Add a node",
        id="shortage",
    ),
    pytest.param(
        lambda world: (
            world.say("Stalled", "True", "RolledBack", "ImagePullFailed: init container plugin"),
            world.say("TemplateOutdated", "True", "AdoptionFailed", "this operator's template did not run"),
        ),
        "rollouts",
        Level.FAIL,
        "AdoptionFailed: this operator's template did not run; RolledBack: ImagePullFailed: init container plugin",
        "Mend the cause, then set the annotation",
        id="adoption-failed",
    ),
    pytest.param(
        lambda world: world.service["spec"]["engine"].update(governed=False),
        "services",
        Level.WARN,
        "governed is false",
        "true",
        id="not-governed",
    ),
    pytest.param(
        lambda world: world.say("Routed", "False", "RefusedByGateway", "HTTPRoute on Gateway infra/edge"),
        "gateways",
        Level.FAIL,
        "HTTPRoute on Gateway infra/edge",
        "at the Gateway or in spec.gateway",
        id="refused-by-gateway",
    ),
    pytest.param(
        lambda world: world.say("Routed", "False", "RoutePending", "the HTTPRoute is being made"),
        "gateways",
        Level.WARN,
        "is being made",
        "Wait",
        id="route-pending",
    ),
]


@pytest.mark.parametrize(("change", "check", "level", "message", "mend"), BROKEN)
def test_what_is_broken_is_named_by_its_check(
    change: Change, check: str, level: Level, message: str, mend: str
) -> None:
    found = [one for one in bad(examined(change)) if one.check == check]
    assert [one.level for one in found] == [level]
    assert message in found[0].message
    assert found[0].mend
    assert mend in found[0].mend


#: What follows from the cause: without an operator nothing is told of it, and what no operator looked at says nothing.
FOLLOWS = {
    "none": {"namespaces"},
    "unwatched": {"prometheus"},
    "namespace-not-named": {"prometheus"},
    "unattended": {"prometheus"},
    "other-plugin": {"plugin"},
}


@pytest.mark.parametrize(("change", "check", "level", "message", "mend"), BROKEN)
def test_no_other_check_blames_something_else(
    change: Change, check: str, level: Level, message: str, mend: str, request: pytest.FixtureRequest
) -> None:
    case = request.node.callspec.id
    assert {one.check for one in bad(examined(change))} - FOLLOWS.get(case, set()) == {check}


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        {
            "from": [OPERATOR_PEER],
            "ports": [{"port": "control"}],
        },
        {"from": [{"namespaceSelector": {}}], "ports": [{"port": 8000, "endPort": 8010}]},
    ],
)
def test_a_policy_that_lets_the_operator_in_is_nobodys_matter(rule: dict[str, Any]) -> None:
    assert bad(examined(lambda world: world.isolate(rule))) == []


def operators_own(world: World, **peers: list[Any]) -> None:
    """The one policy is the operator's for the service, and lets nobody in; by its settings it lets these in."""
    world.isolate()
    owner = {"kind": names.KIND, "name": "chat", "uid": world.service["metadata"]["uid"], "controller": True}
    world.policies[-1]["metadata"] |= {"name": "chat", "ownerReferences": [owner]}
    world.set(FLYBALL_NETWORK_POLICY=json.dumps(peers) if peers else "")


@pytest.mark.parametrize(
    ("peers", "mend"),
    [
        ({}, "kubectl delete networkpolicy chat -n team-a   # networkPolicy.enabled is off"),
        ({"control": [OPERATOR_PEER]}, "kubectl delete networkpolicy chat -n team-a   # the operator makes it again"),
        ({"control": []}, "helm upgrade flyball charts/flyball -n flyball-system --reset-then-reuse-values --force"),
        ({"api": []}, "helm upgrade flyball charts/flyball -n flyball-system --reset-then-reuse-values --force"),
    ],
)
def test_a_policy_that_the_operator_makes_is_not_patched_but_made_otherwise(
    peers: dict[str, list[Any]], mend: str
) -> None:
    (found,) = bad(examined(lambda world: operators_own(world, **peers)))
    assert found.mend.startswith(mend), found.mend


def test_of_two_policies_the_one_is_patched_that_the_operator_does_not_make() -> None:
    def both(world: World) -> None:
        operators_own(world, control=[])
        world.isolate()

    (found,) = bad(examined(both))
    assert found.mend.startswith("kubectl patch networkpolicy deny -n team-a")


@pytest.mark.parametrize(
    "rule",
    [
        {"from": [{"namespaceSelector": {}}], "ports": [{"port": 8001, "protocol": "UDP"}]},
        {"from": [{"podSelector": {"matchLabels": OPERATOR_LABELS}}]},
        {
            "from": [
                {
                    "namespaceSelector": {
                        "matchExpressions": [
                            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [HOME]}
                        ]
                    }
                }
            ]
        },
    ],
)
def test_a_policy_that_lets_others_in_is_named(rule: dict[str, Any]) -> None:
    assert [one.check for one in bad(examined(lambda world: world.isolate(rule)))] == ["network-policies"]


def test_without_pods_nothing_is_said_of_their_plugin_and_of_who_reaches_them() -> None:
    findings = examined(lambda world: world.pod["metadata"].update(labels={}))
    assert {"plugin", "network-policies"}.isdisjoint(one.check for one in findings)


def test_tags_that_are_no_versions_are_not_compared() -> None:
    def tagged(world: World) -> None:
        container = world.operator["spec"]["template"]["spec"]["containers"][0]
        container["image"] = "registry:5000/flyball/operator:1f0a2b3c4d5e"
        world.set(FLYBALL_PLUGIN_IMAGE="registry:5000/flyball/plugin:5e4d3c2b1a0f")
        world.pod["spec"]["initContainers"][0]["image"] = "registry:5000/flyball/plugin:5e4d3c2b1a0f"

    findings = examined(tagged)
    assert bad(findings) == []
    (found,) = [one for one in findings if one.check == "versions"]
    assert found.message == f"flyball-system/flyball is of version {__version__}; its images' tags are not compared"


def unlooked(world: World) -> Finding:
    world.service["status"] = {}
    findings = examine(installation(world))
    assert bad(findings)[0].check == "operator"
    (found,) = [one for one in findings if one.check == "services"]
    assert found.mend == "first mend the operator, as said above"
    return found


def test_of_a_route_in_a_namespace_that_is_not_watched_nothing_is_known() -> None:
    found = examined(lambda world: world.say("Routed", "Unknown", "NamespaceNotWatched"))
    assert [one for one in found if one.check == "gateways"] == []


def test_of_services_that_gateways_find_it_says_how_many() -> None:
    found = examined(lambda world: world.say("Routed", "True", "AcceptedByGateway"))
    assert [one.message for one in found if one.check == "gateways"] == [
        "1 of 1 services are found by the gateways that they name"
    ]


def test_a_service_that_nobody_looked_at_waits_for_the_operator_before_any_setting() -> None:
    world = World()
    world.operator["status"] = {}
    assert unlooked(world).message.endswith("no operator has looked at it: flyball-system/flyball is not Ready")
    world.operators.clear()
    assert unlooked(world).message.endswith("no operator has looked at it: none was found")


def test_a_namespace_of_the_operator_that_is_not_there_is_told_first_and_nothing_is_said_of_operators() -> None:
    world = World()
    world.operators.clear()
    world.searched, world.searched_exists = "flybal-system", False
    findings = examine(installation(world))
    assert [one.check for one in findings] == ["operator", "cluster-version", "crd", "admission-policies"]
    assert (findings[0].level, findings[0].message) == (Level.FAIL, "there is no namespace flybal-system")
    assert "install" not in findings[0].mend


def test_a_namespace_without_an_operator_is_named() -> None:
    world = World()
    world.operators.clear()
    world.searched = "team-b"
    (found,) = [one for one in examine(installation(world)) if one.check == "operator"]
    assert found.message == "no operator was found in namespace team-b"
    assert "without --operator-namespace" in found.mend


def test_where_services_are_not_asked_for_nothing_is_said_of_them() -> None:
    world = World()
    world.services_asked = False
    findings = examine(installation(world))
    assert bad(findings) == []
    assert {"namespaces", "network-policies", "prometheus", "scraping", "plugin", "services"}.isdisjoint(
        one.check for one in findings
    )
    world.set(FLYBALL_PROMETHEUS_URL="", FLYBALL_SIGNING_KEY_SECRET="")
    assert [one.check for one in bad(examine(installation(world)))] == ["signing-key", "prometheus"]


def test_what_may_not_be_read_is_not_checked_so_it_is_not_healthy() -> None:
    denied = Unread("forbidden (HTTP 403)", "list things in all namespaces")
    found = installation(World())
    blind = replace(found, crd=denied, operators=denied, tenants=denied, admission=denied, server=denied)
    findings = examine(blind)
    assert not healthy(findings)
    assert as_json(findings)["healthy"] is False
    assert Level.FAIL not in {one.level for one in findings}
    assert {one.level for one in findings if denied.why in one.message} == {Level.SKIP}
    assert all(f"grant the right: {denied.right}" in one.mend for one in findings if one.level is Level.SKIP)
    assert {one.check for one in findings if denied.why in one.message} == {
        "cluster-version",
        "crd",
        "operator",
        "admission-policies",
        "namespaces",
    }


def test_leases_rights_and_a_namespace_that_may_not_be_read_are_not_checked() -> None:
    denied = Unread("forbidden (HTTP 403)", "list things in all namespaces")
    found = installation(World())
    assert isinstance(found.operators, list)
    assert isinstance(found.tenants, list)
    operators = [replace(found.operators[0], leases=denied, denied=denied)]
    tenants = [replace(found.tenants[0], pods=denied, policies=denied, keys=denied, lease=denied)]
    findings = bad(examine(replace(found, operators=operators, tenants=tenants)))
    assert {one.level for one in findings} == {Level.SKIP}
    assert [one.check for one in findings] == [
        "leases",
        "rights",
        "namespaces",
        "signing-key",
        "network-policies",
        "plugin",
    ]


def test_lines_have_eighty_columns_but_for_commands() -> None:
    long = Finding("rights", Level.FAIL, "not granted " * 20, "do this and that " * 10)
    lines = text_lines(long, 80)
    assert lines[0].startswith("FAIL  rights: not granted")
    assert max(map(len, lines)) <= 80
    command = "kubectl annotate --overwrite " + "x" * 100
    assert text_lines(replace(long, mend=command), 80)[-1] == f"      mend: {command}"


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    for mend in ("flyball explain \x1b[2J", "see \x1b[2J"):
        told = Finding("services", Level.FAIL, "team/chat: exit code 1: \x1b]0;owned\x07", mend)
        assert all(map(str.isprintable, text_lines(told, 80)))


def test_the_document_has_every_finding() -> None:
    document = as_json(examined(lambda world: world.operators.clear()))
    assert document["healthy"] is False
    assert {frozenset(one) for one in document["checks"]} == {frozenset({"check", "level", "message", "mend"})}
    assert {one["level"] for one in document["checks"]} <= {"OK", "WARN", "FAIL", "SKIP"}


def test_a_namespace_that_a_second_release_names_is_told_with_what_takes_it_away() -> None:
    def second(world: World, named: str) -> None:
        world.operators.append(copy.deepcopy(world.operator))
        world.operators[1]["metadata"].update(name="second", namespace="other")
        for item in world.operators[1]["spec"]["template"]["spec"]["containers"][0]["env"]:
            item["value"] = {"FLYBALL_NAMESPACES": named, "FLYBALL_LEASE_NAME": "second"}.get(
                item["name"], item["value"]
            )

    def told(named: str) -> Finding:
        found = [one for one in examined(lambda world: second(world, named)) if one.check == "namespaces"]
        assert [one.level for one in found] == [Level.WARN]
        assert "team-a is looked after by flyball-system/flyball; other/second names it, too" in found[0].message
        return found[0]

    assert told("team-b,team-a").mend.endswith("-n other --reset-then-reuse-values --set 'watch.namespaces={team-b}'")
    assert told("team-a").mend.endswith("or, if that is all it is for: helm uninstall second -n other")


def test_a_namespace_that_labels_select_is_mended_by_labels() -> None:
    def selected(world: World) -> None:
        world.set(FLYBALL_NAMESPACES="", FLYBALL_WATCH_NAMESPACE_SELECTOR="team=yes")
        world.service["status"] = {}

    (found,) = [one for one in examined(selected) if one.check == "services"]
    assert "labels team=yes, and a RoleBinding" in found.mend


def test_every_reason_of_prometheus_has_a_step() -> None:
    for reason in Missing:
        findings = examined(functools.partial(World.say, kind="MetricsAvailable", status="False", reason=reason))
        assert [one.mend for one in bad(findings) if one.mend and "{" not in one.mend]


def test_a_pod_whose_template_forbids_scraping_is_mended_in_the_spec() -> None:
    def forbidden(world: World) -> None:
        not_annotated(world)
        world.service["spec"]["podTemplate"] = {"annotations": {names.ANNOTATION_SCRAPE: "false"}}

    (found,) = bad(examined(forbidden))
    assert "in spec.podTemplate.annotations to true" in found.mend


def test_a_worker_need_not_be_scraped() -> None:
    def worker(world: World) -> None:
        not_annotated(world)
        world.pod["metadata"]["labels"] = {**world.pod["metadata"]["labels"], names.LABEL_WORKER: "true"}

    (found,) = bad(examined(worker))
    assert found.mend == "docs/scraping.md, When nothing is seen, has the step"
