"""Wrong batching and tuning, part of `wrong_manifests`."""

from __future__ import annotations

from flyball_engine.contract import Metric
from flyball_lab.harness.manifests import Wrong

_BY: dict[str, list[dict[str, str]]] = {
    "": [],
    **{metric.value: [{"name": "a", "metric": metric.value, "threshold": "5s"}] for metric in Metric},
}
_BOUNDS = "spec.tuning.bounds"
_SEQS = f"{_BOUNDS}.maxNumActiveSeqs"
_TOKENS = f"{_BOUNDS}.maxNumScheduledTokens"

WRONG_BATCHING = (
    Wrong(
        "token ceiling under seqs",
        {"spec.batching": {"maxNumSeqs": 512, "maxNumBatchedTokens": 256}},
        {"spec.batching": {"maxNumSeqs": 256, "maxNumBatchedTokens": 256}},
        "spec.batching.maxNumBatchedTokens",
        "must be at least maxNumSeqs",
    ),
    Wrong(
        "seqs above the default token ceiling",
        {"spec.batching.maxNumSeqs": 8193},
        {"spec.batching.maxNumSeqs": 8192},
        "spec.batching.maxNumBatchedTokens",
        "must be at least maxNumSeqs",
    ),
    Wrong(
        "seqs 0",
        {"spec.batching.maxNumSeqs": 0},
        {"spec.batching.maxNumSeqs": 1},
        "spec.batching.maxNumSeqs",
        "greater than or equal to 1",
    ),
    Wrong(
        "bounds upside down",
        {_SEQS: {"min": 9, "max": 8}},
        {_SEQS: {"min": 8, "max": 8}},
        f"{_SEQS}.min",
        "must be at most max",
    ),
    Wrong(
        "upper bound above the ceiling",
        {f"{_SEQS}.max": 257},
        {f"{_SEQS}.max": 256},
        f"{_SEQS}.max",
        "must be at most spec.batching.maxNumSeqs",
    ),
    Wrong(
        "lower bound above the ceiling",
        {f"{_TOKENS}.min": 8193},
        {f"{_TOKENS}.min": 8192},
        f"{_TOKENS}.min",
        "must be at most spec.batching.maxNumBatchedTokens",
    ),
    Wrong(
        "upper token bound above the ceiling",
        {f"{_TOKENS}.max": 8193},
        {f"{_TOKENS}.max": 8192},
        f"{_TOKENS}.max",
        "must be at most spec.batching.maxNumBatchedTokens",
    ),
    Wrong(
        "upper token bound under upper seqs",
        {f"{_TOKENS}.max": 255},
        {f"{_TOKENS}.max": 255, f"{_SEQS}.max": 255},
        f"{_TOKENS}.max",
        "must be at least the upper bound of maxNumActiveSeqs",
    ),
    Wrong(
        "mode Off",
        {"spec.tuning.mode": "Off"},
        {"spec.tuning.mode": "Disabled"},
        "spec.tuning.mode",
        "'Disabled', 'Recommend' or 'Auto'",
        '"Disabled", "Recommend", "Auto"',
    ),
    Wrong(
        "overload Refuse",
        {"spec.tuning.overload": "Refuse"},
        {"spec.tuning.overload": "Queue"},
        "spec.tuning.overload",
        "'Shed' or 'Queue'",
        '"Shed", "Queue"',
    ),
    Wrong(
        "refusal status 500",
        {"spec.tuning.refusalStatus": 500},
        {"spec.tuning.refusalStatus": 429},
        "spec.tuning.refusalStatus",
        "503 or 429",
        '"503", "429"',
    ),
    Wrong(
        "order Foo",
        {"spec.tuning.order": "Foo"},
        {"spec.tuning.order": "Arrival"},
        "spec.tuning.order",
        "'OnTime' or 'Arrival'",
        '"OnTime", "Arrival"',
    ),
    *(
        Wrong(
            f"shedding by {metric or 'nothing'}",
            {"spec.tuning.overload": "Shed", "spec.objectives": _BY[metric]},
            {"spec.tuning.overload": right, "spec.objectives": _BY[deadline]},
            "spec.tuning.overload",
            "Shed needs a TimeToFirstToken or EndToEndLatency objective in spec.objectives",
        )
        for metric, deadline, right in (
            ("", "TimeToFirstToken", "Shed"),
            ("TimePerOutputToken", "EndToEndLatency", "Shed"),
            ("InterTokenLatency", "InterTokenLatency", "Queue"),
        )
    ),
    Wrong(
        "ungoverned and Auto",
        {"spec.engine.governed": False},
        {"spec.engine.governed": False, "spec.tuning.mode": "Disabled"},
        "spec.tuning.mode",
        "must be Disabled where spec.engine.governed is false",
    ),
)
