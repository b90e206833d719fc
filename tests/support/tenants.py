"""Operators with the rights that the chart grants and no others, and the namespaces of tenants that they watch.

At the end, the API server has refused such an account nothing for want of rights, but for what a test that takes
rights away has named (`Release.may_be_refused`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flyball_lab.harness.waiting import eventually
from support.audit import Audit
from support.cluster import get, kubectl, make_namespace, namespace
from support.helm import Object, render
from support.operators import OperatorProcess
from support.remnants import mark

#: What an operator calls its Lease of itself, which is granted by name; the chart's account is then called so, too.
NAME = "flyball-operator"
#: Rules of ClusterRoles that are not about services.
_FEW = 3
_RBAC = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


@dataclass
class Release:
    """The operator's own namespace, the tenants' namespaces, and what the chart renders for them."""

    own: str
    names: tuple[str, ...]
    rendered: list[Object]
    _refusals: set[tuple[str, str]] = field(default_factory=set)

    def may_be_refused(self, where: str, *requests: str) -> None:
        """Rights in this namespace are taken away, or were not granted: these, such as `list pods`, may be refused."""
        self._refusals |= {(where, request) for request in requests}

    def expect_granted(self, audit: Audit) -> None:
        """Nothing else was refused to the chart's account for want of rights."""
        found = audit.not_granted(f"system:serviceaccount:{self.own}:{NAME}")
        lacking = [f"{one.request}: {one.uri}" for one in found if (one.namespace, one.request) not in self._refusals]
        assert not lacking, f"the chart's account lacks rights: {lacking[:5]}"

    def process(self, folder: Path, *, kubeconfig: str = "", **settings: Any) -> OperatorProcess:
        """An operator with the rights of the chart's account. `kubeconfig`: another way to the API server."""
        if "watch_namespace_selector" not in settings:
            settings["namespaces"] = ",".join(self.names)
        account = kubeconfig_of(NAME, self.own, folder, base=kubeconfig)
        return OperatorProcess(self.own, folder, kubeconfig=account, **settings)

    @contextmanager
    def operator(self, folder: Path, **settings: Any) -> Iterator[OperatorProcess]:
        """Such an operator that is ready; at the end it must have logged no error."""
        process = self.process(folder, **settings)
        try:
            process.expect_ready()
            yield process
        finally:
            process.stop()
        assert not process.trouble()

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
        kubectl(
            "create", "rolebinding", "flyball", "-n", where, f"--clusterrole={role['metadata']['name']}",
            f"--serviceaccount={self.own}:{NAME}",
        )  # fmt: skip

    def _in(self, where: str) -> list[Object]:
        return [one for one in self.rendered if one["metadata"].get("namespace") == where]


def kubeconfig_of(account: str, namespace: str, folder: Path, *, base: str = "") -> str:
    """A kubeconfig like another, with a token of a service account that outlasts every run."""
    like = Path(base or os.environ["KUBECONFIG"])
    config = yaml.safe_load(like.read_text())
    token = kubectl("create", "token", account, "-n", namespace, "--duration=6h").strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / f"kubeconfig-{namespace}-{account}-{like.name}"
    path.write_text(json.dumps(config))
    return str(path)


def _made(name: str) -> bool:
    """Make a namespace; False while the last one of that name is still there."""
    if get("namespace", name, namespace=name) is not None:
        return False
    make_namespace(name)
    return True


@contextmanager
def granted(
    own: str, names: Sequence[str], *, labels: Mapping[str, str] | None = None, values: Object | None = None
) -> Iterator[Release]:
    """The chart's account and rights for a release in a namespace that watches these; at the end they have sufficed.

    `labels`: namespaces are selected by these, and rights are granted in none. `values`: of the chart, in place of the
    usual ones, by which the operator does not make its key.
    """
    watch: Object = {"namespaces": list(names)}
    if labels is not None:
        watch = {"scope": "Selector", "namespaceSelector": {"matchLabels": dict(labels)}}
    usual: Object = {
        "watch": watch,
        "rbac": {"aggregate": False},
        "fullnameOverride": NAME,
        "signingKey": {"existingSecret": "mounted"},
    }
    rendered = [mark(one) for one in render(usual | (values or {}), namespace=own) if one["kind"] in _RBAC]
    made, audit = Release(own, tuple(names), rendered), Audit()
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered}))
    try:
        yield made
    finally:
        for one in rendered:
            if one["kind"].startswith("Cluster"):
                kubectl("delete", one["kind"], one["metadata"]["name"], "--ignore-not-found", "--wait=false")
    made.expect_granted(audit)


@contextmanager
def tenants(number: int, *, beside: Sequence[str] = (), **grants: Any) -> Iterator[Release]:
    """So many namespaces of tenants beside the operator's own and those that are there; `grants` as in `granted`."""
    with ExitStack() as stack:
        own = stack.enter_context(namespace("flyball-own"))
        new = [stack.enter_context(namespace(f"flyball-tenant-{letter}")) for letter in "abcdef"[:number]]
        yield stack.enter_context(granted(own, (*beside, *new), **grants))


@contextmanager
def operator(
    place: str, folder: Path, *, beside: Sequence[str] = (), values: Object | None = None, **settings: Any
) -> Iterator[OperatorProcess]:
    """A ready operator in the namespace that it looks after, with the chart's rights there and `beside` it."""
    with granted(place, (place, *beside), values=values) as made, made.operator(folder, **settings) as process:
        yield process


@contextmanager
def tenant_namespace(folder: Path, *, values: Object | None = None, **settings: Any) -> Iterator[str]:
    """The namespace of a tenant that an operator elsewhere looks after."""
    with tenants(1, values=values) as made, made.operator(folder, **settings):
        (name,) = made.names
        yield name
