"""The chart on the real API server: all it renders is accepted, its account may do what it must, upgrades keep."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.objects import being_deleted
from flyball_operator.app.startup import needed
from support import helm
from support.cluster import Object, get, kubectl, make_namespace, namespace, patch
from support.helm import CHART, VALUE_SETS, HelmError, of_kind, render

RELEASE = "flyball-chart-test"
ACCOUNT = "flyball-chart-test"
SECRET = f"{RELEASE}-signing-key"
#: No pod shall start: these tests are about objects.
NO_IMAGE = {"image": {"registry": "localhost", "repository": "no/such-image", "pullPolicy": "Never"}}


@pytest.fixture(scope="module")
def tenants() -> Iterator[None]:
    """The namespaces that the air-gapped value set names."""

    def found() -> dict[str, Object | None]:
        return {name: get("namespace", name, namespace=name) for name in ("team-a", "team-b")}

    eventually(
        lambda: not any(one is not None and being_deleted(one) for one in found().values()),
        expecting="what an earlier run made is gone",
    )
    made = [name for name, one in found().items() if one is None]
    for name in made:
        make_namespace(name)
    yield
    # Others are the user's.
    if made:
        kubectl("delete", "namespace", *made, "--wait=false")


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_everything_rendered_is_accepted(value_set: str, work: str, tenants: None) -> None:
    rendered = [one for one in render(helm.values(value_set), namespace=work) if one["kind"] != "PodMonitor"]
    for pod in of_kind(rendered, "Pod"):
        # An account that is only tried is there for no pod.
        pod["spec"].pop("serviceAccountName")
    listed = {"apiVersion": "v1", "kind": "List", "items": rendered}
    out = kubectl(
        "apply", "--dry-run=server", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listed)
    )
    assert len(out.splitlines()) == len(rendered)


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_the_operator_pod_passes_the_restricted_level(value_set: str, work: str) -> None:
    (deployment,) = of_kind(render(helm.values(value_set), namespace=work), "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    # Needs objects that only an installation has; the security level is not about them.
    for field in ("priorityClassName", "serviceAccountName"):
        spec.pop(field, None)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": spec}
    assert "created" in kubectl("create", "--dry-run=server", "-n", work, "-f", "-", stdin=json.dumps(pod))


@pytest.fixture(scope="module")
def installed(crd: object) -> Iterator[str]:
    """The chart installed in a namespace of its own, with the CRD taken over as its NOTES say."""
    with namespace("flyball-chart") as name:
        helm.run("install", RELEASE, str(CHART), "-n", name, "--take-ownership", values=NO_IMAGE)
        yield name
        helm.run("uninstall", RELEASE, "-n", name, "--ignore-not-found")


def _may(account: str, verb: str, resource: str, group: str, where: str | None, name: str = "") -> bool:
    plural, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "resource": plural,
        "group": group,
        "subresource": subresource,
        "namespace": where or "",
        "name": name,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account, "resourceAttributes": attributes},
    }
    out = kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
    return bool(json.loads(out)["status"]["allowed"])


def test_the_account_may_do_what_the_operator_asks_for_and_nothing_next_to_it(installed: str) -> None:
    account = f"system:serviceaccount:{installed}:{ACCOUNT}"
    for right in needed([installed], installed, [RELEASE], secret=SECRET):
        resource = right.resource
        assert _may(account, right.verb, resource.plural, resource.group, right.namespace, right.name), str(right)
    assert _may(account, "update", "leases", "coordination.k8s.io", installed, names.NAMESPACE_LEASE)
    assert not _may(account, "update", "leases", "coordination.k8s.io", installed, "another")
    assert not _may(account, "delete", "deployments", "apps", installed)
    assert not _may(account, "list", "networkpolicies", "networking.k8s.io", installed)
    assert not _may(account, "get", "secrets", "", installed, "another")
    assert not _may(account, "list", "secrets", "", installed)
    assert not _may(account, "get", "secrets", "", "default", SECRET)
    assert not _may(account, "list", "configmaps", "", installed)
    assert not _may(account, "delete", "configmaps", "", installed)
    assert not _may(account, "list", "pods", "", "default")
    assert not _may(account, "patch", "replicasets", "apps", installed)
    assert not _may(account, "update", names.PLURAL, names.GROUP, installed)
    assert not _may(account, "delete", names.PLURAL, names.GROUP, installed)
    out = kubectl("get", "namespace", installed, "-o", "name", "--as", account)
    assert out.strip() == f"namespace/{installed}"
    assert names.CRD_NAME in kubectl("get", "crd", names.CRD_NAME, "-o", "name", "--as", account)


def _data(where: str) -> dict[str, str]:
    """What the release's Secret holds."""
    found = get("secret", SECRET, namespace=where)
    assert found is not None
    return dict(found.get("data") or {})


