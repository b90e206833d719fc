"""Wrong strategies and limits of the queue, a part of `wrong_manifests.WRONG`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Wrong

_BATCHING, _QUEUE = "spec.tuning.batching", "spec.tuning.queue"
_ARRIVAL = {"spec.tuning.order": "Arrival"}
_STATIC = {"type": "Static", "batchSize": 8}
_DYNAMIC = {"type": "Dynamic", "batchSize": 8, "maxDelay": "50ms"}
_BUCKETED = {"type": "Bucketed", "batchSize": 8, "boundaries": [128, 512]}
_CHOOSES = "must be Arrival where spec.tuning.batching chooses who is next"


def _strategy(id: str, wrong: dict[str, Any], right: dict[str, Any], where: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    return Wrong(
        f"strategy {id}",
        _ARRIVAL | {f"{_BATCHING}.strategy": wrong},
        _ARRIVAL | {f"{_BATCHING}.strategy": right},
        f"{_BATCHING}.strategy{where}",
        says,
        server,
    )


def _field(path: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:
    return Wrong(f"{path} {wrong}", _ARRIVAL | {path: wrong}, _ARRIVAL | {path: right}, path, says, server)


def _ungoverned(field: str) -> Wrong:
    plain = {"spec.engine.governed": False, "spec.tuning.mode": "Disabled"}
    says = "needs spec.engine.governed true"
    return Wrong(f"{field} ungoverned", plain | {field: {}}, {field: {}}, field, says)


def _on_time(batching: dict[str, Any]) -> Wrong:
    right = _ARRIVAL | {_BATCHING: batching}
    return Wrong(f"on time beside {' '.join(batching)}", {_BATCHING: batching}, right, "spec.tuning.order", _CHOOSES)


def _of_vllms_own_order(beside: str, place: dict[str, Any], says: str) -> list[Wrong]:
    """What chooses who is next where vLLM does; accepted are one at a time, a limit on prompts, and priorities."""
    right = {"strategy": {"type": "Continuous"}, "maxConcurrentPrefills": 2, "policy": "Priority"}

    def wrong(name: str, field: str, value: Any, path: str, refused: str) -> Wrong:
        chooses = _ARRIVAL | place | {_BATCHING: {field: value}}
        accepted = _ARRIVAL | place | {_BATCHING: right}
        return Wrong(f"{name} beside {beside}", chooses, accepted, f"{_BATCHING}.{path}", f"{refused} {says}")

    return [
        *(
            wrong(f"strategy {one['type']}", "strategy", one, "strategy.type", "must be Continuous")
            for one in (_STATIC, _DYNAMIC, _BUCKETED)
        ),
        wrong("a delay", "admissionDelay", "50ms", "admissionDelay", "may not stand"),
        wrong("noEvict", "noEvict", {}, "noEvict", "may not stand"),
    ]


def _transfers(role: str) -> dict[str, Any]:
    return {"spec.engine.kvTransfer": {"role": role, "connector": "NixlConnector"}}


WRONG_STRATEGIES = (
    _strategy("Greedy", {"type": "Greedy"}, {"type": "Continuous"}, ".type", "'Static', 'Dynamic' or", '"Static", '),
    _strategy("of no type", {"batchSize": 8}, _STATIC, ".type", "required", "Required value"),
    _strategy("Static of no size", {"type": "Static"}, _STATIC, ".batchSize", "is required beside type Static"),
    _strategy(
        "Dynamic of no size",
        {"type": "Dynamic", "maxDelay": "50ms"},
        _DYNAMIC,
        ".batchSize",
        "is required beside type Static, Dynamic and Bucketed",
    ),
    _strategy(
        "Bucketed of no size",
        {"type": "Bucketed", "sorted": True},
        {"type": "Bucketed", "sorted": True, "batchSize": 1},
        ".batchSize",
        "is required beside type Static, Dynamic and Bucketed",
    ),
    _strategy(
        "Continuous of a size",
        {"type": "Continuous", "batchSize": 8},
        {"type": "Continuous"},
        ".batchSize",
        "Continuous has no batches",
    ),
    _strategy("of size 0", _STATIC | {"batchSize": 0}, _STATIC, ".batchSize", "greater than or equal to 1"),
    _strategy("of a size above any", _STATIC | {"batchSize": 65_537}, _STATIC, ".batchSize", "less than or equal to"),
    _strategy(
        "Dynamic without a delay",
        {"type": "Dynamic", "batchSize": 8},
        _DYNAMIC,
        ".maxDelay",
        "is required beside type Dynamic",
    ),
    *(
        _strategy(
            f"Static with {name}", _STATIC | {name: value}, right, f".{name}", f"accepted beside type {kind} alone"
        )
        for name, value, kind, right in (
            ("maxDelay", "50ms", "Dynamic", _DYNAMIC),
            ("maxBatchTokens", 900, "Dynamic", _DYNAMIC | {"maxBatchTokens": 900}),
            ("boundaries", [128], "Bucketed", _BUCKETED),
            ("sorted", True, "Bucketed", {"type": "Bucketed", "batchSize": 8, "sorted": True}),
        )
    ),
    _strategy(
        "Dynamic of a long delay",
        _DYNAMIC | {"maxDelay": "61s"},
        _DYNAMIC | {"maxDelay": "60s"},
        ".maxDelay",
        "must be at least 0s and at most 60s",
    ),
    _strategy("Dynamic of a bare delay", _DYNAMIC | {"maxDelay": "50"}, _DYNAMIC, ".maxDelay", "must be a duration"),
    _strategy(
        "Dynamic of a number for a delay",
        _DYNAMIC | {"maxDelay": 50},
        _DYNAMIC,
        ".maxDelay",
        "must be a duration such as 500ms, 1.5s, 250us, 30m or 2h: one number and one unit, 90s for 1m30s. Write it in",
        "must be of type string",
    ),
    _strategy(
        "Dynamic of no tokens",
        _DYNAMIC | {"maxBatchTokens": 0},
        _DYNAMIC | {"maxBatchTokens": 1},
        ".maxBatchTokens",
        "greater than or equal to 1",
    ),
    _strategy(
        "Bucketed by nothing",
        {"type": "Bucketed", "batchSize": 8},
        _BUCKETED,
        "",
        "Bucketed needs one of boundaries (prompt tokens, rising) and sorted: true",
    ),
    _strategy("Bucketed by both", _BUCKETED | {"sorted": True}, _BUCKETED, "", "Bucketed needs one of boundaries"),
    _strategy(
        "Bucketed by falling edges",
        _BUCKETED | {"boundaries": [512, 128]},
        _BUCKETED,
        ".boundaries",
        "must rise: each above the one before",
    ),
    _strategy(
        "Bucketed by one edge twice",
        _BUCKETED | {"boundaries": [128, 128]},
        _BUCKETED | {"boundaries": [128]},
        ".boundaries",
        "must rise: each above the one before",
    ),
    _strategy("Bucketed by no edges", _BUCKETED | {"boundaries": []}, _BUCKETED, ".boundaries", "at least 1 item"),
    Wrong(
        "two delays",
        _ARRIVAL | {_BATCHING: {"strategy": _DYNAMIC, "admissionDelay": "50ms"}},
        _ARRIVAL | {_BATCHING: {"strategy": _STATIC, "admissionDelay": "50ms"}},
        f"{_BATCHING}.admissionDelay",
        "may not stand beside strategy Dynamic",
    ),
    _field(f"{_BATCHING}.admissionDelay", "0s", "1ms", "must be at least 1ms and at most 60s"),
    _field(f"{_BATCHING}.maxConcurrentPrefills", 0, 1, "greater than or equal to 1"),
    _field(f"{_BATCHING}.policy", "fcfs", "FCFS", "'FCFS' or 'Priority'", '"FCFS", "Priority"'),
    _field(f"{_BATCHING}.noEvict.quantile", "1.01", "1", "must be a share above 0 and at most 1"),
    _field(f"{_BATCHING}.noEvict.quantile", "95", "0.95", "must be a share above 0 and at most 1, such as 0.95 for 95"),
    _field(f"{_BATCHING}.noEvict.quantile", "0", "0.000001", "must be a share above 0 and at most 1"),
    _field(f"{_BATCHING}.noEvict.quantile", 0.95, "0.95", 'number in quotes, such as "0.95"', "must be of type string"),
    _field(f"{_BATCHING}.noEvict.quantile", "most", "0.5", "must be a decimal number in quotes"),
    _field(f"{_QUEUE}.maxNumQueuedReqs", 0, 1, "greater than or equal to 1"),
    _field(f"{_QUEUE}.maxNumQueuedTokens", 2**31, 2**31 - 1, "less than or equal to 2147483647"),
    _on_time({"strategy": _STATIC}),
    _on_time({"admissionDelay": "50ms"}),
    _on_time({"noEvict": {}}),
    _on_time({"policy": "Priority"}),
    Wrong(
        "on time beside batches of like length",
        {"spec.tuning": {"order": "OnTime", "batching": {"strategy": _BUCKETED}}},
        {"spec.tuning": {"order": "OnTime", "batching": {"maxConcurrentPrefills": 2, "policy": "FCFS"}}},
        "spec.tuning.order",
        _CHOOSES,
    ),
    *(
        case
        for role in ("Consumer", "Both")
        for case in _of_vllms_own_order(
            f"role {role}",
            _transfers(role),
            "where spec.engine.kvTransfer.role is Consumer or Both: vLLM starts to load whatever waits",
        )
    ),
    *_of_vllms_own_order("adapters", {"spec.adapters": []}, "beside spec.adapters: vLLM passes over requests whose"),
    Wrong(
        "strategy at a consumer, as at a producer",
        _ARRIVAL | _transfers("Consumer") | {_BATCHING: {"strategy": _STATIC, "admissionDelay": "50ms"}},
        _ARRIVAL | _transfers("Producer") | {_BATCHING: {"strategy": _STATIC, "admissionDelay": "50ms"}},
        f"{_BATCHING}.strategy.type",
        "nothing else can choose who is next",
    ),
    Wrong(
        "noEvict at a producer",
        _ARRIVAL | _transfers("Producer") | {_BATCHING: {"noEvict": {}}},
        _ARRIVAL | _transfers("Producer") | {_BATCHING: {"policy": "Priority"}},
        f"{_BATCHING}.noEvict",
        "prompts that are done keep memory until another engine has read them",
    ),
    _ungoverned(_BATCHING),
    _ungoverned(_QUEUE),
)
"""Refused like the others; this is a file of its own only for its length."""
