"""Why a model could not be sized.

    SizingError
    ├── ConfigError     a field of config.json is missing, wrong, or of a kind that is not sized
    ├── RequestError    an option is outside what this model or device allows
    └── ShortageError   the memory is too small

Each names the field (of config.json) or option and says what is accepted. Pure.
"""

from __future__ import annotations


class SizingError(Exception):
    """`field` is what is wrong, `problem` why, `accepted` what would be right."""

    def __init__(self, field: str, problem: str, accepted: str) -> None:
        super().__init__(f"{field}: {problem}; accepted: {accepted}")
        self.field, self.problem, self.accepted = field, problem, accepted


class ConfigError(SizingError):
    """A field of config.json is missing, wrong, or of a kind that is not sized."""


class RequestError(SizingError):
    """An option is outside what this model or device allows."""


class ShortageError(SizingError):
    """The memory is too small for the weights, or for one request of the context asked for."""