def _fill(where: str, **data: str | None) -> None:
    """Write into the Secret as the operator does."""
    encoded = {key: text if text is None else base64.b64encode(text.encode()).decode() for key, text in data.items()}
    patch("secret", SECRET, {"data": encoded}, namespace=where)


def _crd() -> Object:
    found = get("crd", names.CRD_NAME, namespace="default")
    assert found is not None
    return found


def test_upgrade_and_reinstall_keep_the_signing_key_and_the_crd(installed: str) -> None:
    assert _data(installed) == {}, "the operator makes it"
    _fill(installed, **{"current": "a key", "current-since": "2026-01-01T00:00:00Z", "next": "another"})
    key, crd_uid = _data(installed), _crd()["metadata"]["uid"]
    helm.run("upgrade", RELEASE, str(CHART), "-n", installed, values=NO_IMAGE | {"replicas": 2})
    assert _data(installed) == key
    helm.run("uninstall", RELEASE, "-n", installed)
    assert _data(installed) == key
    assert _crd()["metadata"]["uid"] == crd_uid
    with pytest.raises(HelmError, match="exists and cannot be imported into the current release"):
        helm.run("install", "another", str(CHART), "-n", installed, values=NO_IMAGE)
    helm.run("install", "another", str(CHART), "-n", installed, "--take-ownership", values=NO_IMAGE)
    helm.run("uninstall", "another", "-n", installed)
    helm.run("install", RELEASE, str(CHART), "-n", installed, "--take-ownership", values=NO_IMAGE)
    assert _data(installed) == key


EARLIER_CHART = """
apiVersion: v1
kind: Secret
metadata: {name: %s, annotations: {helm.sh/resource-policy: keep}}
type: Opaque
data: {signing-key.pem: %s}
"""


@pytest.mark.parametrize(
    "server_side", [True, pytest.param(False, marks=pytest.mark.long)], ids=["server-side apply", "three-way merge"]
)
def test_the_key_that_an_earlier_chart_made_is_there_until_the_operator_has_taken_it_over(
    server_side: bool, crd: object, tmp_path: Path
) -> None:
    earlier = tmp_path / "flyball"
    (earlier / "templates").mkdir(parents=True)
    (earlier / "Chart.yaml").write_text("apiVersion: v2\nname: flyball\nversion: 0.0.1\n")
    encoded = base64.b64encode(b"the key").decode()
    (earlier / "templates/signing-key.yaml").write_text(EARLIER_CHART % (SECRET, encoded))
    values = NO_IMAGE | {"crds": {"install": False}, "rbac": {"create": True, "aggregate": False}}
    with namespace("flyball-earlier") as place:
        how = f"--server-side={str(server_side).lower()}"
        helm.run("install", RELEASE, str(earlier), "-n", place, how)
        for _ in range(2):
            helm.run("upgrade", RELEASE, str(CHART), "-n", place, how, values=values)
            assert _data(place) == {"signing-key.pem": encoded}
        _fill(place, **{"current": "the key", "signing-key.pem": None})
        taken = _data(place)
        for replicas in (1, 2):
            helm.run("upgrade", RELEASE, str(CHART), "-n", place, how, values=values | {"replicas": replicas})
            assert _data(place) == taken
        helm.run("uninstall", RELEASE, "-n", place)


def test_the_notes_say_what_is_watched_and_what_is_missing(installed: str) -> None:
    notes = helm.run("get", "notes", RELEASE, "-n", installed)
    assert f"in these namespaces: {installed}." in notes
    assert "NOT SET: prometheus.url" in notes
