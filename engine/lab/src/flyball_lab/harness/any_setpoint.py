"""Whatever the contract accepts, drawn at random with a liking for the ends of what is allowed.

The contract's own models say what may be drawn, so a field that comes to it is drawn, too. Neither hypothesis nor
anything but the contract is imported: the Python of the vLLM environment runs this.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import BaseModel, ValidationError

from flyball_engine.contract import Setpoint

M = TypeVar("M", bound=BaseModel)
#: Whoever draws a setpoint for a test says these.
FIXED = ("service", "epoch", "generation", "expires_seconds")
_NAMES: Mapping[type[Any], str] = {Ge: "ge", Le: "le", MinLen: "min_length", MaxLen: "max_length"}


def any_setpoint(choose: random.Random, *, generation: int) -> Setpoint:
    """A setpoint of this generation, that lasts as long as one may."""
    said = ("s", 1, generation, 7 * 86_400.0)
    return drawn(Setpoint, choose, **dict(zip(FIXED, said, strict=True)))


def drawn(model: type[M], choose: random.Random, **fixed: Any) -> M:
    """One of this model's; what its rules refuse is drawn again."""
    while True:
        fields = {
            name: _value(field.annotation, field.metadata, choose)
            for name, field in model.model_fields.items()
            if name not in fixed and (field.is_required() or choose.random() < 0.5)
        }
        try:
            return model.model_validate(fields | fixed)
        except ValidationError:
            continue


def _value(kind: Any, bounds: Sequence[Any], choose: random.Random) -> Any:
    if hasattr(kind, "__metadata__"):
        return _value(kind.__origin__, [*bounds, *_unpacked(kind.__metadata__)], choose)
    if get_origin(kind) in (Union, UnionType):
        # A field that is drawn at all is seldom drawn as absent.
        said = [one for one in get_args(kind) if one is not NoneType] * 7
        return _value(choose.choice([*said, *(one for one in get_args(kind) if one is NoneType)]), bounds, choose)
    if get_origin(kind) is Literal:
        return choose.choice(get_args(kind))
    if get_origin(kind) is tuple:
        least, most = _bound(bounds, MinLen, 0), _bound(bounds, MaxLen, 8)
        item = get_args(kind)[0]
        # Rising, as boundaries must be; other items are in no order.
        items = [_value(item, (), choose) for _ in range(choose.randint(least, min(most, 6)))]
        return sorted(items) if all(isinstance(one, int) for one in items) else items
    return _plain(kind, bounds, choose)


def _plain(kind: Any, bounds: Sequence[Any], choose: random.Random) -> Any:
    if issubclass(kind, BaseModel):
        return drawn(kind, choose)
    if issubclass(kind, Enum):
        return choose.choice(list(kind))
    if kind in (NoneType, bool):
        return None if kind is NoneType else choose.random() < 0.5
    if kind is str:
        return "x" * choose.randint(_bound(bounds, MinLen, 0), _bound(bounds, MaxLen, 8))
    if kind is int:
        return _whole(_bound(bounds, Ge, 0), _bound(bounds, Le, 2**31), choose)
    if kind is float:
        low = _bound(bounds, Ge, None)
        return _real(1e-300 if low is None else low, _bound(bounds, Le, 1e9), choose)
    raise TypeError(f"nothing is known of {kind}: teach any_setpoint to draw it")


def _whole(low: int, high: int, choose: random.Random) -> int:
    """The ends, or something of the size that engines have, seldom far beyond."""
    usual = low + int(2 ** choose.uniform(0, 11)) - 1
    return min(high, choose.choice([low, low + 1, usual, usual, usual, usual, high]))


def _real(low: float, high: float, choose: random.Random) -> float:
    usual = 10.0 ** choose.uniform(-5, 0)
    return float(min(high, max(low, choose.choice([low, usual, usual, usual, high]))))


def _unpacked(metadata: Sequence[Any]) -> list[Any]:
    """Bounds as pydantic keeps them: beside the type, or in a Field of its own."""
    found: list[Any] = []
    for one in metadata:
        found += one.metadata if hasattr(one, "metadata") else [one]
    return found


def _bound(bounds: Sequence[Any], kind: type[Any], otherwise: Any) -> Any:
    """What a bound of this kind says, `otherwise` if there is none."""
    said = [getattr(one, _NAMES[kind]) for one in bounds if isinstance(one, kind)]
    return said[0] if said else otherwise
