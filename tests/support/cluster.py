"""The local cluster as tests see it: kubectl, looks at objects, namespaces of their own.

`hack/test` exports KUBECONFIG and PATH (`hack/cluster env`); nothing here falls back to another cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flyball_lab.harness.waiting import eventually
from support import api_requests, remnants

Object = dict[str, Any]


class KubectlError(AssertionError, subprocess.SubprocessError):
    """kubectl, or a look, ended with an error; the message is what it said. To wait (`waiting`) it is no answer yet."""


def _expect_cluster() -> None:
    assert "KUBECONFIG" in os.environ, 'no cluster: run hack/cluster up and eval "$(hack/cluster env)", or hack/test'


def kubectl(*args: str, stdin: str | None = None, timeout: float = 60) -> str:
    """Run kubectl and return what it printed.

    Raises `KubectlError` with its error output.
    """
    _expect_cluster()
    done = subprocess.run(["kubectl", *args], input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise KubectlError(done.stderr.strip())
    return done.stdout


def expect_established(crd: Path) -> None:
    """A custom resource definition from a file is served. kubectl refuses to wait for one without any condition yet."""
    eventually(
        lambda: kubectl("wait", "--for=condition=Established", "--timeout=20s", "-f", str(crd)),
        expecting=f"{crd.name} is served",
    )


def apply(manifest: Object, *, namespace: str, server_side: bool = False) -> None:
    """`kubectl apply` one manifest."""
    extra = ["--server-side", "--field-manager=test"] if server_side else []
    kubectl("apply", "-n", namespace, *extra, "-f", "-", stdin=json.dumps(manifest))


def server_side_apply(kind: str, manifest: Object, *, namespace: str) -> None:
    """Server-side apply of what no user would apply, without a kubectl."""
    _expect_cluster()
    try:
        api_requests.apply(kind, namespace, manifest)
    except api_requests.RequestError as error:
        raise KubectlError(str(error)) from error


def dry_created(body: Object, *, namespace: str) -> Object:
    """The object as the API server would make it; `refused` alone, with its words, where it would not."""
    try:
        text = kubectl("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body))
    except KubectlError as error:
        return {"refused": str(error)}
    found: Object = json.loads(text)
    return found


def get(kind: str, name: str, *, namespace: str, managed: bool = False) -> Object | None:
    """One object, or None if there is none of that name. `managed`: with its managed fields."""
    found = _read(kind, namespace, name)
    return found if found is None or managed else _without_managed_fields(found)


def items(kind: str, *, namespace: str, selector: str = "") -> list[Object]:
    """All objects of a kind in a namespace, without managed fields."""
    listed = _read(kind, namespace, selector=selector) or {}
    # A list says once what each object says of itself elsewhere.
    known = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
    return [known | _without_managed_fields(item) for item in listed["items"]]


def _read(kind: str, namespace: str, name: str | None = None, *, selector: str = "") -> Object | None:
    _expect_cluster()
    try:
        return api_requests.read(kind, namespace, name, selector=selector)
    except api_requests.RequestError as error:
        raise KubectlError(str(error)) from error


def _without_managed_fields(found: Object) -> Object:
    found["metadata"].pop("managedFields", None)
    return found


def patch(kind: str, name: str, change: Object, *, namespace: str, subresource: str = "") -> None:
    """JSON merge patch."""
    _expect_cluster()
    try:
        api_requests.merge(kind, namespace, name, change, subresource=subresource)
    except api_requests.RequestError as error:
        raise KubectlError(str(error)) from error


def delete(kind: str, name: str, *, namespace: str, cascade: str = "background", wait: bool = True) -> None:
    """Delete one object; nothing happens if it is gone already."""
    kubectl(
        "delete", kind, name, "-n", namespace, f"--cascade={cascade}", f"--wait={str(wait).lower()}",
        "--ignore-not-found", timeout=300,
    )  # fmt: skip


def throughout(probe: Callable[[], bool], *, expecting: str, seconds: float, every: float = 0.5) -> None:
    """Assert that something holds at every look during `seconds`."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        assert probe(), f"expected throughout: {expecting}"
        time.sleep(every)


def condition(resource: Object | None, type_: str) -> Object:
    """A condition of an object; `{}` where there is none."""
    conditions: list[Object] = ((resource or {}).get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == type_), {})


def make_namespace(name: str, labels: Mapping[str, str] | None = None) -> None:
    """A namespace of this run."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}}
    kubectl("apply", "-f", "-", stdin=json.dumps(remnants.mark(manifest)))


@contextmanager
def namespace(prefix: str, *, restricted: bool = True) -> Iterator[str]:
    """A namespace of the test's own, at the restricted pod security level, deleted at the end without waiting."""
    name = f"{prefix}-{uuid.uuid4().hex[:6]}"
    level = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
    make_namespace(name, level)
    try:
        yield name
    finally:
        kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
