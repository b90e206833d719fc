"""What else the machine did during a run: the processor time that is not the engines', the clients' or the bench's.

Two processors serve the engine and its clients, so that other work shows in every latency.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from flyball_lab.benches.engine.cost import processor_seconds


def busy(stat: str, ticks: int) -> float:
    """Seconds that all processors worked, by the first line of /proc/stat (proc(5)): all but idle and waiting."""
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in stat.splitlines()[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / ticks


class OtherLoad:
    """Counts from when it is made; `sessions`: those of engines and clients, beside our own."""

    def __init__(self, sessions: Sequence[int]) -> None:
        self._sessions = (os.getsid(0), *sessions)
        self._began, self._before = time.monotonic(), self._others()

    def share(self) -> float:
        """Processors' worth of other work since then: 0.5 is half of one."""
        return max(0.0, self._others() - self._before) / (time.monotonic() - self._began)

    def _others(self) -> float:
        total = busy(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))
        return total - sum(map(processor_seconds, self._sessions))
