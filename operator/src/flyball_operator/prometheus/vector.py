"""The form of each answer, an instant vector: checked as it is parsed, since there are a hundred thousand in a tick.

A sample is parsed when it is asked for: all of an answer at once would take twice the memory of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, TypeAlias

import msgspec

#: Characters of a figure at most.
_LONGEST: Final = 64
_FORM: Final = f"not an instant vector: a sample has labels, a time, and a value of {_LONGEST} characters"


class BadVectorError(Exception):
    """An answer does not have the form of an instant vector."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One series: its labels, and the Unix time and the figure as Prometheus spells it."""

    metric: dict[str, str]
    value: tuple[float, Annotated[str, msgspec.Meta(max_length=_LONGEST)]]


Vector: TypeAlias = Iterable[Sample]


class _Data(msgspec.Struct, gc=False):
    result: list[msgspec.Raw]


class _Answer(msgspec.Struct, gc=False):
    data: _Data


_answers: Final = msgspec.json.Decoder(_Answer)
_samples: Final = msgspec.json.Decoder(Sample)


def parsed(answer: bytes) -> Iterator[Sample]:
    """The vector of an answer, sample by sample. Raises `BadVectorError`, at its first sample or later."""
    try:
        for sample in _answers.decode(answer).data.result:
            yield _samples.decode(sample)
    except msgspec.ValidationError as error:
        raise BadVectorError(_FORM) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadVectorError("no JSON") from error


def vector_of(samples: Any) -> Vector:
    """The vector of samples that were parsed already. Raises `BadVectorError`."""
    try:
        return msgspec.convert(samples, list[Sample])
    except msgspec.ValidationError as error:
        raise BadVectorError(_FORM) from error
