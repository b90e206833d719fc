"""The NetworkPolicy of a service's pods: who may connect to the OpenAI port and to the control port, and to no other.

It is made only where the operator is set to, and by the operator: in scope Cluster, nobody else knows the namespaces of
services. Nothing is said of egress, because engines download models. The kubelet's probes come from the pod's node,
which no NetworkPolicy holds off. Pure.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from flyball_engine.contract import API_PORT, CONTROL_PORT
from flyball_operator.api.objects import Kind, Object
from flyball_operator.api.rules import QUALIFIED, SUBDOMAIN
from flyball_operator.api.v1alpha1 import ObjectMeta
from flyball_operator.reconcile.plan.owned_objects import owned, selector


def _network(value: object) -> IPv4Network | IPv6Network:
    """A network; bits of a host are cut off, as the API server takes them."""
    return ip_network(str(value), strict=False)


def _within(one: IPv4Network | IPv6Network, other: IPv4Network | IPv6Network) -> bool:
    if isinstance(one, IPv4Network):
        return isinstance(other, IPv4Network) and one.subnet_of(other)
    return isinstance(other, IPv6Network) and one.subnet_of(other)


Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
_LABEL_KEY: Final = rf"({SUBDOMAIN}/)?{QUALIFIED}"
LabelKey = Annotated[str, Field(pattern=rf"^{_LABEL_KEY}$")]
LabelValue = Annotated[str, Field(pattern=rf"^({QUALIFIED})?$")]


class _Strict(BaseModel):
    """Unknown fields are refused: a selector with a misspelt field would select everybody."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class Requirement(_Strict):
    """One requirement on labels."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[LabelValue, ...] = ()

    @model_validator(mode="after")
    def _has_values_where_they_count(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError("must have values with In and NotIn, and none with Exists and DoesNotExist")
        return self


class Selector(_Strict):
    """Selects by labels; an empty one selects all."""

    match_labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class IPBlock(_Strict):
    """Addresses of no pod, such as those of nodes and load balancers."""

    cidr: Network
    excluded: Annotated[tuple[Network, ...], Field(alias="except")] = ()

    @model_validator(mode="after")
    def _excludes_what_it_has(self) -> Self:
        if not all(_within(one, self.cidr) for one in self.excluded):
            raise ValueError("must have in except only networks within cidr")
        return self


class Peer(_Strict):
    """Who may connect, as in a NetworkPolicy: pods (of the same namespace unless one is selected), or addresses."""

    namespace_selector: Selector | None = None
    pod_selector: Selector | None = None
    ip_block: IPBlock | None = None

    @model_validator(mode="after")
    def _names_somebody(self) -> Self:
        if (self.ip_block is None) == (self.namespace_selector is None and self.pod_selector is None):
            raise ValueError("must have namespaceSelector, podSelector or both, or ipBlock alone")
        return self

    def rendered(self) -> Object:
        """As the API server returns it, without empty lists."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


class IngressPeers(_Strict):
    """Who may connect to engine pods: to `api`, port 8000, and to `control`, port 8001. An empty list is nobody."""

    api: tuple[Peer, ...]
    control: tuple[Peer, ...]


def render(meta: ObjectMeta, peers: IngressPeers, *, within: bool = False) -> Object:
    """The NetworkPolicy. `within`: whether pods of the service connect to each other, by ports that vLLM chooses."""
    # A rule without peers would let everybody in, so that a port without peers has no rule.
    rules = [
        {"from": [peer.rendered() for peer in allowed], "ports": [{"protocol": "TCP", "port": port}]}
        for port, allowed in ((API_PORT, peers.api), (CONTROL_PORT, peers.control))
        if allowed
    ]
    if within:
        rules.append({"from": [{"podSelector": {"matchLabels": selector(meta)}}]})
    spec = {"podSelector": {"matchLabels": selector(meta)}, "policyTypes": ["Ingress"], "ingress": rules}
    return owned(Kind.NETWORK_POLICY, meta, spec=spec)
