"""Where models come from, as pods of the cluster: a mirror of a hub, and an S3 server. Both have the image's model."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from flyball_lab.harness.waiting import eventually
from support import hub
from support.binaries import binary
from support.buckets import KEY, PART_BYTES, REGION, SECRET, UPLOAD
from support.cluster import Object, apply, delete, get, kubectl
from support.side_pods import apply_and_wait, restricted_pod, service_of

#: Of the model in the image of the CPU engine.
MODEL_FOLDER: Final = "/models/tiny"
WEIGHTS: Final = "model.safetensors"
_PORT: Final = 8080


@dataclass(frozen=True)
class Mirror:
    """A mirror of a hub in a pod, which may be away. Pods find it at `address`."""

    namespace: str
    image: str
    address: str = f"http://mirror:{_PORT}"
    name: str = "mirror"

    def start(self) -> None:
        """It serves; without faults, whatever it had."""
        script = {"hub.py": Path(hub.__file__).read_text()}
        files: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": script}
        apply(files, namespace=self.namespace)
        apply(service_of(self.name, _PORT), namespace=self.namespace)
        command = ["python3", "/hub/hub.py", MODEL_FOLDER, str(_PORT)]
        volumes = [{"name": "hub", "configMap": {"name": self.name}}]
        mounts = [{"name": "hub", "mountPath": "/hub"}]
        apply_and_wait(
            restricted_pod(self.name, self.image, command, volumes=volumes, mounts=mounts, port=_PORT), self.namespace
        )

    def stop(self) -> None:
        """It is away."""
        delete("pod", self.name, namespace=self.namespace)

    def set(self, **faults: Any) -> list[tuple[str, str]]:
        """Set faults of the hub; returns what it was asked for so far, with the range."""
        pod = get("pod", self.name, namespace=self.namespace)
        assert pod is not None
        address = f"http://{pod['status']['podIP']}:{_PORT}/"
        answer = httpx.put(address, json=faults, timeout=30, trust_env=False)
        return [(path, extent) for path, extent in answer.json()]

    def ranges(self) -> list[str]:
        """Ranges of the weights that it was asked for, empty for all of them."""
        return [extent for path, extent in self.set() if path.endswith(f"/{WEIGHTS}")]


@contextmanager
def mirror(namespace: str, image: str) -> Iterator[Mirror]:
    """A mirror that serves; gone at the end."""
    made = Mirror(namespace, image)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@dataclass(frozen=True)
class S3Pod:
    """versitygw in a pod, which has a bucket with the model. Pods find it at `address`."""

    namespace: str
    image: str
    address: str = f"http://s3:{_PORT}"
    name: str = "s3"

    def start(self, bucket: str, folder: str) -> None:
        """It serves, and has the model in this folder."""
        apply(service_of(self.name, _PORT), namespace=self.namespace)
        serve = (
            "mkdir -p /s3/buckets; until [ -e /s3/ready ]; do sleep 0.2; done; exec /s3/versitygw"
            f" --port :{_PORT} --access {KEY} --secret {SECRET} --region {REGION} posix /s3/buckets"
        )
        pod = restricted_pod(
            self.name,
            self.image,
            ["sh", "-c", serve],
            volumes=[{"name": "s3", "emptyDir": {}}],
            mounts=[{"name": "s3", "mountPath": "/s3"}],
        )
        apply_and_wait(pod, self.namespace)
        with Path(binary("versitygw")).open("rb") as program:
            self._run("cat > /s3/versitygw; chmod +x /s3/versitygw; touch /s3/ready", stdin=program)
        eventually(self._answers, expecting="the S3 server answers")
        paths = {name: f"{MODEL_FOLDER}/{name}" for name in self._run(f"ls {MODEL_FOLDER}").split()}
        variables = {
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{_PORT}",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        upload = shlex.join(["python3", "-c", UPLOAD, json.dumps([bucket, folder, PART_BYTES])])
        given = shlex.join(f"{name}={value}" for name, value in variables.items())
        self._run(f"echo {shlex.quote(json.dumps(paths))} | env {given} {upload}")

    def stop(self) -> None:
        """It is away, and its buckets are gone."""
        kubectl("delete", "pod", self.name, "-n", self.namespace, "--ignore-not-found", "--wait=false")

    def _answers(self) -> bool:
        pod = get("pod", self.name, namespace=self.namespace)
        assert pod is not None
        httpx.get(f"http://{pod['status']['podIP']}:{_PORT}/", timeout=5, trust_env=False)
        return True

    def _run(self, script: str, *, stdin: Any = subprocess.DEVNULL) -> str:
        command = ["kubectl", "exec", "-i", self.name, "-n", self.namespace, "--", "sh", "-c", script]
        done = subprocess.run(command, stdin=stdin, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()
