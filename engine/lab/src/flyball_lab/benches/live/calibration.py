"""What this machine's engine does: it gives the load its rates and the objectives their thresholds.

Measured on stock vLLM with its own limits, so that no variant is measured by its own yardstick. Objectives are
multiples of what a request takes with hardly anybody beside it, as users set them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flyball_engine.figures import figure, significant
from flyball_lab.benches.engine.engines import WarmEngines, say
from flyball_lab.benches.engine.load import Ask, closed
from flyball_lab.benches.live.goodput import Objectives
from flyball_lab.benches.live.load import CHAT, KINDS, LONG, RequestKind

#: First-token objective over the first token of a long prompt alone; token objective over a token of a few chats.
FIRST: Final = 4.0
TOKEN: Final = 6.0
FEW: Final = 4
#: Streams that never let the engine idle, and for how long each kind is asked.
STREAMS: Final = 32
SECONDS: Final = 8.0
ALONE: Final = 7


@dataclass(frozen=True)
class Calibration:
    """The objectives, and what is answered per second of a kind alone when the engine never idles."""

    objectives: Objectives
    busy: Mapping[str, float]

    @property
    def told(self) -> dict[str, float]:
        """As figures."""
        rates = {f"{name}, answered per s when busy": rate for name, rate in self.busy.items()}
        return {"first token s": self.objectives.ttft, "per token ms": 1e3 * self.objectives.tpot} | rates


def calibrate(engines: WarmEngines) -> Calibration:
    """Measure all of it, in half a minute."""
    url, send = engines.stock.url, engines.clients.send
    long = [Ask(engines.prompts.of(sum(LONG.prompt) // 2), 2) for _ in range(ALONE)]
    alone = send(closed(url, long, streams=1)).results
    first = statistics.median(result.first for result in alone if result.first is not None)
    few = send(closed(url, asks(engines, CHAT), streams=FEW, seconds=SECONDS / 2)).results
    token = statistics.median(
        (one.ended - one.first) / (one.tokens - 1) for one in few if one.first is not None and one.ended is not None
    )
    found = Calibration(
        Objectives(ttft=significant(FIRST * first, 2), tpot=significant(TOKEN * token, 2)),
        {kind.name: _busy(engines, kind) for kind in KINDS},
    )
    say(f"objectives and load: {', '.join(f'{name} {figure(value)}' for name, value in found.told.items())}")
    return found


def _busy(engines: WarmEngines, kind: RequestKind) -> float:
    sent = engines.clients.send(closed(engines.stock.url, asks(engines, kind), streams=STREAMS, seconds=SECONDS))
    return sum(result.ended is not None for result in sent.results) / sent.seconds


def asks(engines: WarmEngines, kind: RequestKind) -> Iterator[Ask]:
    """Requests of a kind, on and on."""
    while True:
        yield Ask(engines.prompts.of(engines.random.randint(*kind.prompt)), engines.random.randint(*kind.output))
