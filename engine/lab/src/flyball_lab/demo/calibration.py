"""What this machine's engine does: objectives and loads are made of it, and a machine that cannot compare is told so.

Measured with tuning off, so that no mode is measured by its own yardstick. Objectives are multiples of what a request
takes with hardly anybody beside it, as users set them, and the same for both modes. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flyball_engine.contract import Metric
from flyball_engine.figures import format_duration
from flyball_lab.demo.errors import DemoError
from flyball_lab.demo.measure import Measured, MeasuredRequest
from flyball_operator.api.v1alpha1 import Objective

#: First-token objective over the first token of a long prompt alone, which takes most of a full step.
FIRST: Final = 5.0
#: Token objective over a token of a few chats, each with the others' prompts between its tokens.
TOKEN: Final = 4.0
#: Stall objective over the first token of a long prompt alone: a full step is a stall.
STALL: Final = 0.33
#: Requests per second below which a run of the demo has too few of them to compare.
SLOWEST: Final = 1.5
#: The slowest of the prompts sent alone, over the one in the middle: above it something else takes processors.
UNEVEN: Final = 1.6
ANYWAY: Final = "`hack/demo --anyway` compares all the same"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Seconds until the first token of a long prompt alone, in the middle and at worst; per token of a few chats.

    `carried`: requests per second that the engine answers when it never idles.
    """

    first: float
    worst: float
    token: float
    carried: float

    @classmethod
    def of(cls, alone: Sequence[MeasuredRequest], few: Measured, busy: Measured) -> Calibration:
        """From the runs that are made for it; raises `DemoError` where not all was answered."""
        # The very first request finds everything cold.
        firsts = [request.ttft for request in sorted(alone, key=lambda request: request.start)[1:]]
        if not firsts or any(request.failed for request in alone) or not few.tpot.p50:
            raise DemoError("not all requests of the calibration were answered whole: see the engine's log")
        return cls(first=statistics.median(firsts), worst=max(firsts), token=few.tpot.p50, carried=carries(busy))

    @property
    def unfair(self) -> str:
        """Why a comparison on this machine says little, and what to do; empty if it is fair."""
        if self.carried < SLOWEST:
            return (
                f"this machine is too slow for a fair comparison: its engine answers {self.carried:.1f} requests/s "
                f"when it never idles, and below {SLOWEST:g} there are too few in a run. "
                f"Use more or newer processors; {ANYWAY}"
            )
        if self.worst > UNEVEN * self.first:
            return (
                f"this machine is too busy for a fair comparison: prompts of one length, sent one by one, took "
                f"{format_duration(self.first, digits=3)} in the middle "
                f"and {format_duration(self.worst, digits=3)} at worst. "
                f"End what else runs here and start again; {ANYWAY}"
            )
        return ""

    def objectives(self, wished: Sequence[Objective]) -> Iterator[dict[str, Any]]:
        """The same objectives, as a manifest has them, with thresholds that this machine can keep."""
        found = {
            Metric.TIME_TO_FIRST_TOKEN: FIRST * self.first,
            Metric.TIME_PER_OUTPUT_TOKEN: TOKEN * self.token,
            Metric.INTER_TOKEN_LATENCY: STALL * self.first,
        }
        for objective in wished:
            said = objective.model_dump(mode="json", by_alias=True, exclude_none=True)
            seconds = found.get(objective.metric)
            yield said | ({} if seconds is None else {"threshold": threshold(seconds)})

    def __str__(self) -> str:
        return (
            f"a long prompt alone {format_duration(self.first, digits=3)}, "
            f"a token of a few chats {format_duration(self.token, digits=3)}, "
            f"{self.carried:.1f} requests/s when it never idles"
        )


def threshold(seconds: float) -> str:
    """Two digits of it, as a manifest says a time."""
    return format_duration(seconds, digits=2)


def carries(busy: Measured) -> float:
    """Requests per second of a run in which the engine never idled; raises `DemoError` if not all were answered."""
    lost = busy.failed + busy.refused + busy.truncated
    if lost or busy.seconds <= 0:
        raise DemoError(f"of {busy.requests} requests at once {lost} were not answered whole: see the engine's log")
    return busy.requests / busy.seconds
