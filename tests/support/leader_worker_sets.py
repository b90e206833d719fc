"""LeaderWorkerSets on the cluster: their controller and webhooks, as the published chart installs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml

from flyball_lab.harness.waiting import eventually
from support import others_crds
from support.binaries import binary, imported
from support.cluster import KubectlError, Object, condition, expect_established, get, kubectl
from support.helm import run
from support.remnants import mark

#: Where its webhooks are looked for.
_NAMESPACE: Final = "lws-system"
_MANAGER: Final = "lws-controller-manager"
_TOOL: Final = "lws-manager"
#: A set that is asked for, and never made.
_PROBE: Final[Object] = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": [{"name": "one", "image": "one"}]}}}},
}


@contextmanager
def leader_worker_sets() -> Iterator[None]:
    """They are served and looked after for as long as the block lasts."""
    chart = Path(binary("lws-chart"))
    crd = chart / "crds/leaderworkerset.x-k8s.io_leaderworkersets.yaml"
    others_crds.expect_absent(crd)
    objects = "\n---\n".join(map(json.dumps, _published(chart)))
    try:
        _apply(json.dumps(mark(yaml.safe_load(crd.read_text()))))
        expect_established(crd)
        _apply(objects)
        eventually(_answers, expecting="the controller and the webhooks of LeaderWorkerSets")
        yield
    finally:
        # The CRD first, or its objects would want the webhooks.
        kubectl("delete", "--ignore-not-found", "-f", str(crd), timeout=300)
        kubectl("delete", "--ignore-not-found", "-f", "-", stdin=objects, timeout=300)


def _published(chart: Path) -> list[Object]:
    repository, _, tag = imported(_TOOL)[_TOOL].rpartition(":")
    values = {
        "image": {"manager": {"repository": repository, "tag": tag, "pullPolicy": "Never"}},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }
    text = run("template", "lws", str(chart), "--namespace", _NAMESPACE, values=values, offline=True)
    objects: list[Object] = [one for one in yaml.safe_load_all(text) if one]
    for one in objects:
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            # Our image has it elsewhere.
            container["command"] = [f"/bin/{_TOOL}"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
    return [mark(one) for one in (namespace, *objects)]


def _answers() -> bool:
    manager = get("deployment", _MANAGER, namespace=_NAMESPACE)
    if condition(manager, "Available").get("status") != "True":
        return False
    try:
        kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(_PROBE))
    except KubectlError:
        return False
    return True


def _apply(manifest: str) -> None:
    """On the server's side: no annotation can hold what this CRD is."""
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifest, timeout=300)
