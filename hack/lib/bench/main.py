"""`hack/bench NAME`: runs a benchmark, prints its figures, and ends with one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from bench import gate, reflex

#: The parts of each benchmark, by the name their figures have in its JSON.
BENCHMARKS: dict[str, dict[str, Callable[[], dict[str, dict[str, float]]]]] = {
    "engine": {"reflex": reflex.measure, "gate": gate.measure},
}


def run() -> int:
    """Run the benchmark that the arguments name."""
    parser = argparse.ArgumentParser(prog="hack/bench", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS, help="engine: the reflex and the gate on the simulated engine")
    name = parser.parse_args().name
    figures = {}
    for part, measure in BENCHMARKS[name].items():
        began = time.monotonic()
        print(f"{part}: measuring", file=sys.stderr, flush=True)
        figures[part] = measure()
        print(f"\n{part} ({time.monotonic() - began:.0f} s)")
        for title, values in figures[part].items():
            print(f"  {title}: " + ", ".join(f"{key} {value:.2f}" for key, value in values.items()), flush=True)
    print(json.dumps({"bench": name, "figures": figures}))
    return 0
