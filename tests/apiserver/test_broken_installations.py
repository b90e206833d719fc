"""Installations broken in one way each: `flyball doctor` names the cause, and the mend that it prints is right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flyball_lab.harness.manifests import Object
from flyball_lab.harness.waiting import eventually
from flyball_operator import __version__
from flyball_operator.api import names
from support import helm
from support.cluster import apply, delete, items, kubectl, namespace
from support.helm import CHART
from support.kubelet import play_trouble
from support.operators import RESOURCE, idle_service
from support.played_installation import Findings, PlayedInstallation, bad, doctor, make_secret, played_installation
from support.played_release import ON_NO_NODE, ON_THE_NODE


@pytest.fixture(scope="module")
def installed(crd: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayedInstallation]:
    """What all tests break and mend: its start takes longest."""
    with played_installation(tmp_path_factory.mktemp("installation")) as one:
        yield one


@pytest.fixture
def broken(installed: PlayedInstallation) -> PlayedInstallation:
    """A good installation, which the test breaks."""
    installed.begin()
    return installed


def test_an_operator_that_is_scaled_to_0(broken: PlayedInstallation) -> None:
    kubectl("scale", "deployment", "flyball", "-n", broken.own, "--replicas=0")
    broken.release.play()
    broken.mend(broken.expect_named("operator", "FAIL", "is scaled to 0"))
    broken.release.play()
    broken.expect_well()


def test_a_role_binding_that_is_gone(broken: PlayedInstallation) -> None:
    kubectl("delete", "rolebindings", "--all", "-n", broken.team)
    broken.mend(broken.expect_named("rights", "FAIL", "not granted", f"in namespace {broken.team}"))
    broken.expect_well()


def test_a_role_from_which_somebody_took_a_right(broken: PlayedInstallation) -> None:
    (role,) = json.loads(kubectl("get", "roles", "-n", broken.team, "-o", "json"))["items"]
    for rule in role["rules"]:
        rule["verbs"] = [verb for verb in rule["verbs"] if verb != "patch" or "deployments" not in rule["resources"]]
    kubectl("replace", "-f", "-", stdin=json.dumps(role))
    broken.mend(broken.expect_named("rights", "FAIL", "not granted: patch deployments.apps"))
    broken.expect_well()


def test_an_upgrade_to_an_image_that_no_node_can_pull(broken: PlayedInstallation) -> None:
    broken.release.upgrade("image.tag=9.9.9", "plugin.image.tag=9.9.9", ON_THE_NODE)
    mend = broken.expect_named("operator", "FAIL", "1 of 1 pods Ready, but not of its present template", "9.9.9")
    assert "set image.registry, image.repository and image.tag" in mend
    broken.release.restore()
    broken.expect_well()


def test_a_secret_that_the_operators_pod_lacks(broken: PlayedInstallation) -> None:
    broken.release.upgrade("prometheus.basicAuth.secret=another", ON_THE_NODE)
    mend = broken.expect_named("operator", "FAIL", 'secret "another" not found')
    assert f"make the named object in namespace {broken.own}" in mend
    make_secret("another", broken.own)
    # Its image is not on the node: from here on the kubelet is played.
    broken.release.upgrade(ON_NO_NODE)
    broken.release.play()
    broken.expect_well()
    broken.release.restore()


@pytest.mark.long
def test_a_plugin_of_another_version(broken: PlayedInstallation) -> None:
    broken.release.upgrade("plugin.image.tag=0.0.9")
    broken.release.play()
    broken.mend(broken.expect_named("versions", "WARN", f"the operator {__version__} with the plugin 0.0.9"))
    broken.release.play()
    broken.expect_well()


def test_an_admission_policy_without_its_binding(broken: PlayedInstallation) -> None:
    name = f"{broken.own}-flyball-owned"
    kubectl("delete", "validatingadmissionpolicybinding", name)
    broken.mend(broken.expect_named("admission-policies", "FAIL", f"{name}: no binding"))
    broken.expect_well()


def test_a_namespace_that_nobody_watches(broken: PlayedInstallation) -> None:
    with namespace("flyball-doctor-other") as other:
        apply(idle_service(spec__replicas=0), namespace=other)
        broken.mend(broken.expect_named("services", "FAIL", f"{other}/chat: no operator has looked at it", team=other))
        broken.release.play()
        # Nothing of it runs, so nothing is known of Prometheus.
        broken.expect_well(other, but="prometheus")
        broken.release.restore()


def test_a_prometheus_where_nobody_listens(broken: PlayedInstallation) -> None:
    broken.release.upgrade("prometheus.url=http://127.0.0.1:1")
    broken.release.play()
    mend = broken.expect_named("prometheus", "FAIL", "PrometheusUnreachable", "127.0.0.1:1")
    assert mend.startswith("set prometheus.url (now http://127.0.0.1:1) in the chart's values")
    broken.release.upgrade(f"prometheus.url={broken.prometheus_url}")
    broken.release.play()
    broken.expect_well()


@pytest.mark.long
def test_a_prometheus_that_wants_a_password(broken: PlayedInstallation) -> None:
    broken.release.upgrade("prometheus.basicAuth.secret=", "prometheus.basicAuth.username=")
    broken.release.play()
    mend = broken.expect_named("prometheus", "FAIL", "PrometheusUnauthorized", f"{broken.team}/chat")
    assert mend.startswith("set prometheus.basicAuth")
    broken.release.restore()
    broken.expect_well()


def test_a_pod_that_no_job_scrapes(broken: PlayedInstallation) -> None:
    (pod,) = items("pods", namespace=broken.team)
    kubectl("annotate", "pod", pod["metadata"]["name"], "-n", broken.team, f"{names.ANNOTATION_SCRAPE}-")
    broken.mend(broken.expect_named("scraping", "FAIL", f"{broken.team}/chat: NotScraped"))
    broken.expect_well()


def test_a_network_policy_that_closes_the_control_port(broken: PlayedInstallation) -> None:
    clients = {"from": [{"podSelector": {}}], "ports": [{"port": 8000}]}
    policy: Object = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "clients-only"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [clients]},
    }
    with gone_at_the_end("networkpolicy", "clients-only", broken.team):
        apply(policy, namespace=broken.team)
        broken.mend(broken.expect_named("network-policies", "FAIL", "clients-only lets", "not in at port 8001"))
        broken.expect_well()


def test_a_network_policy_of_the_operators_own_that_closes_the_control_port(broken: PlayedInstallation) -> None:
    broken.release.upgrade("networkPolicy.enabled=true")
    broken.release.play()
    broken.expect_well()
    nobody = json.dumps({"api": [], "control": []})
    kubectl("set", "env", "deployment/flyball", "-n", broken.own, f"FLYBALL_NETWORK_POLICY={nobody}")
    broken.release.play()
    broken.mend(broken.expect_named("network-policies", "FAIL", "chat lets", "not in at port 8001"))
    broken.release.play()
    broken.expect_well()
    # What is not made any more stays.
    broken.release.upgrade("networkPolicy.enabled=false")
    broken.release.play()
    shut: Object = {"spec": {"ingress": []}}
    kubectl("patch", "networkpolicy", "chat", "-n", broken.team, "--type=merge", "--patch", json.dumps(shut))
    broken.mend(broken.expect_named("network-policies", "FAIL", "chat lets", "not in at port 8001"))
    broken.expect_well()
    broken.release.restore()


@pytest.mark.long
def test_public_keys_that_are_not_the_operators(broken: PlayedInstallation) -> None:
    kubectl("label", "configmap", names.PUBLIC_KEYS, "-n", broken.team, f"{names.LABEL_MANAGED_BY}-")
    broken.mend(broken.expect_named("signing-key", "FAIL", f"{names.PUBLIC_KEYS} is not the operator's"))
    # The operator looks every 5 minutes.
    broken.expect_well(within=600)


def test_a_service_that_somebody_paused(broken: PlayedInstallation) -> None:
    broken.mend(f"flyball pause chat -n {broken.team}")
    broken.mend(broken.expect_named("services", "WARN", f"{broken.team}/chat: Paused"))
    broken.expect_well()


def test_a_service_whose_deployment_is_anothers(broken: PlayedInstallation) -> None:
    with gone_at_the_end("deployment", "taken", broken.team), gone_at_the_end(RESOURCE, "taken", broken.team):
        kubectl("create", "deployment", "taken", "-n", broken.team, "--image=none", "--replicas=0")
        apply(idle_service("taken", spec__replicas=0), namespace=broken.team)
        mend = broken.expect_named("services", "FAIL", "taken: NameConflict")
        assert "Remove the other object" in mend
        delete("deployment", "taken", namespace=broken.team)
        broken.expect_well()


def test_a_secret_that_a_service_names_and_nobody_made(broken: PlayedInstallation) -> None:
    image = "vllm/vllm-openai:v0.32.1"
    with gone_at_the_end(RESOURCE, "lacking", broken.team):
        apply(idle_service("lacking", spec__engine__image=image), namespace=broken.team)
        waiting = {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}
        play_trouble(broken.team, image=image, state={"waiting": waiting})
        mend = broken.expect_named("rollouts", "WARN", "lacking: RollingOut: ConfigMissing", 'secret "hub" not found')
        assert mend.startswith("Create the Secret")


def test_two_releases_that_name_one_namespace(broken: PlayedInstallation) -> None:
    with namespace("flyball-doctor-second") as second:
        values: Object = {"watch": {"namespaces": [broken.team, second]}, "image": {"pullPolicy": "Never"}}
        values |= {"rbac": {"aggregate": False}, "crds": {"install": False}}
        helm.run("install", "second", str(CHART), "-n", second, values=values)
        try:
            (found,) = eventually(lambda: said_of_namespaces(broken.team), expecting="the other release is named")
            assert f"{broken.team} is looked after by {broken.own}/flyball; {second}/second-flyball" in found["message"]
            broken.mend(found["mend"])
            eventually(lambda: not said_of_namespaces(broken.team), expecting="nothing is said of namespaces")
        finally:
            helm.run("uninstall", "second", "-n", second, "--ignore-not-found")


def said_of_namespaces(team: str) -> Findings:
    return [one for one in bad(doctor("-n", team)) if one["check"] == "namespaces"]


@contextmanager
def gone_at_the_end(kind: str, name: str, place: str) -> Iterator[None]:
    """What a test makes beside the installation: the next test finds it as it was, whatever becomes of this one."""
    try:
        yield
    finally:
        delete(kind, name, namespace=place)
