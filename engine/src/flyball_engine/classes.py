"""Classes of requests: whose deadline is which, and who is given up first.

Part of the contract, which exports all of it; a file of its own only for its length. A request names its class in an
HTTP header, or by vLLM's priority where it has no such header. One that names none, or one that nobody configured, is
of the default class: the deadline of the setpoint's `on_time` and `shed`, weight 1, and no share.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from flyball_engine.knobs import Frozen

#: The header of the Gateway API Inference Extension.
CLASS_HEADER: Final = "x-gateway-inference-objective"
#: The default class: its name here, and what counters and people call it.
DEFAULT_CLASS: Final = ""
DEFAULT_CLASS_LABEL: Final = "default"
MOST_CLASSES: Final = 8
#: Of a priority that names a class. vLLM takes larger ones, but some clients and gateways send 32 bits.
LEAST_PRIORITY: Final = -(2**31)
LARGEST_PRIORITY: Final = 2**31 - 1
#: Of the prefill, that all classes may keep for themselves together.
MOST_KEPT: Final = 0.5

ClassName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class RequestClass(Frozen):
    """One class of requests.

    `value`: what the header says. `first_token_deadline_seconds`: from arrival to the first token; None is batch work,
    which is served behind all that can be on time, is never late, and never refused as late. `weight`: what its being
    on time is worth; the least weight per second of work is given up first. `prefill_share`: of the prefill tokens, for
    the oldest of the class while it waits behind others. `priority`: the value of vLLM's priority that names the class,
    too; 0 is that of requests that name none, and accepted for no class.
    """

    name: ClassName
    value: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[!-~]([ -~]*[!-~])?$")]
    first_token_deadline_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    prefill_share: Annotated[float, Field(ge=0, le=MOST_KEPT)] = 0.0
    priority: Annotated[int, Field(ge=LEAST_PRIORITY, le=LARGEST_PRIORITY)] | None = None

    @field_validator("priority")
    @classmethod
    def _says_something(cls, priority: int | None) -> int | None:
        if priority == 0:
            raise ValueError("accepted: any whole number but 0, which is the priority of requests that name none")
        return priority


class Classes(Frozen):
    """The classes there are, and the HTTP `header` that names them, in lower case."""

    header: Annotated[str, Field(max_length=128, pattern=r"^[a-z0-9][-a-z0-9_.]*$")] = CLASS_HEADER
    classes: Annotated[tuple[RequestClass, ...], Field(min_length=1, max_length=MOST_CLASSES, strict=False)]

    @model_validator(mode="after")
    def _told_apart(self) -> Classes:
        for field in ("name", "value", "priority"):
            found = [str(given) for one in self.classes if (given := getattr(one, field)) is not None]
            if len(set(found)) != len(found):
                raise ValueError(f"classes: each {field} may appear once, got {', '.join(found)}")
        if DEFAULT_CLASS_LABEL in {one.name for one in self.classes}:
            raise ValueError(f"classes: accepted as a name: any but {DEFAULT_CLASS_LABEL!r}, which stands for no class")
        return self

    @model_validator(mode="after")
    def _something_is_left(self) -> Classes:
        kept = sum(one.prefill_share for one in self.classes)
        if kept > MOST_KEPT + 1e-9:
            raise ValueError(f"classes: accepted as the sum of prefill_share: at most {MOST_KEPT}, got {kept:g}")
        return self

    def named(self, name: str) -> RequestClass | None:
        """The class of this name; None for the default one, and one that is not there."""
        return next((one for one in self.classes if one.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(one.name for one in self.classes)
