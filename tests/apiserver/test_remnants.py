"""What a run of tests leaves when it is killed is removed by the next one, and nothing of a run that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support import remnants
from support.cluster import kubectl

#: Makes a bit of everything, as fixtures do, says where, and goes on until its input ends.
_RUN = """
import json, sys
from support import helm
from support.devices import device_node
from support.finalized import finalized
from support.policies import LABELS_IT, mutating
from support.tenants import tenants

values = {"crds": {"install": False}, "image": {"repository": "no/such-image"}, "admissionPolicies": {"operator": True}}
with tenants(1) as made, device_node() as node, mutating(made.names[0], LABELS_IT), finalized(made.own):
    helm.run("install", "left", str(helm.CHART), "-n", made.own, values=values)
    print(json.dumps([made.own, *made.names, node]), flush=True)
    sys.stdin.read()
    helm.run("uninstall", "left", "-n", made.own)
"""


@contextmanager
def run() -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that has made things on the cluster; its namespaces and its node."""
    sources = ":".join(str(ROOT / part) for part in ("engine/src", "engine/lab/src", "operator/src", "tests"))
    command = [sys.executable, "-c", _RUN]
    environment = os.environ | {"PYTHONPATH": sources}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())


def of(names: list[str]) -> list[str]:
    """What there is outside of namespaces with one of these in its name, and is not on its way out."""
    kinds = ",".join(remnants.KINDS)
    found = json.loads(kubectl("get", kinds, "-o", "json"))["items"]
    return sorted(
        f"{one['kind']}/{one['metadata']['name']}"
        for one in found
        if any(name in one["metadata"]["name"] for name in names) and "deletionTimestamp" not in one["metadata"]
    )


def test_what_a_killed_run_left_is_removed_and_a_run_that_goes_on_keeps_everything() -> None:
    with ExitStack() as stack:
        (killed, left), (alive, kept) = (stack.enter_context(run()) for _ in range(2))
        before = of(kept)
        kinds = {one.partition("/")[0] for one in before}
        of_roles = {"ClusterRole", "ClusterRoleBinding"}
        assert of_roles | {"Namespace", "Node", "MutatingAdmissionPolicy", "CustomResourceDefinition"} <= kinds
        assert any("-left" in one for one in before), "those of the release of the chart, too"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(of(left)) == len(before), "it removes nothing itself"
        remnants.sweep()
        eventually(lambda: not of(left), expecting="nothing of the killed run")
        assert of(kept) == before
        alive.communicate(timeout=300)
        assert alive.returncode == 0
    eventually(lambda: not of(kept), expecting="nothing of the other, which has ended well")
