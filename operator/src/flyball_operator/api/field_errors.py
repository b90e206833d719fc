"""What pydantic objects to, as sentences that name the field and what it accepts.

pydantic knows of a wrong field only what it has checked. The CRD's schema has the rest: the other bound, the form of a
string, and what the field means. Pure.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flyball_operator.api.crd import Schema, schema
from flyball_operator.api.rules import VALIDATIONS

#: A condition message has room for this many, and a user for no more.
MAX_ERRORS: Final = 8
#: Steps that pydantic adds for the branches of a quantity; they are no fields.
_UNION_BRANCHES: Final = ("int", "str")
#: The models that are read, and where they stand in the object.
_ROOTS: Final = {"InferenceServiceSpec": "spec", "ObjectMeta": "metadata"}
#: pydantic's objections to what is no whole number, or one out of bounds.
_OF_INTEGERS: Final = ("int_type", "int_parsing", "int_from_float", "greater_than_equal", "less_than_equal")
_BOUNDS: Final = {"minimum": "greater than or equal to", "maximum": "less than or equal to"}


def sentences(error: ValidationError) -> list[str]:
    """One sentence for each wrong field, and how many more there are."""
    details = error.errors(include_url=False)
    found = [_sentence(_ROOTS.get(error.title, ""), detail) for detail in details[:MAX_ERRORS]]
    more = len(details) - MAX_ERRORS
    return [*found, f"and {more} more"] if more > 0 else found


def _sentence(root: str, detail: ErrorDetails) -> str:
    steps = [step for step in detail["loc"] if step not in _UNION_BRANCHES]
    path = root
    for step in steps:
        path += f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{step}]"
    path += detail.get("ctx", {}).get("path", "")
    message = _message(detail, _field(steps) if root == "spec" else {})
    return f"{path.lstrip('.')}: {message}" if path else message


def _message(detail: ErrorDetails, field: Schema) -> str:
    kind, message = detail["type"], detail["msg"].removeprefix("Value error, ")
    if kind == "missing":
        return message + _meaning(field)
    if kind in _OF_INTEGERS and field.get("type") == "integer":
        bounds = " and ".join(f"{words} {field[end]}" for end, words in _BOUNDS.items() if end in field)
        return f"must be a whole number{', ' if bounds else ''}{bounds}{_meaning(field)}"
    if kind == "string_type" and isinstance(detail["input"], (bool, int, float)):
        rules = (rule["message"] for rule in field.get(VALIDATIONS, ()))
        form = next((rule for rule in rules if rule.startswith("must be ")), message)
        return form if "in quotes" in form else f"{form}. Write it in quotes"
    return message


def _meaning(field: Schema) -> str:
    """The first sentence of the field's description."""
    first = field.get("description", "").split(". ")[0].rstrip(".").replace("`", "")
    return f" ({first})" if first else ""


def _field(steps: list[int | str]) -> Schema:
    """The schema of a field of the spec; empty where the CRD has no such field."""
    found: Any = _spec()
    for step in steps:
        below = found.get("items") if isinstance(step, int) else found.get("properties", {}).get(step)
        found = below or found.get("additionalProperties") or {}
    return dict(found)


@cache
def _spec() -> Schema:
    spec: Schema = schema()["properties"]["spec"]
    return spec
