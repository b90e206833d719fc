"""Which attributes the instances of a class have, known before there is one.

vLLM makes its requests and outputs later than Flyball must know whether it can read them. A class says most of it
itself; what `__init__` and other methods assign to `self` is read from their source.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from flyball_engine.vllm.compat import Used, lacking


def first_lack(classes: Sequence[Used]) -> str | None:
    """What the first of vLLM's classes that lacks something needed lacks; what cannot be looked at lacks nothing."""
    for used in classes:
        names = look(used)
        if names is not None and (lack := lacking(used, names.__contains__)) is not None:
            return lack
    return None


def look(used: Used) -> frozenset[str] | None:
    """The names that a module of vLLM's or instances of a class have; None if it is elsewhere, or cannot be read."""
    try:
        found = getattr(importlib.import_module(used.module), used.name, None)
        if found is None:
            found = importlib.import_module(f"{used.module}.{used.name}")
        # A module may say of what type a name will be before it has it.
        return names_of(found) if isinstance(found, type) else frozenset((*dir(found), *found.__annotations__))
    except (ImportError, AttributeError, Unreadable):
        return None


class Unreadable(Exception):  # noqa: N818  an outcome, not a fault
    """A class whose attributes are set in code that cannot be read."""


def names_of(cls: type[Any]) -> frozenset[str]:
    """The names that instances of the class have, on every path through its methods. Raises Unreadable."""
    if any("__getattr__" in vars(base) for base in cls.__mro__):
        raise Unreadable(f"{cls.__qualname__} makes up attributes as they are asked for")
    names = set(dir(cls))
    if dataclasses.is_dataclass(cls):
        names.update(field.name for field in dataclasses.fields(cls))
    for base in cls.__mro__:
        # Without an `__init__` in Python, fields come from somewhere that `dir` knows, or that is no class of vLLM's.
        if isinstance(vars(base).get("__init__"), FunctionType):
            names |= _assigned(base)
    return frozenset(names)


def _assigned(cls: type[Any]) -> set[str]:
    """What the methods of this one class assign to `self`."""
    try:
        # Not kept: the tree of a long file takes megabytes, in every process.
        tree = ast.parse(Path(inspect.getsourcefile(cls) or "").read_text(encoding="utf-8"))
    except (OSError, TypeError, SyntaxError) as error:
        raise Unreadable(f"{cls.__qualname__}: {error}") from error
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__]
    if not found and not dataclasses.is_dataclass(cls):
        raise Unreadable(f"{cls.__qualname__} is not in its file")
    return {
        node.attr
        for definition in found
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
