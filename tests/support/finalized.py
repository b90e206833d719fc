"""A kind with an object that a finalizer keeps, as controllers of others make them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, kubectl
from support.remnants import mark


@contextmanager
def finalized(namespace: str) -> Iterator[None]:
    """There is one in this namespace for as long as the block lasts; its group has the namespace's name in it."""
    group = f"{namespace}.test"
    kind = f"things.{group}"
    thing: Object = {
        "apiVersion": f"{group}/v1",
        "kind": "Thing",
        "metadata": {"name": "kept", "namespace": namespace, "finalizers": ["flyball.test/kept"]},
    }
    kubectl("create", "-f", "-", stdin=json.dumps(mark(_definition(group))))
    try:
        eventually(lambda: kubectl("create", "-f", "-", stdin=json.dumps(thing)), expecting="things are served")
        yield
    finally:
        finalizers = json.dumps({"metadata": {"finalizers": None}})
        kubectl("patch", kind, "kept", "-n", namespace, "--type=merge", "-p", finalizers)
        kubectl("delete", "crd", kind)


def _definition(group: str) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
