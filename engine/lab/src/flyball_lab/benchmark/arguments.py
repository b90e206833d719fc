"""Arguments of `vllm bench serve`, for `flyball-bench` and the demo. Pure."""

from __future__ import annotations

import json
from typing import Final

from flyball_lab.benchmark.points import MOST_WARM_UP_REQUESTS, OPEN_WARM_UP_REQUESTS, WARM_UP_OUTPUT_TOKENS, Point

#: The path that the generator's backend `openai` is for.
COMPLETIONS: Final = "/v1/completions"


def arguments(point: Point, *, tokenizer: str, salt: str | None = None, fixed_answers: bool = False) -> list[str]:
    """Arguments for a point.

    `salt` keeps its prompts apart from other points' in a prefix cache. `fixed_answers`: the workload's spread is that
    of prompts alone.
    """
    workload = point.workload
    spread = json.dumps({"input": workload.spread, "output": 0.0}) if fixed_answers else workload.spread
    return [
        "--backend=openai",
        f"--base-url={point.endpoint}",
        f"--endpoint={COMPLETIONS}",
        f"--model={point.model}",
        f"--tokenizer={tokenizer}",
        "--dataset-name=random",
        f"--random-input-len={workload.input_tokens}",
        f"--random-output-len={workload.output_tokens}",
        f"--random-range-ratio={spread}",
        f"--random-prefix-len={workload.shared_prefix_tokens}",
        f"--num-prompts={point.requests}",
        # Without a rate all requests are there at once, and the clients take them one by one.
        *([f"--max-concurrency={point.concurrency}"] if point.concurrency is not None else []),
        *([f"--request-rate={point.rate}", f"--burstiness={workload.burstiness}"] if point.rate is not None else []),
        f"--seed={workload.seed}",
        "--ignore-eos",
        "--temperature=0",
        # The endpoint has answered already, and the generator's own warm-up repeats a prompt that is measured later.
        "--ready-check-timeout-sec=0",
        "--save-detailed",
        "--disable-tqdm",
        *([f"--extra-body={json.dumps({'cache_salt': salt})}"] if salt else []),
    ]


def warm_up(point: Point) -> Point:
    """A short point like this one, of other prompts: it fills the batch, and ends what the setting before left.

    It is a closed loop, so that it ends soon at any rate.
    """
    workload = point.workload
    clients = point.concurrency or min(point.requests, OPEN_WARM_UP_REQUESTS)
    update = {
        "seed": (workload.seed + 1) % 2**32,
        "output_tokens": min(workload.output_tokens, WARM_UP_OUTPUT_TOKENS),
        "burstiness": None,
    }
    return point.model_copy(
        update={
            "workload": workload.model_copy(update=update),
            "requests": min(clients, MOST_WARM_UP_REQUESTS),
            "concurrency": clients,
            "rate": None,
        }
    )
