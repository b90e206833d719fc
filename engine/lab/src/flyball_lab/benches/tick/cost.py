"""What a tick of the tuner costs by the number of services: processor, memory, queries, and Prometheus beside.

A real Prometheus scrapes the control ports of five pods for each service, which one process serves on as many addresses
(`fleet`); the operator's tuner works over it in a process of its own (`operator`). Of more services than
`SCRAPED` those are scraped, and a process between the two says the same of the others (`copies`). A tick is the
time from one read to the next, so what decisions, read-backs and pushes take in between counts.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from flyball_engine.figures import figure
from flyball_lab.benches.figures import Figures, Tables
from flyball_lab.benches.interrupted import InterruptedPart
from flyball_lab.benches.options import Options
from flyball_lab.benches.tick.operator import PODS, SCRAPED, address_of, uid_of
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.prometheus import ScrapeTarget, prometheus
from flyball_lab.pages.figures import table

#: Before these tuners are made and services are met.
WARM_TICKS: Final = 5
#: Ticks that models may take to be learnt, and limits to go down to what the load needs: what comes then counts.
LEARNING_TICKS: Final = 20
#: Ticks that come late may take minutes each: after so many seconds what was measured will do.
LONGEST_SECONDS: Final = 300.0
#: What the chart sets of the operator's process.
SETTINGS: Final = MappingProxyType({"MALLOC_ARENA_MAX": "1"})
#: Engines are scraped as they are in a cluster.
SCRAPE: Final = "5s"
_PROMETHEUS: Final = "Prometheus processor s"
_LEARNING: Final = "operator processor s while it learns"
#: Rows of the page, and the figures that they show.
_SPREADS: Final = {
    "operator, processor seconds of a tick": "operator processor s",
    "the same, while models are learnt": _LEARNING,
    "Prometheus, processor seconds, scrapes and all": _PROMETHEUS,
    "seconds of the read by the clock": "read wall s",
    "seconds of the tick by the clock": "tick wall s",
}
#: What is asked of 1000 services: row of the page, the figure, and its most.
ASKED: Final = (
    ("processor seconds of a tick, p50", "operator processor s p50", 1.0),
    ("memory, MiB", "memory MiB", 300.0),
    ("seconds of the read, the largest", "read wall s max", 4.0),
    ("seconds to a status of every service", "cold start s", 20.0),
)
ASKED_OF: Final = 1000
Row = dict[str, Any]


def measure(options: Options) -> dict[str, dict[str, float]]:
    """Figures by number of services. Ctrl-C keeps those that are measured."""
    figures: dict[str, dict[str, float]] = {}
    for services in options.services:
        rows: list[Row] = []
        try:
            rows.extend(_ticks(services, options.ticks))
        except KeyboardInterrupt:
            if rows:
                figures[_title(services)] = _figures(services, rows)
            raise InterruptedPart(figures) from None
        figures[_title(services)] = _figures(services, rows)
        print(f"  {_title(services)}: {len(rows)} ticks", file=sys.stderr, flush=True)
    return figures


def tables(figures: Figures) -> Tables:
    """A column for each number of services: medians, and the largest. What is asked, where it was measured."""
    rows = [(shown, *(_spread(values, key) for values in figures.values())) for shown, key in _SPREADS.items()]
    for shown, key in (
        ("queries of a tick, at most", "queries"),
        ("operator's memory, MiB", "memory MiB"),
        ("seconds from its start to a status of every service", "cold start s"),
    ):
        rows.append((shown, *(figure(values[key]) for values in figures.values())))
    found = {"": table(("p50/largest", *(title.removesuffix(f" of {PODS} pods") for title in figures)), rows)}
    if values := figures.get(_title(ASKED_OF)):
        asked = [(shown, f"{most:g}", _against(values[key], most)) for shown, key, most in ASKED]
        found["asked"] = table((f"{ASKED_OF} services", "asked, at most", "got"), asked)
    return found


def _against(value: float, most: float) -> str:
    return figure(value) if value <= most else f"{figure(value)}: missed"


def _spread(values: Mapping[str, float], key: str) -> str:
    if f"{key} p50" not in values:
        return "none"
    text = "/".join(figure(values[f"{key} {end}"], 2) for end in ("p50", "max"))
    scraped = f"{values['services scraped']:g}"
    few = key == _PROMETHEUS and values["services scraped"] < values["services"]
    return f"{text} ({scraped} scraped)" if few else text


def _title(services: int) -> str:
    return f"{services} services of {PODS} pods" if services > 1 else f"1 service of {PODS} pods"


def _ticks(services: int, ticks: int) -> Iterator[Row]:
    """A row for each tick after the first ones."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        port, scraped = free_port(), min(services, SCRAPED)
        _await_ready(stack.enter_context(_process("flyball_lab.benches.tick.fleet", str(port))))
        targets = [
            ScrapeTarget(f"{address_of(pod)}:{port}", uid_of(pod // PODS), pod=f"chat-{pod // PODS}-{pod % PODS}")
            for pod in range(PODS * scraped)
        ]
        running = stack.enter_context(prometheus(Path(folder), targets, scrape=SCRAPE))
        url = running.url
        if scraped < services:
            copies, more = free_port(), (url, f"http://127.0.0.1:{port}", str(scraped), str(services))
            _await_ready(stack.enter_context(_process("flyball_lab.benches.tick.copies", str(copies), *more)))
            url = f"http://127.0.0.1:{copies}"
        arguments = {
            "--url": url,
            "--prometheus": str(running.pid),
            "--services": str(services),
            "--port": str(port),
        }
        words = (word for pair in arguments.items() for word in pair)
        said = stack.enter_context(_process("flyball_lab.benches.tick.operator", *words, settings=SETTINGS))
        yield from measured(said, ticks)


def measured(said: Iterable[str], ticks: int, clock: Callable[[], float] = time.monotonic) -> Iterator[Row]:
    """The rows of so many ticks once all services are tuned, fewer if these take too long, but one.

    Those of before are there, too, told by `learning`; of the very first there are none.
    """
    learning, began, counted = True, clock(), 0
    for number, line in enumerate(itertools.islice(said, WARM_TICKS, None)):
        row = json.loads(line)
        yield row | {"learning": learning}
        counted += not learning
        if learning and (row["tuned"] == row["of"] or number + 1 == LEARNING_TICKS):
            learning, began = False, clock()
        elif counted >= ticks or (counted and clock() - began > LONGEST_SECONDS):
            return
    raise RuntimeError("the operator ended before its time")


def _await_ready(said: Iterator[str]) -> None:
    """Until a process says that it serves."""
    if next(said, None) is None:
        raise RuntimeError("what the operator works over did not start")


@contextmanager
def _process(module: str, *arguments: str, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """What a process says, line by line; it ends with us."""
    # A group of its own: a Ctrl-C is ours to answer.
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | dict(settings or {}),
    )
    try:
        yield process.stdout
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _figures(services: int, rows: Sequence[Row]) -> dict[str, float]:
    """The median and the largest of each, in seconds, mebibytes or a number."""
    spread = {
        "operator processor s": "operator of the tick",
        "of it reading s": "operator while it reads",
        "read wall s": "read seconds",
        _PROMETHEUS: "prometheus of the tick",
        "of it while read s": "prometheus while it reads",
        "tick wall s": "wall of the tick",
    }
    learning = [row["operator of the tick"] for row in rows if row["learning"]]
    rows = [row for row in rows if not row["learning"]] or rows  # ended early: better than nothing
    found = {"ticks": float(len(rows))}
    if learning:
        found |= {f"{_LEARNING} p50": statistics.median(learning), f"{_LEARNING} max": max(learning)}
    for shown, name in spread.items():
        values = [row[name] for row in rows]
        found |= {f"{shown} p50": statistics.median(values), f"{shown} max": max(values)}
    return found | {
        "queries": max(row["queries of the tick"] for row in rows),
        "status writes p50": statistics.median(row["writes of the tick"] for row in rows),
        "observed share": statistics.fmean(row["observed"] / row["of"] for row in rows),
        "tuned share": statistics.fmean(row["tuned"] / row["of"] for row in rows),
        "services scraped": float(min(services, SCRAPED)),
        "cold start s": rows[-1]["seconds to all reports"],
        "memory MiB": max(row["VmRSS MiB"] for row in rows),
        "largest memory MiB": max(row["VmHWM MiB"] for row in rows),
        "services": float(services),
    }
