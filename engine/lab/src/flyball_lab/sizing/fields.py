"""Reads fields of a config.json that nobody has checked: each error names the field and what would be right. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flyball_lab.sizing.errors import ConfigError

#: No model is near this; a larger number is a mistake, and would cost memory here.
LARGEST: Final = 10**8
#: Layers and experts are walked one by one.
MOST_LAYERS: Final = 10_000


class Fields:
    """A config.json, or the part of it that describes the language model.

    `aliases`: this family's name for a field; `defaults`: what the family's configuration class fills in.
    """

    def __init__(self, config: Mapping[str, Any], aliases: Mapping[str, str], defaults: Mapping[str, int]) -> None:
        self._config, self._aliases, self._defaults = config, aliases, defaults

    def name(self, field: str) -> str:
        """The field as this family spells it."""
        return self._aliases.get(field, field)

    def raw(self, field: str) -> Any:
        """The value as it stands, None where absent."""
        return self._config.get(self.name(field))

    def count(self, field: str, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number that must be there, or have a default."""
        found = self.optional(field, least=least, most=most)
        if found is None:
            raise ConfigError(self.name(field), "is missing", f"a whole number from {least} to {most}")
        return found

    def optional(self, field: str, *, least: int = 1, most: int = LARGEST) -> int | None:
        """A whole number, None where absent or null and without a default."""
        value = self.raw(field)
        if value is None:
            return self._defaults.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(self.name(field), f"is {value!r:.60}", f"a whole number from {least} to {most}")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        """True or false."""
        value = self.raw(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(self.name(field), f"is {value!r:.60}", "true or false")
        return value

    def numbers(self, field: str) -> frozenset[int]:
        """A list of layer numbers; empty where absent."""
        value = self.raw(field)
        if value is None:
            return frozenset()
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise ConfigError(self.name(field), f"is {value!r:.60}", "a list of layer numbers")
        return frozenset(value)

    def mapping(self, field: str) -> Mapping[str, Any] | None:
        """A nested object, None where absent."""
        value = self.raw(field)
        if value is not None and not isinstance(value, dict):
            raise ConfigError(self.name(field), f"is {value!r:.60}", "an object")
        return value
