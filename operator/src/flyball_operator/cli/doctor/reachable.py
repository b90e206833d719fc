"""Whether NetworkPolicies let a pod reach a port of another, as far as their text says. Pure.

Addresses (`ipBlock`) may be anybody's, so they count as letting in: the answer "no" is sure, the answer "yes" is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyball_operator.api.objects import Object

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Caller:
    """Who wants to connect: its namespace with that one's labels (None: not known), and its own labels."""

    namespace: str
    namespace_labels: Labels | None
    labels: Labels


def blocking(policies: Sequence[Object], pod: Object, port: int, port_name: str, caller: Caller) -> list[str]:
    """Names of the policies that isolate the pod where none of them lets the caller in; empty if it may connect."""
    labels = pod["metadata"].get("labels") or {}
    ours = [one for one in policies if _isolates(one) and selects(one["spec"].get("podSelector") or {}, labels)]
    home = pod["metadata"]["namespace"]
    if any(_lets_in(rule, port, port_name, caller, home) for one in ours for rule in one["spec"].get("ingress") or ()):
        return []
    return sorted(str(one["metadata"]["name"]) for one in ours)


def _isolates(policy: Object) -> bool:
    return "Ingress" in (policy["spec"].get("policyTypes") or ["Ingress"])


def _lets_in(rule: Mapping[str, Any], port: int, port_name: str, caller: Caller, home: str) -> bool:
    ports, peers = rule.get("ports") or (), rule.get("from") or ()
    through = not ports or any(_is_port(one, port, port_name) for one in ports)
    return through and (not peers or any(_is_peer(one, caller, home) for one in peers))


def _is_port(allowed: Mapping[str, Any], port: int, port_name: str) -> bool:
    if allowed.get("protocol", "TCP") != "TCP":
        return False
    first = allowed.get("port")
    if isinstance(first, int):
        return first <= port <= int(allowed.get("endPort") or first)
    return first is None or first == port_name


def _is_peer(peer: Mapping[str, Any], caller: Caller, home: str) -> bool:
    if "ipBlock" in peer:
        return True
    if (spaces := peer.get("namespaceSelector")) is None:
        same = caller.namespace == home
    else:
        same = caller.namespace_labels is None or selects(spaces, caller.namespace_labels)
    return same and selects(peer.get("podSelector") or {}, caller.labels)


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a LabelSelector selects these labels; an empty one selects all."""
    exact = all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return exact and all(_meets(one, labels) for one in selector.get("matchExpressions") or ())


def _meets(requirement: Mapping[str, Any], labels: Labels) -> bool:
    value, values = labels.get(requirement["key"]), requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None
