"""Namespaces of several tenants that one operator watches, with the rights that the chart grants and no others."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from flyball_lab.harness.waiting import eventually
from support.cluster import get, kubectl, namespace
from support.helm import Object, render
from support.operators import operator

#: Rules of ClusterRoles that are not about services.
_FEW = 3
_RBAC = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@dataclass
class Tenants:
    """The operator's own namespace, the tenants' namespaces, and what the chart renders for them."""

    own: str
    names: tuple[str, ...]
    rendered: list[Object]

    def kubeconfig(self, base: str, folder: Path) -> str:
        """A kubeconfig like another, with the token of the chart's account."""
        account = next(one["metadata"]["name"] for one in self.rendered if one["kind"] == "ServiceAccount")
        config = yaml.safe_load(Path(base).read_text())
        config["users"][0]["user"] = {"token": kubectl("create", "token", account, "-n", self.own).strip()}
        path = folder / f"kubeconfig-{self.own}-{Path(base).name}"
        path.write_text(json.dumps(config))
        return str(path)

    def grant(self, where: str) -> None:
        """Grant what the chart does in a namespace; nothing happens where it is granted already."""
        for one in self._in(where):
            kubectl("apply", "-f", "-", stdin=json.dumps(one))

    def revoke(self, where: str) -> None:
        """Take the RoleBinding away."""
        for one in self._in(where):
            if one["kind"] == "RoleBinding":
                kubectl("delete", "rolebinding", one["metadata"]["name"], "-n", where)

    def hide(self, where: str, resource: str) -> None:
        """Take every right on one kind of object away."""
        for one in self._in(where):
            if one["kind"] == "Role":
                rules = [rule for rule in one["rules"] if resource not in rule["resources"]]
                kubectl("apply", "-f", "-", stdin=json.dumps({**one, "rules": rules}))

    def make_again(self, where: str) -> None:
        """Make a namespace that was deleted, with its rights."""
        eventually(lambda: _made(where), expecting=f"namespace {where} can be made again", every=1)
        self.grant(where)

    def bind(self, where: str) -> None:
        """Make the RoleBinding that docs/operations.md shows for a selected namespace."""
        (role,) = (one for one in self.rendered if one["kind"] == "ClusterRole" and len(one["rules"]) > _FEW)
        account = next(one["metadata"]["name"] for one in self.rendered if one["kind"] == "ServiceAccount")
        kubectl(
            "create", "rolebinding", "flyball", "-n", where, f"--clusterrole={role['metadata']['name']}",
            f"--serviceaccount={self.own}:{account}",
        )  # fmt: skip

    def _in(self, where: str) -> list[Object]:
        return [one for one in self.rendered if one["metadata"].get("namespace") == where]


def _made(name: str) -> bool:
    """Make a namespace; False while the last one of that name is still there."""
    if get("namespace", name, namespace=name) is not None:
        return False
    kubectl("create", "namespace", name)
    return True


@contextmanager
def tenants(
    number: int, *, beside: Sequence[str] = (), labels: Mapping[str, str] | None = None, adapters: bool = False
) -> Iterator[Tenants]:
    """So many namespaces of tenants beside the operator's own, and those that are there already.

    `labels`: namespaces are selected by these, and rights are granted in none. `adapters`: the rights for
    spec.adapters, too.
    """
    release = f"flyball-{uuid.uuid4().hex[:6]}"
    with ExitStack() as stack:
        own = stack.enter_context(namespace("flyball-own"))
        new = tuple(stack.enter_context(namespace(f"flyball-tenant-{letter}")) for letter in "abcdef"[:number])
        names = (*beside, *new)
        watch: Object = {"namespaces": list(names)}
        if labels is not None:
            watch = {"scope": "Selector", "namespaceSelector": {"matchLabels": dict(labels)}}
        values: Object = {"watch": watch, "rbac": {"aggregate": False}, "adapters": {"enabled": adapters}}
        # The Lease is granted by name, and this is what an operator calls it of itself.
        values["fullnameOverride"] = "flyball-operator"
        rendered = [one for one in render(values, release=release, namespace=own) if one["kind"] in _RBAC]
        made = Tenants(own, names, rendered)
        listed = {"apiVersion": "v1", "kind": "List", "items": rendered}
        kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        try:
            yield made
        finally:
            for one in rendered:
                if one["kind"].startswith("Cluster"):
                    kubectl("delete", one["kind"], one["metadata"]["name"], "--ignore-not-found", "--wait=false")


@contextmanager
def tenant_namespace(folder: Path, *, adapters: bool = False, **settings: str) -> Iterator[str]:
    """The namespace of a tenant that an operator with the rights of the chart's account looks after."""
    with tenants(1, adapters=adapters) as made:
        (name,) = made.names
        account = made.kubeconfig(os.environ["KUBECONFIG"], folder)
        with operator(made.own, folder, kubeconfig=account, namespaces=name, **settings):
            yield name
