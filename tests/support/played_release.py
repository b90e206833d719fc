"""The chart, installed by helm, whose operator is a process here: what kubelets do for its pods is played.

The process has what the Deployment gives the container: its variables, its account, its mounted files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flyball_lab.harness.waiting import eventually
from support import helm
from support.cluster import Object, get, items
from support.helm import CHART
from support.kubelet import make_ready
from support.operators import OperatorProcess
from support.tenants import kubeconfig_of

#: Of the release, its Deployment and its account.
NAME: Final = "flyball"
#: Nodes that may have the operator's pods: none, so that tests play the kubelet, or those of Linux.
NODES: Final = "kubernetes.io/os"
ON_THE_NODE: Final = r"nodeSelector.kubernetes\.io/os=linux"
ON_NO_NODE: Final = r"nodeSelector.kubernetes\.io/os=none"
_MOUNTED: Final = "/etc/flyball-prometheus"
_PREFIX: Final = "FLYBALL_"


class PlayedRelease:
    """A release in a namespace, and the process that stands for its pods."""

    def __init__(self, own: str, folder: Path, values: Object) -> None:
        self.own = own
        self._folder = folder
        usual: Object = {"nodeSelector": {NODES: "none"}, "crds": {"install": False}, "rbac": {"aggregate": False}}
        self._values = usual | values
        self._process: OperatorProcess | None = None
        self._given: Mapping[str, str] = {}

    def install(self) -> None:
        """Install the chart, and play until its pods are Ready."""
        helm.run("install", NAME, str(CHART), "-n", self.own, values=self._values)
        self.play()

    def upgrade(self, *options: str) -> None:
        """Change some values, such as `image.tag=0.2.0`."""
        settings = [part for option in options for part in ("--set", option)]
        helm.run("upgrade", NAME, str(CHART), "-n", self.own, "--reset-then-reuse-values", *settings)

    def restore(self) -> None:
        """The values of the beginning again."""
        helm.run("upgrade", NAME, str(CHART), "-n", self.own, "--reset-values", values=self._values)
        self.play()

    def play(self) -> None:
        """Do what kubelets would until the Deployment has the Ready pods that it asks for, and no others."""
        eventually(self._played, expecting=f"the pods of release {self.own}/{NAME}", every=0.3)

    def end(self) -> None:
        """End the process and the release."""
        self._stop()
        helm.run("uninstall", NAME, "-n", self.own, "--ignore-not-found")

    def deployment(self) -> Object:
        """The operator's."""
        found = get("deployment", NAME, namespace=self.own)
        assert found is not None, f"no Deployment {self.own}/{NAME}"
        return found

    def _played(self) -> bool:
        deployment = self.deployment()
        status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
        if status.get("observedGeneration") != deployment["metadata"]["generation"]:
            return False
        if wanted:
            self._run(deployment)
        else:
            self._stop()
        for pod in items("pods", namespace=self.own, selector=f"app.kubernetes.io/instance={NAME}"):
            if "deletionTimestamp" not in pod["metadata"]:
                make_ready(self.own, pod["metadata"]["name"], "127.0.0.1")
        counts = {status.get(field, 0) for field in ("replicas", "updatedReplicas", "readyReplicas")}
        return counts == {wanted}

    def _run(self, deployment: Object) -> None:
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        if self._process is not None and given == self._given:
            return
        self._stop()
        self._given, mounted = given, self._mounted(spec)
        settings = {
            name.removeprefix(_PREFIX).lower(): value.replace(_MOUNTED, str(mounted))
            for name, value in given.items()
            if name.startswith(_PREFIX) and name != "FLYBALL_METRICS_PORT"
        }
        account = kubeconfig_of(spec["serviceAccountName"], self.own, self._folder)
        self._process = OperatorProcess(self.own, self._folder, kubeconfig=account, **settings)
        self._process.expect_ready()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        self._process = None

    def _mounted(self, spec: Object) -> Path:
        """The projected volume of what Prometheus is asked with."""
        folder = self._folder / "mounted"
        folder.mkdir(exist_ok=True)
        for volume in spec["volumes"]:
            for source in volume.get("projected", {}).get("sources", ()):
                secret = get("secret", source["secret"]["name"], namespace=self.own)
                assert secret is not None, f"a kubelet would wait for Secret {source['secret']['name']}"
                for item in source["secret"]["items"]:
                    (folder / item["path"]).write_bytes(base64.b64decode(secret["data"][item["key"]]))
        return folder


@contextmanager
def played_release(own: str, folder: Path, values: Object) -> Iterator[PlayedRelease]:
    """Install the chart with these values in place of those that tests need; gone at the end."""
    release = PlayedRelease(own, folder, values)
    try:
        release.install()
        yield release
    finally:
        release.end()
