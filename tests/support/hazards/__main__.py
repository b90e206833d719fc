"""Shows hazards on the installed vLLM: run by the Python of the vLLM environment.

python -m support.hazards MODEL '"nobody_may_run"' …  →  a JSON object for each on standard output
"""

from __future__ import annotations

import json
import sys

from vllm.v1.core.kv_cache_utils import init_none_hash

from flyball_engine.vllm.plugin import failure, register
from support.hazards import limits, outside_scheduler, stalls
from support.hazards.core import block_hash

SHOWN = {hazard.__name__: hazard for hazard in (*limits.HAZARDS, *outside_scheduler.HAZARDS, *stalls.STALLS)}


def main() -> None:
    """Show those that are named."""
    model, *names = sys.argv[1:]
    init_none_hash(block_hash)
    register()
    assert failure() is None, failure()
    for name in map(json.loads, names):
        print(json.dumps(SHOWN[name](model)), flush=True)  # noqa: T201 – this is its output


if __name__ == "__main__":
    main()
