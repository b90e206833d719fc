"""Rules of the API that the CRD states in CEL and pydantic checks too: one source for both.

The API server refuses with a rule's message; the operator, which treats what it reads as untrusted, refuses with the
same words. Formats are CEL `matches`, not `pattern`: a schema error would hide every CEL error and show a bare regular
expression. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Final

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

#: Key under which structural schemas carry CEL rules.
VALIDATIONS: Final = "x-kubernetes-validations"

#: Names as Kubernetes spells them: a DNS label, a DNS subdomain; and a segment of paths and of model names.
LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"{LABEL}(\.{LABEL})*"
SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"


@dataclass(frozen=True)
class Rule:
    """A CEL rule and what the user is told.

    `expression` is the message as a CEL expression, for messages that show values; `message` is the fallback. `path` is
    the field to blame, relative to where the rule stands.
    """

    rule: str
    message: str
    path: str = ""
    expression: str = ""

    def to_json(self) -> dict[str, str]:
        """The rule as the CRD spells it."""
        parts = {
            "rule": self.rule,
            "message": self.message,
            "fieldPath": self.path,
            "messageExpression": self.expression,
        }
        return {key: value for key, value in parts.items() if value}


def cel(*rules: Rule) -> dict[str, Any]:
    """`json_schema_extra` that makes a model carry these rules."""
    return {VALIDATIONS: [rule.to_json() for rule in rules]}


def matches(subject: str, pattern: str) -> str:
    """CEL that holds if the whole of `subject` matches `pattern` (RE2, without quotes)."""
    return f"{subject}.matches(r'^(?:{pattern})$')"


@dataclass(frozen=True)
class Matches:
    """Annotates a string whose whole text must match `pattern`, else `hint` is what the user reads."""

    pattern: str
    hint: str

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def _check(self, text: str) -> str:
        if self._compiled.fullmatch(text) is None:
            raise ValueError(self.hint)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after pydantic's own checks of the string."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the schema."""
        return with_rules(handler(schema), Rule(matches("self", self.pattern), self.hint))


@dataclass(frozen=True)
class Refuses:
    """Annotates a string that must not match `pattern`; `hint` says what to use instead."""

    pattern: str
    hint: str

    def _check(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is not None:
            raise ValueError(self.hint)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after pydantic's own checks of the string."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the rule to the schema."""
        return with_rules(handler(schema), Rule("!" + matches("self", self.pattern), self.hint))


@dataclass(frozen=True)
class MapKeyed:
    """Annotates a list that is a map keyed by `key`: two items of one key are refused, and appliers merge by key."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Refuse repeated keys."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [getattr(item, self.key) for item in items]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"Duplicate value: {self.key} {str(key)!r} may appear once")
        return items

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Mark the list."""
        return handler(schema) | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}


def with_rules(schema: JsonSchemaValue, *rules: Rule) -> JsonSchemaValue:
    """A copy of `schema` with `rules` after those it has."""
    return schema | {VALIDATIONS: [*schema.get(VALIDATIONS, []), *(rule.to_json() for rule in rules)]}


ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Matches(SUBDOMAIN, "must be the name of a Kubernetes object: a-z, 0-9, '-' and '.'"),
]
