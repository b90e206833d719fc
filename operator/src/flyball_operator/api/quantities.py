"""Durations, decimals and resource quantities as the InferenceService spells them: strings that no YAML reader retypes.

A duration is a number and a unit: `500ms`, `1.5s`, `250us`, `30m`, `2h`. A decimal is digits with an optional fraction.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Final

from kubernetes.utils.quantity import parse_quantity
from pydantic.json_schema import JsonSchemaValue

from flyball_engine.figures import UNIT_SECONDS
from flyball_operator.api.rules import Constraint, Rule, matches, with_rules

#: Six digits at most: the API server's CEL counts durations in 64-bit nanoseconds, 999999h still fit.
DURATION_PATTERN: Final = r"[0-9]{1,6}(\.[0-9]{1,6})?(us|ms|s|m|h)"
DECIMAL_PATTERN: Final = r"[0-9]{1,3}(\.[0-9]{1,6})?"
DURATION_HINT: Final = "a duration such as 500ms, 1.5s, 250us, 30m or 2h: one number and one unit, 90s for 1m30s"
#: Kubernetes' quantity: a decimal with a decimal or binary suffix, or an exponent. No sign: resources are not negative.
QUANTITY_PATTERN: Final = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,2})?"

_DURATION: Final = re.compile(r"([0-9.]+)(us|ms|s|m|h)")


def parse_duration(text: str) -> Decimal:
    """Seconds in a duration string.

    Raises `ValueError` naming the accepted form.
    """
    match = _DURATION.fullmatch(text) if re.fullmatch(DURATION_PATTERN, text) else None
    if match is None:
        raise ValueError(f"{text!r} is not {DURATION_HINT}")
    return Decimal(match[1]) * UNIT_SECONDS[match[2]]


def quantity(value: object) -> Decimal | None:
    """The amount in a Kubernetes quantity; None if `value` is none."""
    text = str(value)
    # The client reads more than Kubernetes does: `1K`, `1_000`, `NaN`.
    if re.fullmatch(QUANTITY_PATTERN, text) is None:
        return None
    amount: Decimal = parse_quantity(text)  # type: ignore[no-untyped-call]
    return amount


@dataclass(frozen=True)
class DurationBetween(Constraint):
    """A duration string of at least `least` and at most `most`, both durations."""

    least: str
    most: str

    def objection(self, value: str) -> str | None:
        """Form first, then range."""
        if re.fullmatch(DURATION_PATTERN, value) is None:
            return self._form
        within = parse_duration(self.least) <= parse_duration(value) <= parse_duration(self.most)
        return None if within else self._range

    def rules(self) -> Sequence[Rule]:
        """Both rules; that of the range stands aside where the form is wrong, so that one message shows."""
        form = matches("self", DURATION_PATTERN)
        limits = f"duration(self) >= duration('{self.least}') && duration(self) <= duration('{self.most}')"
        return Rule(form, self._form), Rule(f"!{form} || ({limits})", self._range)

    @property
    def _form(self) -> str:
        return f"must be {DURATION_HINT}"

    @property
    def _range(self) -> str:
        return f"must be at least {self.least} and at most {self.most}"


@dataclass(frozen=True)
class PercentageBelow100(Constraint):
    """A decimal string of at least 1 and below 100. Below 1 nearly always a share is meant: 0.99 for 99 %."""

    FORM: ClassVar = 'must be a decimal number in quotes, such as "99" or "99.9", with at most six decimals'
    RANGE: ClassVar = (
        "must be at least 1 and below 100, in percent, such as 99 for 99 %: at 100 a single late request would forbid"
        " every batch; 99.99 is possible"
    )

    def objection(self, value: str) -> str | None:
        """Form first, then range."""
        if re.fullmatch(DECIMAL_PATTERN, value) is None:
            return self.FORM
        return None if 1 <= Decimal(value) < 100 else self.RANGE

    def rules(self) -> Sequence[Rule]:
        """Both rules; that of the range stands aside where the form is wrong, so that one message shows."""
        form = matches("self", DECIMAL_PATTERN)
        limits = "double(self) >= 1.0 && double(self) < 100.0"
        return Rule(form, self.FORM), Rule(f"!{form} || ({limits})", self.RANGE)


@dataclass(frozen=True)
class ShareUpTo1(Constraint):
    """A decimal string above 0 and at most 1."""

    FORM: ClassVar = 'must be a decimal number in quotes, such as "0.95", with at most six decimals'
    RANGE: ClassVar = "must be a share above 0 and at most 1, such as 0.95 for 95 %"

    def objection(self, value: str) -> str | None:
        """Form first, then range."""
        if re.fullmatch(DECIMAL_PATTERN, value) is None:
            return self.FORM
        return None if 0 < Decimal(value) <= 1 else self.RANGE

    def rules(self) -> Sequence[Rule]:
        """Both rules; that of the range stands aside where the form is wrong, so that one message shows."""
        form = matches("self", DECIMAL_PATTERN)
        return Rule(form, self.FORM), Rule(f"!{form} || (double(self) > 0.0 && double(self) <= 1.0)", self.RANGE)


@dataclass(frozen=True)
class ReadsAsQuantity(Constraint):
    """An int or string that Kubernetes reads as an amount of a resource, zero or more."""

    MESSAGE: ClassVar = "must be a quantity such as 500m, 2, 16Gi or 1.5"
    #: Bounds the cost of the rule; the longest quantity in use is half as long.
    MAX_LENGTH: ClassVar = 32

    def objection(self, value: int | str) -> str | None:
        """The hint."""
        if isinstance(value, int):
            return None if value >= 0 else self.MESSAGE
        good = len(value) <= self.MAX_LENGTH and re.fullmatch(QUANTITY_PATTERN, value) is not None
        return None if good else self.MESSAGE

    def extend(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """Int-or-string instead of a union, with the rule. CEL's own isQuantity is over the cost budget here."""
        rule = Rule(f"type(self) == int ? self >= 0 : {matches('self', QUANTITY_PATTERN)}", self.MESSAGE)
        beside = {key: value for key, value in schema.items() if key != "anyOf"}
        return with_rules(beside | {"x-kubernetes-int-or-string": True, "maxLength": self.MAX_LENGTH}, rule)


