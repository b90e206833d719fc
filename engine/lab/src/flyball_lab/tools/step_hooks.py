"""What our hooks take of a step on vLLM's scheduler classes, without a model: `hack/bench engine --part vllm-hooks`.

Run by the Python of the vLLM environment. The scheduler stands between two timed classes, see `timed_steps`; in its
place an empty class shows what timing itself takes. A model that runs on the core of the scheduler empties its caches,
one on a GPU does not: both are played, the former by walking through more memory than a cache holds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
from vllm.config import SchedulerConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput

from flyball_engine.contract import OnTime, Setpoint, StepBudget
from flyball_engine.vllm.plugin import governed_class
from flyball_lab.benches.engine.timed_steps import StepLogs, TimedStep, around, read_steps
from flyball_lab.harness.model_runner import output_of, request_of
from flyball_lab.harness.scenario_scheduler import BLOCK, make_config, make_scheduler
from flyball_lab.harness.scheduler_scenario import Scenario, a_model

_VLLMS_CHOICE: Final = SchedulerConfig.get_scheduler_cls
STREAMS, PROMPT, OUTPUT = 16, 64, 32
#: Requests that wait where many run.
QUEUE: Final = 1000
#: Bytes that are walked through to empty the caches: more than the largest has.
COLD_BYTES: Final = 96 * 2**20
#: Steps that are left out: the first find nothing loaded.
WARM_UP: Final = 64


def play(
    model: str,
    *,
    governed: bool,
    cold: bool,
    alike: bool,
    steps: int,
    streams: int = STREAMS,
    waiting: int = 0,
    ordered: bool = False,
) -> list[TimedStep]:
    """Steps of so many streams, and so many more that wait.

    `alike`: their answers are of one length, and so end and begin in the same steps. `ordered`: prompts are served in
    the on-time order, and some are late.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps"
        scheduler, made = _scheduler(model, log, governed=governed, streams=streams), count()
        if ordered:
            scheduler.flyball.apply(_in_order(streams))
        choose, walked = random.Random(1), np.zeros(COLD_BYTES // 8)
        hasher = get_request_block_hasher(BLOCK, sha256)
        done = 0
        # As an engine core does once it is made: the collector does not go through what stays. It counts that as what
        # there is, though: what an earlier load had frozen is counted too, or whole collections would come too often.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        while done < steps + WARM_UP:
            for _ in range(streams + waiting - sum(scheduler.get_request_counts())):
                output = OUTPUT if alike else choose.randint(OUTPUT // 4, 2 * OUTPUT - OUTPUT // 4)
                number, prompt = next(made), [choose.randrange(2000, 9000) for _ in range(PROMPT)]
                scheduler.add_request(
                    request_of(f"r{number}", prompt, output=output, arrival=float(number), block_hasher=hasher)
                )
            if cold:
                walked += 1.0
            planned = scheduler.schedule()
            if cold:
                walked += 1.0
            scheduler.update_from_output(planned, _made(scheduler, planned))
            done += 1
        return read_steps(log)[WARM_UP:]


def _scheduler(model: str, log: Path, *, governed: bool, streams: int) -> Any:
    # Room for as many prompts as answers end in a step, beside the decodes: fewer would not let so many run.
    tokens = max(1024, 4 * streams)
    scenario = Scenario(seed=1, blocks=max(5000, 20 * streams), max_num_seqs=streams, max_num_batched_tokens=tokens)
    logs = StepLogs(log)
    config = make_config(scenario, model)
    inner = around(_VLLMS_CHOICE(config.scheduler_config), above=False, logs=logs)
    wrap: Any = governed_class if governed else _empty_class
    ours = wrap(inner)
    timed = around(ours, above=True, logs=logs)
    SchedulerConfig.get_scheduler_cls = lambda _: timed
    return make_scheduler(config, scenario)


def _in_order(streams: int) -> Setpoint:
    """The on-time order, with a budget that lets so many run. Its model depends on the KV cache, as one on a GPU does.

    Steps take next to no time here, and so do the waits of most that are in time.
    """
    model = a_model(0.003, 0.0001).model_copy(update={"d": 1e-9})
    return Setpoint(
        service="s",
        epoch=1,
        generation=1,
        step=StepBudget(seconds=max(0.05, streams / 2560), model=model),
        on_time=OnTime(first_token_deadline_seconds=3.0),
    )


def _empty_class(base: type[Any]) -> type[Any]:
    return type("Empty", (base,), {})


def _made(scheduler: Any, planned: Any) -> ModelRunnerOutput:
    """What a model would have made of the step: a token for each request whose prompt is through."""
    names = list(planned.num_scheduled_tokens)
    known = [scheduler.requests[name] for name in names]
    return output_of(names, [[5] if one.num_computed_tokens >= one.num_tokens else [] for one in known])


def _kinds() -> Iterator[tuple[str, dict[str, Any]]]:
    for cold in (False, True):
        caches = "caches emptied" if cold else "warm caches"
        yield f"{caches}, answers of all lengths", {"governed": True, "cold": cold, "alike": False}
        yield f"{caches}, answers alike", {"governed": True, "cold": cold, "alike": True}
        yield f"{caches}, an empty class", {"governed": False, "cold": cold, "alike": False}
    for running in (16, 256, 512):
        many = {"cold": False, "alike": False, "streams": running, "waiting": QUEUE}
        yield f"{running} running, {QUEUE} waiting", {"governed": True, **many}
        yield f"{running} running, {QUEUE} waiting, in order", {"governed": True, "ordered": True, **many}
        yield f"{running} running, {QUEUE} waiting, an empty class", {"governed": False, **many}


def main() -> int:
    """Play all kinds; the last line is one of JSON."""
    parser = argparse.ArgumentParser(prog="hooks")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--only", default="", help="kinds whose name has this")
    given = parser.parse_args()
    init_none_hash(sha256)
    figures = {}
    for title, kind in _kinds():
        if given.only not in title:
            continue
        worked = [1e6 * step.worked for step in play(given.model, steps=given.steps, **kind)]
        figures[title] = {f"p{share} µs": float(np.percentile(worked, share)) for share in (50, 90, 99)}
        figures[title] |= {"mean µs": float(np.mean(worked)), "most µs": max(worked)}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
