"""KEDA on the cluster, as its project publishes it: operator, metrics server and webhooks in its own namespace."""

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
from support.cluster import Object, condition, get, kubectl
from support.external_metrics import read_by_anybody, served
from support.remnants import mark

_NAMESPACE: Final = "keda"
#: Our images, by the container that has each in the published installation.
_TOOLS: Final = {
    "keda-operator": "keda-operator",
    "keda-metrics-apiserver": "keda-adapter",
    "keda-admission-webhooks": "keda-webhooks",
}


@contextmanager
def keda() -> Iterator[None]:
    """It looks after ScaledObjects for as long as the block lasts; none may be left at its end."""
    config = Path(binary("keda-config"))
    others_crds.expect_absent(config / "crd/bases/keda.sh_scaledobjects.yaml")
    objects = "\n---\n".join(map(json.dumps, _published(config)))
    try:
        # On the server's side: no annotation can hold what the CRDs are.
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=objects, timeout=300)
        eventually(lambda: served() and all(map(_available, _deployments())), expecting="KEDA serves metrics")
        yield
    finally:
        kubectl("delete", "--ignore-not-found", "-f", "-", stdin=objects, timeout=300)


def _published(config: Path) -> list[Object]:
    """All that KEDA's project installs, with our images; and the right to read what its metrics server tells."""
    images = imported(*_TOOLS.values())
    objects: list[Object] = list(yaml.safe_load_all(kubectl("kustomize", str(config / "default"))))
    for one in objects:
        if one["kind"] == "Deployment":
            (container,) = one["spec"]["template"]["spec"]["containers"]
            tool = _TOOLS[container["name"]]
            # Our images have their programs elsewhere.
            container |= {"image": images[tool], "imagePullPolicy": "Never", "command": [f"/bin/{tool}"]}
            container["resources"]["requests"] = {"cpu": "10m", "memory": "64Mi"}
    return [mark(one) for one in (*objects, *read_by_anybody(_NAMESPACE))]


def _deployments() -> list[Object | None]:
    names = ("keda-operator", "keda-metrics-apiserver", "keda-admission")
    return [get("deployment", name, namespace=_NAMESPACE) for name in names]


def _available(deployment: Object | None) -> bool:
    return bool(condition(deployment, "Available").get("status") == "True")