@dataclass(frozen=True)
class ReadsAsBytes(Constraint):
    """An int or string that Kubernetes reads as an amount of bytes, a mebibyte or more."""

    MESSAGE: ClassVar = (
        "must be a quantity of at least 1Mi, such as 100Gi:"
        " a number without a suffix is in bytes, and m means thousandths"
    )
    LEAST: ClassVar = 2**20

    def objection(self, value: int | str) -> str | None:
        """The hint."""
        amount = quantity(value) if len(str(value)) <= ReadsAsQuantity.MAX_LENGTH else None
        return None if amount is not None and amount >= self.LEAST else self.MESSAGE

    def extend(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """Int-or-string instead of a union, with the rule."""
        enough = f"!quantity(self).isLessThan(quantity('{self.LEAST}'))"
        text = f"{matches('self', QUANTITY_PATTERN)} && isQuantity(self) && {enough}"
        rule = Rule(f"type(self) == int ? self >= {self.LEAST} : {text}", self.MESSAGE)
        beside = {key: value for key, value in schema.items() if key != "anyOf"}
        return with_rules(beside | {"x-kubernetes-int-or-string": True, "maxLength": ReadsAsQuantity.MAX_LENGTH}, rule)


@dataclass(frozen=True)
class IntOrString(Constraint):
    """An int from `least` to `most`, or a string of at most `longest` characters that matches `pattern`."""

    least: int
    most: int
    pattern: str
    longest: int
    hint: str

    def objection(self, value: int | str) -> str | None:
        """The hint."""
        if isinstance(value, int):
            return None if self.least <= value <= self.most else self.hint
        good = len(value) <= self.longest and re.fullmatch(self.pattern, value) is not None
        return None if good else self.hint

    def extend(self, schema: JsonSchemaValue) -> JsonSchemaValue:
        """Int-or-string instead of a union, with the rule."""
        number = f"self >= {self.least} && self <= {self.most}"
        rule = Rule(f"type(self) == int ? {number} : {matches('self', self.pattern)}", self.hint)
        beside = {key: value for key, value in schema.items() if key != "anyOf"}
        return with_rules(beside | {"x-kubernetes-int-or-string": True, "maxLength": self.longest}, rule)


@dataclass(frozen=True)
class EnoughBytes(Constraint):
    """A map of resources in which this one, counted in bytes, is nothing or at least a mebibyte."""

    resource: str

    LEAST: ClassVar = 2**20

    @property
    def _message(self) -> str:
        return (
            f"{self.resource} must be 0 or at least 1Mi, such as 8Mi or 8Gi:"
            " a number without a suffix is in bytes, and m means thousandths (8m is 0.008 bytes)"
        )

    def objection(self, value: Mapping[str, int | str]) -> str | None:
        """The hint."""
        amount = quantity(value.get(self.resource, 0))
        return self._message if amount is not None and 0 < amount < self.LEAST else None

    def rules(self) -> Sequence[Rule]:
        """One rule, which stands aside where the amount is no quantity."""
        amount = f"self['{self.resource}']"
        text = f"string({amount})"
        enough = (
            f"!quantity({text}).isLessThan(quantity('{self.LEAST}')) || quantity({text}).compareTo(quantity('0')) == 0"
        )
        held = f"type({amount}) == int ? {amount} == 0 || {amount} >= {self.LEAST} : !isQuantity({text}) || {enough}"
        return (Rule(f"!('{self.resource}' in self) || ({held})", self._message),)
