"""A model's parameters in parts, as they are stored, split over devices, and read by a step. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from flyball_lab.sizing.shape import Heads, Layer, ModelShape


class Role(StrEnum):
    """What a part is for: it decides how it is packed, and which tokens multiply it."""

    LOOKUP = "lookup"
    """Embeddings: held, but a step reads only the rows of its tokens."""
    HEAD = "head"
    """The output head: multiplied once per sampled token."""
    MATRIX = "matrix"
    """Multiplied by every token."""
    ROUTER = "router"
    """As a matrix, but never packed."""
    EXPERTS = "experts"
    """Of which each token multiplies the chosen ones."""


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """`count` parameters. `shards`: most devices that can share them, None for any; beyond that they are replicated.

    `share`: what part of them one token multiplies.
    """

    role: Role
    count: int
    shards: int | None = None
    share: float = 1.0

    def per_device(self, tensor_parallel: int) -> float:
        """Parameters that one of `tensor_parallel` devices holds."""
        return self.count / min(tensor_parallel, self.shards or tensor_parallel)

    def touched(self, tokens: float) -> float:
        """Fraction that a step of `tokens` reads: experts are chosen evenly, so few tokens miss most of them."""
        return 1.0 - float((1.0 - self.share) ** tokens)


def parts(model: ModelShape) -> tuple[ParameterGroup, ...]:
    """All parameters but norms, biases and the like."""
    embedding = model.vocabulary * model.hidden
    held = [ParameterGroup(role=Role.HEAD, count=embedding)]
    if not model.tied:
        held.append(ParameterGroup(role=Role.LOOKUP, count=embedding))
    if model.positions:
        held.append(ParameterGroup(role=Role.LOOKUP, count=model.positions * model.hidden, shards=1))
    for layer in model.layers:
        held += (*_attention(model), *_feed_forward(model, layer))
    return tuple(held)


def parameters(model: ModelShape) -> int:
    """Of the whole model, replicas not counted."""
    return sum(part.count for part in parts(model))


def active_parameters(model: ModelShape) -> int:
    """Of those, what one token multiplies, the output head included."""
    return round(sum(part.count * part.share for part in parts(model) if part.role is not Role.LOOKUP))


def bits(model: ModelShape, role: Role) -> float:
    """Of one stored parameter of that role."""
    packed = role is Role.EXPERTS or (role is Role.MATRIX and not model.packing.experts_only)
    return min(model.packing.bits, 8.0 * model.number_bytes) if packed else 8.0 * model.number_bytes


def weight_bytes(model: ModelShape, tensor_parallel: int) -> int:
    """Held by each of `tensor_parallel` devices."""
    held = parts(model)
    return round(sum(part.per_device(tensor_parallel) * bits(model, part.role) for part in held) / 8)


def bytes_read(model: ModelShape, tensor_parallel: int, tokens: float) -> float:
    """Weights that each device reads in a step of `tokens`, at least one."""
    return sum(
        part.per_device(tensor_parallel) * bits(model, part.role) / 8 * part.touched(max(1.0, tokens))
        for part in parts(model)
        if part.role is not Role.LOOKUP
    )


def _attention(model: ModelShape) -> Iterator[ParameterGroup]:
    """Projections to queries, keys, values and back."""
    kind, hidden = model.attention, model.hidden
    if isinstance(kind, Heads):
        yield ParameterGroup(role=Role.MATRIX, count=2 * hidden * kind.query * kind.dim)
        yield ParameterGroup(role=Role.MATRIX, count=2 * hidden * kind.kv * kind.dim, shards=kind.kv)
        return
    keys = kind.nope + kind.rope
    yield ParameterGroup(role=Role.MATRIX, count=hidden * (kind.rank + kind.rope), shards=1)
    yield ParameterGroup(role=Role.MATRIX, count=kind.query * kind.rank * (kind.nope + kind.value))
    yield ParameterGroup(role=Role.MATRIX, count=kind.query * kind.value * hidden)
    if kind.query_rank is None:
        yield ParameterGroup(role=Role.MATRIX, count=hidden * kind.query * keys)
        return
    yield ParameterGroup(role=Role.MATRIX, count=hidden * kind.query_rank, shards=1)
    yield ParameterGroup(role=Role.MATRIX, count=kind.query_rank * kind.query * keys)


def _feed_forward(model: ModelShape, layer: Layer) -> Iterator[ParameterGroup]:
    matrices = 3 if model.gated else 2
    experts = layer.experts
    if experts is None:
        yield ParameterGroup(role=Role.MATRIX, count=matrices * model.hidden * model.width)
        return
    yield ParameterGroup(role=Role.ROUTER, count=model.hidden * experts.count, shards=1)
    each = matrices * model.hidden * experts.width
    yield ParameterGroup(role=Role.EXPERTS, count=experts.count * each, share=experts.chosen / experts.count)
    if experts.shared:
        yield ParameterGroup(role=Role.MATRIX, count=matrices * model.hidden * experts.shared)
