"""What spec and status share: the base of all API models, checks over several fields, and tuning's enums. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from flyball_operator.api.rules import Rule, attribute, with_rules


@dataclass(frozen=True)
class Check:
    """A rule over several fields of one model: `rule` for the API server, `holds` for the operator, one message."""

    rule: Rule
    holds: Callable[[Any], bool]


def exactly_one(*fields: str, noun: str, unless: str = "") -> Check:
    """Of these fields, named as in JSON, one must be there. Stands aside where `unless` is there and refused itself."""
    counted = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    aside = f"has(self.{unless}) || " if unless else ""
    names = [attribute(field) for field in fields]

    def holds(found: Any) -> bool:
        if unless and getattr(found, attribute(unless)) is not None:
            return True
        return sum(getattr(found, name) is not None for name in names) == 1

    return Check(Rule(f"{aside}{counted} == 1", f"must have exactly one {noun}; accepted: {', '.join(fields)}"), holds)


def without_default(schema: dict[str, Any]) -> None:
    """Let the API server add no default: the field is there only where the user gave it."""
    schema.pop("default", None)


class Model(BaseModel):
    """Base of all API models: camelCase in JSON, unknown fields ignored (a newer CRD may have more).

    The string under a field is its description in the CRD, which `kubectl explain` shows. What breaks a check is
    refused by the API server and by the operator alike.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    checks: ClassVar[tuple[Check, ...]] = ()

    @model_validator(mode="after")
    def _checks_hold(self) -> Self:
        for check in self.checks:
            if not check.holds(self):
                context = {"path": check.rule.path, "why": check.rule.message}
                raise PydanticCustomError("rule", "{why}", context)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema with this model's rules."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        return with_rules(schema, *(check.rule for check in cls.checks))


class _NotKept(set[str]):
    """Stands for the names of the fields that a model was given, in copies of the model too."""

    def __copy__(self) -> Self:
        return self

    def update(self, *_: Iterable[str]) -> None:
        """Keep no more of a copy's than of the model's."""


_NOT_KEPT: Final = _NotKept()


def forget_given(model: BaseModel) -> None:
    """Drop the names of the fields that a model was given, where nobody asks for them.

    They are a set for each model: of status and read-backs of a thousand services a fifth of the operator's memory.
    """
    object.__setattr__(model, "__pydantic_fields_set__", _NOT_KEPT)


class ReportedModel(Model):
    """Base of what status is made of. Which of its fields were given is not kept."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.checks:
            raise TypeError(f"{cls.__name__} is of a status, which has no rules")

    @model_validator(mode="after")
    def _checks_hold(self) -> Self:
        """In place of the rules, of which status has none: each validator is a call for each of thousands of models."""
        forget_given(self)
        return self


class Mode(StrEnum):
    """Disabled: run at the upper bounds. Recommend: decide, do not push. Auto: decide and push."""

    DISABLED = "Disabled"
    RECOMMEND = "Recommend"
    AUTO = "Auto"


class Overload(StrEnum):
    """What becomes of requests that come too late to be answered in time. Queue: they wait. Shed: they are refused."""

    SHED = "Shed"
    QUEUE = "Queue"


class Order(StrEnum):
    """Who is served first. OnTime: those whose first token can still be in time. Arrival: who came first."""

    ON_TIME = "OnTime"
    ARRIVAL = "Arrival"
