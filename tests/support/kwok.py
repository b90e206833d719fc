"""Nodes of a test's own that kwok plays: pods on them are Ready at once, or never, by an annotation."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from support import remnants
from support.binaries import binary
from support.cluster import kubectl
from support.devices import DEVICE
from support.node import daemon_on_node

#: On a pod: none of its images can be had.
NO_IMAGE: Final = {"flyball.test/no-image": "true"}
_NODE: Final = "flyball.test/kwok"


@contextmanager
def kwok_nodes(folder: Path, number: int) -> Iterator[dict[str, Any]]:
    """So many nodes, of two devices each. Gives what makes the pods of a service run on these alone, one on each."""
    mark = f"kwok-{uuid.uuid4().hex[:6]}"
    # By a path of its own: by that it is ended, and the cluster's may run, too.
    program = folder / mark
    shutil.copy(binary("kwok"), program)
    options = {
        "kubeconfig": os.environ["KUBECONFIG"],
        "config": Path(__file__).with_name("kwok_stages.yaml"),
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": f"{_NODE}={mark}",
        "node-lease-duration-seconds": 40,
    }
    names = [f"{mark}-{one}" for one in range(number)]
    with daemon_on_node(str(program), options, folder / "kwok.log") as process:
        try:
            nodes = (remnants.mark(_node(name, mark)) for name in names)
            kubectl("create", "-f", "-", stdin="\n---\n".join(map(json.dumps, nodes)))
            kubectl("wait", "--for=condition=Ready", "node", *names, "--timeout=120s", timeout=150)
            assert process.poll() is None, (folder / "kwok.log").read_text(errors="replace")[-2000:]
            yield _on(mark)
        finally:
            kubectl("delete", "node", *names, "--ignore-not-found")


def _node(name: str, mark: str) -> dict[str, Any]:
    resources = {"cpu": "8", "memory": "64Gi", "pods": "20", DEVICE: "2"}
    labels = {_NODE: mark, "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {_NODE: mark}},
        "spec": {"taints": [{"key": _NODE, "value": mark, "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    }


def _on(mark: str) -> dict[str, Any]:
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {_NODE: mark}}}
    return {
        "spec__podTemplate__nodeSelector": {_NODE: mark},
        "spec__podTemplate__tolerations": [{"key": _NODE, "operator": "Exists"}],
        "spec__podTemplate__labels": {_NODE: mark},
        "spec__podTemplate__affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
        },
    }
