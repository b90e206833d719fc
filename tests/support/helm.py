"""helm, as the tests use it: what the chart renders to, and what it says of wrong values."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

import yaml

from flyball_lab.repository import ROOT
from support.binaries import binary

Object = dict[str, Any]
CHART = ROOT / "charts/flyball"
VALUE_SETS = tuple(sorted(path.name.split(".")[0] for path in (ROOT / "tests/golden/chart").glob("*.values.yaml")))


class HelmError(AssertionError):
    """helm ended with an error; the message is what it said."""


def run(*args: str, values: Object | None = None, offline: bool = False) -> str:
    """Run helm, with values on standard input; `offline` hides any cluster from it. Raises `HelmError`."""
    environment = dict(os.environ) | ({"KUBECONFIG": "/dev/null"} if offline else {})
    extra = ["-f", "-"] if values is not None else []
    done = subprocess.run(
        [binary("helm"), *args, *extra], input=json.dumps(values), capture_output=True, text=True, timeout=120,
        check=False, env=environment,
    )  # fmt: skip
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def values(value_set: str) -> Object:
    """One of the value sets that golden files exist for."""
    loaded: Object = yaml.safe_load((ROOT / f"tests/golden/chart/{value_set}.values.yaml").read_text())
    return loaded


def render(
    changes: Object, *, release: str = "flyball", namespace: str = "flyball-system", cluster: Sequence[str] = ()
) -> list[Object]:
    """Everything the chart renders to with these values, without a cluster. `cluster`: flags that say what one has."""
    text = run("template", release, str(CHART), "--namespace", namespace, *cluster, values=changes, offline=True)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(rendered: list[Object], kind: str) -> list[Object]:
    """The objects of one kind."""
    return [one for one in rendered if one["kind"] == kind]


def rights(rendered: list[Object], *, account: str) -> set[tuple[str, str, str, str, str]]:
    """What the bindings give one account: group, resource, verb, namespace, name (`*` for all of them)."""
    roles = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in rendered}
    given = set()
    for binding in of_kind(rendered, "RoleBinding") + of_kind(rendered, "ClusterRoleBinding"):
        if not any(subject["name"] == account for subject in binding["subjects"]):
            continue
        namespace = binding["metadata"].get("namespace")
        kind = binding["roleRef"]["kind"]
        role = roles[(kind, namespace if kind == "Role" else None, binding["roleRef"]["name"])]
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    given |= {
                        (group, resource, verb, namespace or "*", name)
                        for verb in rule["verbs"]
                        for name in rule.get("resourceNames", ["*"])
                    }
    return given
