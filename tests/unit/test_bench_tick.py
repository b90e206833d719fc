"""`hack/bench tick` around its measuring: what it keeps when it is ended early, and what its figures are made of."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator

import pytest

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.options import Options
from flyball_lab.benches.tick import cost
from flyball_lab.benches.tick.copies import copied
from flyball_lab.benches.tick.operator import PODS, address_of, know_pods, service, uid_of
from flyball_operator.app.cached_services import CachedServices
from flyball_operator.kube.cache import Cache
from flyball_operator.prometheus import answers
from flyball_operator.prometheus.queries import UID
from flyball_operator.prometheus.vector import vector_of


def row(operator: float, *, tuned: int = 1, learning: bool = False) -> cost.Row:
    times = ("of the tick", "while it reads")
    processors = {f"{name} {when}": operator for name in ("operator", "prometheus") for when in times}
    counts = {"queries of the tick": 4, "writes of the tick": 1, "observed": 1, "tuned": tuned, "of": 2}
    memory = {"VmRSS MiB": 100 + operator, "VmHWM MiB": 200.0, "seconds to all reports": 12.0}
    return {**processors, **counts, **memory, "read seconds": 0.5, "wall of the tick": 5.0, "learning": learning}


def test_an_interrupt_keeps_the_ticks_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def ticks(services: int, _ticks: int) -> Iterator[cost.Row]:
        yield row(0.1)
        yield row(0.3)
        if services > 1:
            yield row(0.2)
            raise KeyboardInterrupt

    monkeypatch.setattr(cost, "_ticks", ticks)
    with pytest.raises(InterruptedPart) as ended:
        cost.measure(Options(services=(1, 7, 100), ticks=3))
    figures = ended.value.figures
    assert list(figures) == [f"1 service of {PODS} pods", f"7 services of {PODS} pods"]
    assert figures[f"7 services of {PODS} pods"]["ticks"] == 3
    assert figures[f"7 services of {PODS} pods"]["operator processor s p50"] == 0.2
    assert figures[f"7 services of {PODS} pods"]["operator processor s max"] == 0.3
    assert figures[f"7 services of {PODS} pods"]["observed share"] == 0.5


def test_the_fleet_is_one_that_the_operator_works_for() -> None:
    cache = Cache()
    cache.replace_services([service(number) for number in range(3)], 1)
    know_pods(cache, 3 * PODS, CONTROL_PORT)
    services = CachedServices(cache)
    assert [found.metadata.name for found in services.all()] == ["chat-0", "chat-1", "chat-2"]
    assert all(len(services.pods(found.metadata.uid)) == PODS for found in services.all())


def test_no_two_pods_have_the_same_address() -> None:
    addresses = {address_of(number) for number in range(20_000 * PODS)}
    assert len(addresses) == 20_000 * PODS
    assert all(0 <= int(part) <= 250 for address in addresses for part in address.split("."))


def test_ticks_that_come_late_are_reported_all_the_same() -> None:
    said = [json.dumps(row(number)) for number in range(100)]
    minutes = itertools.count(0.0, 60.0)
    assert 0 < len(counted(cost.measured(said, 20, clock=lambda: next(minutes)))) < 20
    assert len(counted(cost.measured(said, 20, clock=lambda: 0.0))) == 20


def counted(rows: Iterable[cost.Row]) -> list[cost.Row]:
    return [row for row in rows if not row["learning"]]


def test_what_counts_begins_when_all_are_tuned_and_the_ticks_before_are_told_apart() -> None:
    said = [json.dumps(row(9.0 if number < 12 else 1.0, tuned=1 + (number >= 11))) for number in range(100)]
    rows = list(cost.measured(said, 20, clock=lambda: 0.0))
    assert counted(rows) == [row(1.0, tuned=2)] * 20
    assert rows[0] == row(9.0, learning=True)
    assert len(rows) == 12 - cost.WARM_TICKS + 20
    figures = cost._figures(1000, rows)
    assert (figures["operator processor s max"], figures["operator processor s while it learns p50"]) == (1.0, 9.0)


def test_what_is_known_of_some_services_is_said_of_all() -> None:
    samples = [
        {"metric": {"namespace": "team", UID: uid_of(service), "field": field}, "value": [100.0, f"{service}"]}
        for service in range(2)
        for field in ("running", "waiting", "generation")
    ]
    numbers = {address_of(pod): (1, pod) for pod in range(5 * PODS)}
    whole = json.loads(copied({"data": {"result": samples}}, numbers, scraped=2, services=5))
    found = answers.figures(vector_of(whole["data"]["result"]), answers.name_of).services
    assert [uid for _, uid in found] == [uid_of(service) for service in range(5)]
    assert [jobs[""]["waiting"] for jobs in found.values()] == [0.0, 1.0, 0.0, 1.0, 0.0]
    sums = [sum(range(PODS * service, PODS * service + PODS)) for service in range(5)]
    assert [jobs[""]["generation"] for jobs in found.values()] == sums
    assert all(len(jobs[""]) == 3 for jobs in found.values())
