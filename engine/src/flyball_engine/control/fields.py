"""What fields a setpoint has at some place in it, for the answer to one that it has not.

Pure: imports only pydantic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel


def fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Names of the fields at `path`, as pydantic's errors give it: names, places in a list, tags of a union."""
    models = [model]
    for part in path:
        if isinstance(part, str):
            # A union's tag is the name of the class.
            tagged = [one for one in models if one.__name__ == part]
            models = tagged or [found for one in models for found in _behind(one, part)]
    return [name for one in models for name in one.model_fields]


def _behind(model: type[BaseModel], name: str) -> list[type[BaseModel]]:
    field = model.model_fields.get(name)
    return [] if field is None else _models(field.annotation)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
