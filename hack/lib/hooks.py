"""What our hooks take of a step on vLLM's scheduler classes, without a model: `hack/bench engine --part vllm-hooks`.

Run by the Python of the vLLM environment. The scheduler stands between the two timed classes of `flyball_bench`; in its
place an empty class shows what timing itself takes. A model that runs on the core of the scheduler empties its caches,
one on a GPU does not: both are played, the former by walking through more memory than a cache holds.
"""

from __future__ import annotations

import argparse
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

from bench.flyball_bench import Books, TimedStep, around, read_steps
from flyball_engine.vllm.scheduler import governed_class
from support.model_runner import output_of, request_of
from support.story import Story
from support.story_scheduler import BLOCK, make_config, make_scheduler

_VLLMS_CHOICE: Final = SchedulerConfig.get_scheduler_cls
STREAMS, PROMPT, OUTPUT = 16, 64, 32
#: Bytes that are walked through to empty the caches: more than the largest has.
COLD_BYTES: Final = 96 * 2**20
#: Steps that are left out: the first find nothing loaded.
WARM_UP: Final = 64


def play(model: str, *, governed: bool, cold: bool, alike: bool, steps: int) -> list[TimedStep]:
    """Steps of so many streams; `alike`: their answers are of one length, and so end and begin in the same steps."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps"
        scheduler, made = _scheduler(model, log, governed=governed), count()
        choose, walked = random.Random(1), np.zeros(COLD_BYTES // 8)
        hasher = get_request_block_hasher(BLOCK, sha256)
        done = 0
        while done < steps + WARM_UP:
            for _ in range(STREAMS - sum(scheduler.get_request_counts())):
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


def _scheduler(model: str, log: Path, *, governed: bool) -> Any:
    story, books = Story(seed=1, blocks=5000), Books(log)
    config = make_config(story, model)
    inner = around(_VLLMS_CHOICE(config.scheduler_config), above=False, books=books)
    wrap: Any = governed_class if governed else _empty_class
    ours = wrap(inner)
    timed = around(ours, above=True, books=books)
    SchedulerConfig.get_scheduler_cls = lambda _: timed
    return make_scheduler(config, story)


def _empty_class(base: type[Any]) -> type[Any]:
    return type("Empty", (base,), {})


def _made(scheduler: Any, planned: Any) -> ModelRunnerOutput:
    """What a model would have made of the step: a token for each request whose prompt is through."""
    names = list(planned.num_scheduled_tokens)
    known = [scheduler.requests[name] for name in names]
    return output_of(names, [[5] if one.num_computed_tokens >= one.num_tokens else [] for one in known])


def _kinds() -> Iterator[tuple[str, dict[str, bool]]]:
    for cold in (False, True):
        caches = "caches emptied" if cold else "warm caches"
        yield f"{caches}, answers of all lengths", {"governed": True, "cold": cold, "alike": False}
        yield f"{caches}, answers alike", {"governed": True, "cold": cold, "alike": True}
        yield f"{caches}, an empty class", {"governed": False, "cold": cold, "alike": False}


def main() -> int:
    """Play all kinds; the last line is one of JSON."""
    parser = argparse.ArgumentParser(prog="hooks")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    init_none_hash(sha256)
    figures = {}
    for title, kind in _kinds():
        worked = [1e6 * step.worked for step in play(given.model, steps=given.steps, **kind)]
        figures[title] = {f"p{share} µs": float(np.percentile(worked, share)) for share in (50, 90, 99)}
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
