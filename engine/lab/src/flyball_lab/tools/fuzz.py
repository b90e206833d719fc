"""`hack/fuzz`: scheduler scenarios of random kinds, one after the other. Run by the Python of the vLLM environment."""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from flyball_lab.harness.scheduler_scenario import Scenario

#: What must be nothing at the end of a scenario; `governed` and the KV cache are judged beside it.
WRONG = (
    "wrong_outputs", "unfinished", "starved_decodes",
    "over_cap", "over_tokens", "over_budget", "broken", "trips", "kv_usage", "parked_in_vain",
)  # fmt: skip
COUNTED = ("scenarios", "steps", "retunes", "switches", "preemptions", "aborted", "requests", "ordered", "parked")


def random_scenario(choose: random.Random, *, asynchronous: bool) -> Scenario:
    """A scenario of any kind: a roomy or a tight cache, calm or restless, with drafts or without, in order or not."""
    ordered = choose.choice([0.0, 0.0, 0.5, 1.0])
    return Scenario(
        seed=choose.randrange(2**31),
        asynchronous=asynchronous,
        policy="fcfs" if ordered else choose.choice(["fcfs", "priority"]),
        blocks=choose.choice([4000, 100, 60, 50]),
        longest=choose.choice([30, 120]),
        arrivals=choose.choice([0.1, 0.5, 0.9]),
        retunes=choose.choice([0.0, 0.05, 0.3]),
        # A strategy that chooses who is next ends the order.
        switches=0.0 if ordered else choose.choice([0.0, 0.0, 0.02, 0.1]),
        # Some setpoints last until all that ran before them has ended: what stalls then, stalls.
        extremes=choose.choice([0.003] if ordered else [0.003, 0.01, 0.05, 0.2]),
        aborts=choose.choice([0.005, 0.03]),
        unnamed=choose.choice([0.0, 0.1]),
        ordered=ordered,
        grammars=choose.choice([0.0, 0.3]),
        # vLLM drafts by n-grams in synchronous engines alone.
        drafts=choose.random() < 0.25 and not asynchronous,
    )


def faults(result: Mapping[str, Any]) -> dict[str, Any]:
    """What went wrong in a scenario; nothing did if it is empty."""
    found = {name: result[name] for name in WRONG if result[name]}
    return found if result["governed"] else found | {"governed": False}


class Fuzz:
    """What has been played so far, by scheduler class."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
        self.failures: list[dict[str, Any]] = []

    def play(self, scenario: Scenario, play: Callable[[Scenario], dict[str, Any]]) -> None:
        """Play one more."""
        try:
            result = play(scenario)
        except Exception as error:  # noqa: BLE001 – vLLM's own assertions are what is looked for
            self._fail(scenario, {"raised": f"{type(error).__name__}: {error}"})
            return
        sums = self.figures[result["scheduler"]]
        for name in COUNTED:
            sums[name] += {"scenarios": 1, "requests": scenario.requests}.get(name) or result.get(name, 0)
        if wrong := faults(result):
            self._fail(scenario, wrong)

    def _fail(self, scenario: Scenario, wrong: dict[str, Any]) -> None:
        self.failures.append({"scenario": asdict(scenario), "wrong": wrong})
        print(f"wrong: {json.dumps(self.failures[-1])[:2000]}", file=sys.stderr, flush=True)

    def is_enough(self, *, steps: int, setpoints: int) -> bool:
        """Whether both classes had as many."""
        had = self.figures.values()
        return len(had) > 1 and all(one["steps"] >= steps and one["retunes"] >= setpoints for one in had)

    def report(self) -> str:
        """A table, and a line of JSON."""
        rows = [
            f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in sums.items())
            for name, sums in self.figures.items()
        ]
        figures = {"failures": len(self.failures), **self.figures}
        return "\n".join([*rows, json.dumps({"bench": "fuzz", "figures": figures})])


def play_on(fuzz: Fuzz, given: argparse.Namespace) -> None:
    """Play until there was enough, or time is up."""
    from flyball_lab.harness import scheduler_scenarios  # noqa: PLC0415 – vLLM loads for seconds, and an interrupt shall end that, too

    scheduler_scenarios.prepare()
    # vLLM repeats for each configuration what it makes of this machine.
    logging.disable(logging.WARNING)
    choose, began = random.Random(given.seed), time.monotonic()
    while not fuzz.is_enough(steps=given.steps, setpoints=given.setpoints):
        for asynchronous in (False, True):
            fuzz.play(
                random_scenario(choose, asynchronous=asynchronous),
                lambda scenario: scheduler_scenarios.play(scenario, given.model),
            )
        passed = time.monotonic() - began
        made = sum(sums["steps"] for sums in fuzz.figures.values())
        print(f"\r{made:,} steps, {len(fuzz.failures)} wrong, {passed:.0f} s ", end="", file=sys.stderr, flush=True)
        if given.seconds and passed > given.seconds:
            return


def main() -> int:
    """Play until there was enough, time is up, or somebody interrupts."""
    parser = argparse.ArgumentParser(prog="hack/fuzz")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=70_000)
    parser.add_argument("--setpoints", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    fuzz, code = Fuzz(), 0
    try:
        play_on(fuzz, given)
    except KeyboardInterrupt:
        code = 130
    print(file=sys.stderr)
    print(fuzz.report())
    return code or int(bool(fuzz.failures))


if __name__ == "__main__":
    sys.exit(main())
