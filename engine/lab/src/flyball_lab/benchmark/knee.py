"""The knee: where latency begins to cost more than throughput gains. Pure.

Kleinrock's power (1979), throughput over response time, is largest there. Between two loads it rises exactly
while throughput gains more, relatively, than latency loses, and falls from then on. It is an optimum, so it moves
neither with the scale of the axes nor with where the sweep ends, as the knees do that are found by the shape of a
curve (Kneedle among them; Gunther, "Mind your knees and queues", 2009, shows that such a knee is made by the plot).
And it looks at all points, so one noisy point ends no search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flyball_engine.knobs import Frozen
from flyball_lab.benchmark.measurements import Measurement

#: Powers this close to the largest count as the same: what repeated runs of one point differ by.
TOLERANCE: Final = 0.05
RULE: Final = (
    "The knee is the smallest concurrency or request rate whose power (output tokens/s ÷ median end-to-end latency) is "
    "within 5 % of the largest measured: up to it throughput gains more, relatively, than latency loses; beyond it, "
    "the reverse."
)


class Knee(Frozen):
    """Where a series has its knee.

    `load`: clients, or requests per second. `passed`: a larger one was measured, too; if not, the knee may lie further
    out.
    `power`: relative to that of the first point, so that it has no unit.
    """

    load: float
    passed: bool
    power: float


def knee(measurements: Sequence[Measurement]) -> Knee | None:
    """The knee of measurements in order of load; None where fewer than two have a latency."""
    powers = [(one.point.load, value) for one in measurements if (value := power(one)) is not None]
    if len(powers) < 2:
        return None
    best = max(value for _, value in powers)
    load, reached = next(pair for pair in powers if pair[1] >= (1 - TOLERANCE) * best)
    return Knee(load=load, passed=load < powers[-1][0], power=reached / powers[0][1])


def power(one: Measurement) -> float | None:
    """Output tokens per second over seconds, of a point; None without latency or tokens."""
    latency = one.e2e.p50
    return one.output_tokens_per_second / latency if latency and one.output_tokens_per_second else None
