"""What can keep an exercise from being measured.

BenchError
├── OptionError      an option has a value that cannot be used; names the option and what is accepted
├── EndpointError    the endpoint is not there, or does not serve this model
├── ControlError     the control port is not there, refuses, or somebody else writes to it
├── GeneratorError   the load generator cannot be started, or ended without a result
└── FileError        results cannot be read or written
"""

from __future__ import annotations


class BenchError(Exception):
    """Root of this package's errors."""


class OptionError(BenchError):
    """An option's value cannot be used."""

    def __init__(self, option: str, problem: str, accepted: str) -> None:
        super().__init__(f"{option}: {problem}; accepted: {accepted}")


class EndpointError(BenchError):
    """The OpenAI API cannot be used."""


class ControlError(BenchError):
    """The control port cannot be used."""


class GeneratorError(BenchError):
    """vLLM's load generator cannot be used."""


class FileError(BenchError):
    """A file of results cannot be used."""


def why(error: Exception) -> str:
    """What the system says, without the name of the file, which is named already."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error)
