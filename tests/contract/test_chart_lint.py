"""What linters say of the chart, whatever the values: kubeconform of fields and types, the others of good practice."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.repository import ROOT
from support import helm, kube_schemas
from support.binaries import binary
from support.helm import CHART, VALUE_SETS, Object

EXCEPTIONS: dict[str, dict[str, str]] = yaml.safe_load((Path(__file__).parent / "chart_lint.yaml").read_text())
#: Of what InferenceServices may use.
LISTS = ("images", "secrets", "csiDrivers", "claims", "serviceAccounts", "priorityClasses")
#: All that can be turned on at once.
ALL_ON: Object = {
    "replicas": 2,
    "watch": {"scope": "Selector", "namespaceSelector": {"matchLabels": {"a": "b"}}, "namespaces": ["team"]},
    "prometheus": {
        "url": "https://prometheus",
        "bearerToken": {"serviceAccount": True, "audience": "prometheus"},
        "headers": {"secret": "tenant"},
        "tls": {"ca": {"configMap": "ca"}, "clientCertificate": {"secret": "client"}},
    },
    "networkPolicy": {"enabled": True, "console": [{"podSelector": {}}]},
    "console": {"enabled": True, "service": True},
    "admissionPolicies": {
        "operator": True,
        "inferenceServices": {
            "enabled": True,
            **{each: ["a"] for each in LISTS},
        },
    },
    "metrics": {
        "podMonitor": {"operator": True, "engines": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "commonLabels": {"owner": "serving"},
    "imagePullSecrets": [{"name": "mirror"}],
    "tolerations": [{"key": "control-plane", "operator": "Exists"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "priorityClassName": "system-cluster-critical",
}  # fmt: skip
VALUES = {"everything on": ALL_ON} | {name: helm.values(name) for name in VALUE_SETS}


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schemas of the Kubernetes that hack/cluster runs, and of the CRD."""
    folder = tmp_path_factory.mktemp("schemas")
    swagger = Path(binary("kubeconform")).resolve().parent / "swagger.json"
    kube_schemas.write(swagger, ROOT / "crds/inferenceservices.serving.flyball.dev.yaml", folder)
    return folder


def rendered(values: Object) -> str:
    return helm.run("template", "flyball", str(CHART), "--namespace", "flyball-system", values=values, offline=True)


def conform(schemas: Path, text: str) -> list[Object]:
    """What kubeconform says of each object; a document of comments alone has no status."""
    command = [binary("kubeconform"), "-output", "json", "-verbose", "-ignore-missing-schemas"]
    command += ["-schema-location", f"{schemas}/{kube_schemas.TEMPLATE}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    found: list[Object] = json.loads(done.stdout)["resources"]
    return [one for one in found if one["status"]]


@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_knows_every_field(schemas: Path, name: str) -> None:
    found = conform(schemas, rendered(VALUES[name]))
    assert found
    assert [one for one in found if one["status"] not in {"statusValid", "statusSkipped"}] == []
    assert {one["kind"] for one in found if one["status"] == "statusSkipped"} <= EXCEPTIONS["kubeconform"].keys()


@pytest.mark.parametrize("path", sorted((ROOT / "docs/examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_api_server_knows_every_field_of_an_example(schemas: Path, path: Path) -> None:
    assert {one["status"] for one in conform(schemas, path.read_text())} == {"statusValid"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("readOnlyRootFilesystem:", "readOnlyRootFileSystem:"), ("containerPort: 8080", 'containerPort: "8080"')],
    ids=["a field that is spelt wrongly", "a text in place of a number"],
)  # fmt: skip
def test_a_wrong_field_is_found(schemas: Path, old: str, new: str) -> None:
    text = rendered({})
    assert old in text
    found = conform(schemas, text.replace(old, new))
    assert "Deployment" in [one["kind"] for one in found if one["status"] == "statusInvalid"]


def scored(text: str) -> set[str]:
    """Checks of kube-score that find something to mend in these objects."""
    done = subprocess.run(
        [binary("kube-score"), "score", "--output-format", "json", "-"],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    objects: list[dict[str, Any]] = json.loads(done.stdout)
    assert objects
    return {
        check["check"]["id"]
        for one in objects
        for check in one["checks"]
        if not check["skipped"] and check["grade"] < 10
    }


def test_good_practice_is_kept_but_for_reasoned_exceptions() -> None:
    found = {name: scored(rendered(values)) for name, values in VALUES.items()}
    allowed = EXCEPTIONS["kube-score"].keys()
    assert {name: checks - allowed for name, checks in found.items() if checks - allowed} == {}
    assert allowed - set().union(*found.values()) == set(), "an exception for what is found no more"


def test_a_pod_that_is_not_confined_is_found() -> None:
    assert "container-security-context-readonlyrootfilesystem" in scored(
        rendered({}).replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false")
    )


@pytest.fixture(scope="module")
def kube_linter() -> str:
    """Path of a kube-linter that somebody has installed."""
    found = shutil.which("kube-linter")
    if found is None:
        pytest.skip(
            "no kube-linter is on PATH: the Go module proxy does not serve its module, so that hack/lib/binaries cannot"
            " build it; a release of it is used where one is on PATH"
        )
    return found


def linted(command: str, text: str) -> set[str]:
    """What kube-linter finds in these objects with all its checks: `CHECK of KIND`.

    It passes over kinds that it does not know.
    """
    options = ["--add-all-built-in", "--fail-if-no-objects-found", "--format", "json"]
    done = subprocess.run(
        [command, "lint", *options, "-"],
        input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    reports: list[dict[str, Any]] = json.loads(done.stdout)["Reports"] or []
    return {f"{one['Check']} of {one['Object']['K8sObject']['GroupVersionKind']['Kind']}" for one in reports}


def test_kube_linter_finds_nothing_but_reasoned_exceptions(kube_linter: str) -> None:
    found = {name: linted(kube_linter, rendered(values)) for name, values in VALUES.items()}
    allowed = EXCEPTIONS["kube-linter"].keys()
    assert {name: checks - allowed for name, checks in found.items() if checks - allowed} == {}
    assert allowed - set().union(*found.values()) == set(), "an exception for what is found no more"


@pytest.mark.parametrize(
    ("old", "new", "check"),
    [
        ("allowPrivilegeEscalation: false", "privileged: true", "privileged-container"),
        ("path: /readyz, port: metrics", "path: /readyz, port: 8090", "readiness-port"),
    ],
    ids=["a privileged container", "a probe of a port that is not open"],
)  # fmt: skip
def test_kube_linter_finds_what_is_wrong(kube_linter: str, old: str, new: str, check: str) -> None:
    text = rendered({})
    assert old in text
    assert f"{check} of Deployment" in linted(kube_linter, text.replace(old, new))
