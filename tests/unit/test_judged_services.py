"""What came of requests by pod is asked for each judged service apart, for a few services at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import Any

from flyball_operator.prometheus.client import PrometheusError
from flyball_operator.prometheus.reader import MOST_JUDGED, PrometheusReader
from flyball_operator.tuning.observe.signals import Identity, Missing, Unobserved

BAD: Identity = ("team", "uid-bad")


@dataclass
class OneFails:
    """A Prometheus that has nothing, and fails where one service is asked for."""

    asked: list[str] = field(default_factory=list)

    def query(self, text: str, at: float | None = None) -> Any:
        self.asked.append(text)
        if BAD[1] in text:
            raise PrometheusError(Missing.BAD_ANSWER, "many-to-many matching")
        return []

    def close(self) -> None:
        pass


@asynccontextmanager
async def reading() -> AsyncIterator[PrometheusReader]:
    with closing(PrometheusReader(OneFails())) as reader:
        yield reader


async def test_a_query_that_fails_for_one_service_blinds_no_other() -> None:
    async with reading() as reader:
        found = await reader.pod_outcomes({BAD: 60, ("team", "uid-1"): 60})
        assert found == {BAD: Unobserved(Missing.BAD_ANSWER, "many-to-many matching"), ("team", "uid-1"): {}}


async def test_of_many_services_each_has_its_turn() -> None:
    windows = {("team", f"uid-{number}"): 60 for number in range(3 * MOST_JUDGED)}
    async with reading() as reader:
        await reader.read(dict.fromkeys(windows, 0))
        turns = [(await reader.pod_outcomes(windows)).keys() for _ in range(3)]
        assert [len(turn) for turn in turns] == [MOST_JUDGED] * 3
        assert set().union(*turns) == windows.keys()
