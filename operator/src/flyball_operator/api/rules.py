"""Rules of the API that the CRD states in CEL and pydantic checks too: one source for both.

The API server refuses with a rule's message; the operator, which treats what it reads as untrusted, refuses with the
same words. Formats are CEL `matches`, not `pattern`: a schema error would hide every CEL error and show a bare regular
expression. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

#: Key under which structural schemas carry CEL rules.
VALIDATIONS: Final = "x-kubernetes-validations"

#: Names as Kubernetes spells them: a DNS label, a DNS subdomain; and a segment of paths and of model names.
LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"{LABEL}(\.{LABEL})*"
SEGMENT: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
#: The part of a qualified name behind its domain.
QUALIFIED: Final = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


@cache
def attribute(field: str) -> str:
    """The attribute of a field named as in JSON. Every parse asks for some, and each takes four regular expressions."""
    return to_snake(field)


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


def matches(subject: str, pattern: str) -> str:
    """CEL that holds if the whole of `subject` matches `pattern` (RE2, without quotes)."""
    return f"{subject}.matches(r'^(?:{pattern})$')"


def with_rules(schema: JsonSchemaValue, *rules: Rule) -> JsonSchemaValue:
    """A copy of `schema` with `rules` after those it has."""
    added = [*schema.get(VALIDATIONS, []), *(rule.to_json() for rule in rules)]
    return schema | {VALIDATIONS: added} if added else schema


class Constraint:
    """Annotates a field: what `objection` returns is refused by the operator, what `rules` state by the API server."""

    def objection(self, value: Any) -> str | None:
        """What is wrong with a value that has the right type, None where nothing is."""
        raise NotImplementedError

    def rules(self) -> Sequence[Rule]:
        """The same in CEL, with the same words."""
        return ()

    def extend(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """What else the schema says of the field."""
        return schema

    def _checked(self, value: Any) -> Any:
        objection = self.objection(value)
        if objection is not None:
            raise ValueError(objection)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after pydantic's own checks of the type."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add rules and the rest to the schema."""
        return self.extend(with_rules(handler(schema), *self.rules()))


@dataclass(frozen=True)
class Matches(Constraint):
    """A string whose whole text must match `pattern`, else `hint` is what the user reads."""

    pattern: str
    hint: str

    def objection(self, value: str) -> str | None:
        """The hint."""
        return None if re.fullmatch(self.pattern, value) else self.hint

    def rules(self) -> Sequence[Rule]:
        """One rule."""
        return (Rule(matches("self", self.pattern), self.hint),)


@dataclass(frozen=True)
class Refuses(Constraint):
    """A string that must not match `pattern`; `hint` says what to use instead."""

    pattern: str
    hint: str

    def objection(self, value: str) -> str | None:
        """The hint."""
        return self.hint if re.fullmatch(self.pattern, value) else None

    def rules(self) -> Sequence[Rule]:
        """One rule."""
        return (Rule("!" + matches("self", self.pattern), self.hint),)


@dataclass(frozen=True)
class KeysMatch(Constraint):
    """A map whose every key must match `pattern`, else `hint` is what the user reads."""

    pattern: str
    hint: str

    def objection(self, value: Mapping[str, Any]) -> str | None:
        """The hint."""
        return None if all(re.fullmatch(self.pattern, key) for key in value) else self.hint

    def rules(self) -> Sequence[Rule]:
        """One rule over all keys."""
        return (Rule(f"self.all(key, {matches('key', self.pattern)})", self.hint),)


@dataclass(frozen=True)
class MapKeyed(Constraint):
    """A list that is a map keyed by `key`, as JSON has it: two items of one key are refused, appliers merge by key."""

    key: str

    def objection(self, value: Sequence[Any]) -> str | None:
        """The first repeated key."""
        keys = [str(getattr(item, attribute(self.key))) for item in value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        return None if twice is None else f"Duplicate value: {self.key} {twice!r} may appear once"

    def extend(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """The API server refuses repeated keys by the list's type; no rule is needed."""
        return schema | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}


ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Matches(SUBDOMAIN, "must be the name of a Kubernetes object: a-z, 0-9, '-' and '.'"),
]

# Image references, by the grammar of github.com/distribution/reference, which the kubelet and containerd parse with.
# Stricter in one point: a first part without a dot and without a port is no host (but `localhost`), so it must be in
# lower case. The kubelet would take `VLLM/engine` for the host `VLLM`.
_HOST_PART: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PORT: Final = r":[0-9]+"
_HOST: Final = (
    rf"(?:{_HOST_PART}(?:\.{_HOST_PART})+(?:{_PORT})?|{_HOST_PART}{_PORT}|localhost|\[[a-fA-F0-9:]+\](?:{_PORT})?)"
)
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME: Final = rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
_TAG: Final = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"@sha(?:256:[a-f0-9]{64}|384:[a-f0-9]{96}|512:[a-f0-9]{128})"

_IMAGE: Final = rf"{_NAME}(?:{_TAG})?(?:{_DIGEST})?"
#: A repository ends where a tag or a digest begins. What is too long for any of these readings is too long.
_SHORT: Final = rf"(?:{_HOST}/)?.{{0,255}}(?:{_TAG})?(?:@.*)?"

IS_IMAGE: Final = Matches(
    _IMAGE,
    "must be an image reference [host[:port]/]repository[:tag][@sha256:digest], such as vllm/vllm-openai:v0.32.0:"
    " without https://, the repository in lower case, a digest of 64 hex digits",
)
IS_SHORT: Final = Matches(_SHORT, "must have a repository of at most 255 characters between the host and the tag")
#: With a registry or a first folder, and with a tag or a digest.
_PINNED_IMAGE: Final = rf"(?:{_HOST}|{_PART})(?:/{_PART})+(?:{_TAG}(?:{_DIGEST})?|{_DIGEST})"


def pinned_image(subject: str) -> str:
    """CEL that holds if `subject` is an image reference with more than one part and with a tag or a digest."""
    return " && ".join(matches(subject, pattern) for pattern in (_PINNED_IMAGE, _SHORT))


def is_pinned_image(text: str) -> bool:
    """The same."""
    return all(re.fullmatch(pattern, text) for pattern in (_PINNED_IMAGE, _SHORT))
