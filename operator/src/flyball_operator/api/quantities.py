"""Durations, decimals and resource quantities as the InferenceService spells them: strings that no YAML reader retypes.

A duration is a number and a unit: `500ms`, `1.5s`, `250us`, `30m`, `2h`. A decimal is digits with an optional fraction.
Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from flyball_operator.api.rules import Rule, matches, with_rules

#: Six digits at most: the API server's CEL counts durations in 64-bit nanoseconds, 999999h still fit.
DURATION_PATTERN: Final = r"[0-9]{1,6}(\.[0-9]{1,6})?(us|ms|s|m|h)"
DECIMAL_PATTERN: Final = r"[0-9]{1,3}(\.[0-9]{1,6})?"
DURATION_HINT: Final = "a duration such as 500ms, 1.5s, 250us, 30m or 2h"
#: Kubernetes' quantity: a decimal with a decimal or binary suffix, or an exponent. No sign: resources are not negative.
QUANTITY_PATTERN: Final = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,2})?"

_DURATION: Final = re.compile(r"([0-9.]+)(us|ms|s|m|h)")
_UNIT_SECONDS: Final = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}


def parse_duration(text: str) -> Decimal:
    """Seconds in a duration string.

    Raises `ValueError` naming the accepted form.
    """
    match = _DURATION.fullmatch(text) if re.fullmatch(DURATION_PATTERN, text) else None
    if match is None:
        raise ValueError(f"{text!r} is not {DURATION_HINT}")
    return Decimal(match[1]) * _UNIT_SECONDS[match[2]]


def format_duration(seconds: float | Decimal) -> str:
    """A duration string of at most four significant digits, in the largest unit that reads well: `0.5` is `500ms`.

    Minutes and hours are used only where they come out whole (`120` is `2m`, `90` is `90s`).
    """
    value = Context(prec=4).create_decimal(seconds)
    for unit in ("h", "m", "s", "ms"):
        size = _UNIT_SECONDS[unit]
        whole_only = unit in ("h", "m")
        if value >= size * (2 if whole_only else 1) and (not whole_only or value % size == 0):
            return _digits(value / size) + unit
    return _digits(value / _UNIT_SECONDS["us"]) + "us"


def _digits(value: Decimal) -> str:
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class DurationBetween:
    """Annotates a duration string of at least `least` and at most `most`, both durations."""

    least: str
    most: str

    def _check(self, text: str) -> str:
        seconds = parse_duration(text)
        if not parse_duration(self.least) <= seconds <= parse_duration(self.most):
            raise ValueError(self._range_hint)
        return text

    @property
    def _range_hint(self) -> str:
        return f"must be at least {self.least} and at most {self.most}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check form, then range."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add both rules; the range rule stands aside where the form is wrong, so that one message shows."""
        form = matches("self", DURATION_PATTERN)
        limits = f"duration(self) >= duration('{self.least}') && duration(self) <= duration('{self.most}')"
        return with_rules(
            handler(schema),
            Rule(form, f"must be {DURATION_HINT}"),
            Rule(f"!{form} || ({limits})", self._range_hint),
        )


@dataclass(frozen=True)
class PercentageBelow100:
    """Annotates a decimal string above 0 and below 100."""

    FORM = 'must be a decimal number in quotes, such as "99" or "99.9"'
    RANGE = "must be above 0 and below 100: at 100 a single late request would forbid every batch; 99.99 is possible"

    def _check(self, text: str) -> str:
        if re.fullmatch(DECIMAL_PATTERN, text) is None:
            raise ValueError(self.FORM)
        if not 0 < Decimal(text) < 100:
            raise ValueError(self.RANGE)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check form, then range."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add both rules; the range rule stands aside where the form is wrong, so that one message shows."""
        form = matches("self", DECIMAL_PATTERN)
        limits = "double(self) > 0.0 && double(self) < 100.0"
        return with_rules(handler(schema), Rule(form, self.FORM), Rule(f"!{form} || ({limits})", self.RANGE))


def is_quantity(value: int | str) -> bool:
    """Whether Kubernetes would read `value` as an amount of a resource."""
    return value >= 0 if isinstance(value, int) else re.fullmatch(QUANTITY_PATTERN, value) is not None
