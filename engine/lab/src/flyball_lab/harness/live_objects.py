"""The objects of a real step beside what is said of their classes; needs the Python of the vLLM environment."""

from __future__ import annotations

from typing import Any

from flyball_engine.vllm.attributes import look
from flyball_engine.vllm.compat import EVERYTHING


def misjudged(engine: Any) -> list[str]:
    """Names that the look at vLLM's classes finds and the objects of a step lack, or the other way round."""
    engine.add()
    output = engine.scheduler.schedule()
    (request,) = engine.scheduler.running
    objects = {
        "Scheduler": engine.scheduler,
        "SchedulerConfig": engine.config.scheduler_config,
        "CacheConfig": engine.config.cache_config,
        "ParallelConfig": engine.config.parallel_config,
        "KVCacheManager": engine.scheduler.kv_cache_manager,
        "Request": request,
        "SchedulerOutput": output,
    }
    found = []
    for used in EVERYTHING:
        if used.name in objects:
            names = look(used) or ()
            there = {name: hasattr(objects[used.name], name) for name in (*used.needed, *used.optional)}
            found += [f"{used.name}.{name}" for name, is_there in there.items() if is_there != (name in names)]
    return found
