"""What limited a service in each window. Pure."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from flyball_engine.contract import Metric
from flyball_operator.cli.plan.windows import Held, ServicePast, Window

#: Requests that wait for each replica, in the mean: fewer come and go between two steps.
_QUEUED: Final = 0.5
#: Share of a cache, and of a ceiling, from which on it is full.
_FULL: Final = 0.95
#: Windows with the same most requests at once that show a ceiling nobody tells: one may be chance.
_ALIKE: Final = 2
_FIRST_TOKENS: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)


class Limit(StrEnum):
    """What limits a service."""

    IDLE = "idle"
    NOTHING = "nothing"
    FIRST_TOKEN = "first token"
    TOKENS = "tokens"
    KV_CACHE = "KV cache"
    MAX_NUM_SEQS = "max_num_seqs"
    QUEUE = "queue"
    REFUSALS = "refusals"
    UNKNOWN = "unknown"


#: What each means, for people.
MEANING: Final = {
    Limit.IDLE: "no request came",
    Limit.NOTHING: "nobody waited, no objective was missed",
    Limit.FIRST_TOKEN: "first tokens were late, though nobody waited: prompts are long, or steps are slow",
    Limit.TOKENS: "tokens were late: batches or prompts in the steps are too large for the objective",
    Limit.KV_CACHE: "requests waited while the KV cache was full",
    Limit.MAX_NUM_SEQS: "requests waited while as many ran as the engine was started for, with KV cache to spare",
    Limit.QUEUE: "requests waited, with places and KV cache to spare: steps are full of prompts",
    Limit.REFUSALS: "more requests were refused than may miss an objective, so nobody waited",
    Limit.UNKNOWN: "pods were there through no whole window",
}


def limits(past: ServicePast) -> Counter[Limit]:
    """Windows by what limited them."""
    ceiling = past.ceiling if past.ceiling is not None else _shown_ceiling(past.windows)
    return Counter(_limit(window, past, ceiling) for window in past.windows)


def main_limit(counts: Counter[Limit]) -> Limit:
    """The one that most windows had, of those in which something limited."""
    tight = {limit: count for limit, count in counts.items() if limit not in (Limit.IDLE, Limit.NOTHING)}
    if tight:
        return max(tight, key=tight.__getitem__)
    if not counts:
        return Limit.UNKNOWN
    return Limit.NOTHING if counts[Limit.NOTHING] else Limit.IDLE


def _limit(window: Window, past: ServicePast, ceiling: float | None) -> Limit:
    if window.requests <= 0.0 and window.waiting <= 0.0:
        return Limit.IDLE
    if _queued(window):
        return _cause_of_queue(window, ceiling)
    if window.too_many_refused(past.objectives):
        return Limit.REFUSALS
    missed = [one for one in past.objectives if window.held((one,)) is Held.MISSED]
    if not missed:
        return Limit.NOTHING
    return Limit.FIRST_TOKEN if any(one.metric in _FIRST_TOKENS for one in missed) else Limit.TOKENS


def _cause_of_queue(window: Window, ceiling: float | None) -> Limit:
    if window.kv_peak >= _FULL:
        return Limit.KV_CACHE
    if ceiling is not None and window.running_peak >= _FULL * ceiling:
        return Limit.MAX_NUM_SEQS
    return Limit.QUEUE


def _queued(window: Window) -> bool:
    return window.waiting >= _QUEUED * max(1.0, window.replicas)


def _shown_ceiling(windows: tuple[Window, ...]) -> float | None:
    """The most requests that an engine ran at once, where it was as many in several windows in which others waited."""
    most = max((window.running_peak for window in windows), default=0.0)
    alike = [one for one in windows if _queued(one) and one.running_peak >= most]
    return most if len(alike) >= _ALIKE else None
