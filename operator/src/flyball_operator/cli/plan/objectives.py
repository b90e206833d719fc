"""What was typed: objectives, the look-back, and how pods make up services. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from flyball_engine.contract import Metric
from flyball_operator.api.quantities import DURATION_HINT, DurationBetween, PercentageBelow100, parse_duration
from flyball_operator.tuning.spec import LatencyObjective

#: The options of thresholds, and what each is about.
THRESHOLDS: Final = {
    "ttft": Metric.TIME_TO_FIRST_TOKEN,
    "tpot": Metric.TIME_PER_OUTPUT_TOKEN,
    "itl": Metric.INTER_TOKEN_LATENCY,
    "e2e": Metric.END_TO_END_LATENCY,
}
USUAL_TARGET: Final = "95"
USUAL_SINCE: Final = "24h"
USUAL_BY: Final = "namespace,model_name"
#: As the API's rule of a target, but for the quotes, which no shell hands on.
_PERCENT: Final = "must be a number of percent such as 95 or 99.9, without the sign and with at most six decimals"
#: Windows that a look-back should have, and the seconds of one: an hour where there are enough, and two scrapes.
_WINDOWS: Final = 24
_LEAST_SECONDS, _MOST_SECONDS = 60, 3600
_LEAST_SINCE, _MOST_SINCE = "5m", "744h"
_MOST_GPUS: Final = 1024
#: Labels that pods of a service differ by, or that the plan needs itself.
_NO_SERVICE: Final = ("instance", "pod", "engine", "le", "field", "job", "__name__")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class OptionError(ValueError):
    """An option cannot be; the message names it and what is accepted."""


@dataclass(frozen=True)
class LookBack:
    """So many windows of so many whole seconds, the last of which ends at the Unix time `end`."""

    end: int
    seconds: int
    count: int

    @property
    def start(self) -> int:
        """Unix seconds."""
        return self.end - self.seconds * self.count

    def ends(self) -> list[int]:
        """When each ends, by time."""
        return [self.start + self.seconds * (number + 1) for number in range(self.count)]


def objectives(thresholds: dict[str, str | None], target: str | None) -> tuple[LatencyObjective, ...]:
    """The objectives that options name, none where there are none. Raises `OptionError`."""
    text = USUAL_TARGET if target is None else target
    if (wrong := PercentageBelow100().objection(text)) is not None:
        said = _PERCENT if wrong == PercentageBelow100.FORM else wrong
        raise OptionError(f"--target: {text!r:.60} {said}")
    allowed = float((Decimal(100) - Decimal(text)) / Decimal(100))
    given = {name: value for name, value in thresholds.items() if value is not None}
    if target is not None and not given:
        raise OptionError(f"--target says of no objective what share must meet it; give {', '.join(_options())}")
    within = DurationBetween("100us", "24h")
    for name, value in given.items():
        if (wrong := within.objection(value)) is not None:
            raise OptionError(f"--{name}: {value!r:.60} {wrong}")
    return tuple(
        LatencyObjective(name, THRESHOLDS[name], float(parse_duration(value)), allowed) for name, value in given.items()
    )


def look_back(since: str | None, now: float) -> LookBack:
    """The windows. Raises `OptionError`."""
    text = USUAL_SINCE if since is None else since.strip()
    try:
        seconds = float(parse_duration(text))
    except ValueError as error:
        raise OptionError(f"--since: {text!r:.60} is not {DURATION_HINT}") from error
    if not parse_duration(_LEAST_SINCE) <= seconds <= parse_duration(_MOST_SINCE):
        raise OptionError(f"--since: {text} is out of range; accepted: {_LEAST_SINCE} to {_MOST_SINCE}")
    window = int(min(_MOST_SECONDS, max(_LEAST_SECONDS, seconds // _WINDOWS)))
    return LookBack(int(now), window, int(seconds // window))


def labels(by: str) -> tuple[str, ...]:
    """The labels that `--by` names. Raises `OptionError`."""
    found = tuple(name.strip() for name in by.split(","))
    for name in found:
        if _LABEL.fullmatch(name) is None:
            raise OptionError(f"--by: {name!r:.60} is no label name; accepted: such as {USUAL_BY}")
        if name in _NO_SERVICE:
            raise OptionError(f"--by: {name} tells pods apart, not services; accepted: such as {USUAL_BY}")
    return tuple(dict.fromkeys(found))


def gpus(text: str | None) -> int | None:
    """The GPUs of a replica. Raises `OptionError`."""
    if text is None:
        return None
    number = int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0
    if not 1 <= number <= _MOST_GPUS:
        raise OptionError(f"--gpus-per-replica: {text!r:.60}, accepted: a whole number from 1 to {_MOST_GPUS}")
    return number


def _options() -> list[str]:
    return [f"--{name}" for name in THRESHOLDS]
