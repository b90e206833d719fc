"""What is no setpoint, and who may not write one."""

from __future__ import annotations

import json
from typing import Any, Final

from flyball_engine.contract import Refusal

_MODEL: Final = {
    "id": "m", "trusted": True, "t0": 0.01, "h": 0.0, "c1": 1e-4, "c2": 1e-4, "beta": 0.0, "g": 0.0, "kappa": 1,
}  # fmt: skip


_RIGHT: Final = {"service": "s", "epoch": 1, "generation": 1}


def _body(**fields: Any) -> bytes:
    return json.dumps({**_RIGHT, **fields}).encode()


def shown(body: bytes) -> str:
    """A body without what is right in it."""
    try:
        fields = json.loads(body)
    except ValueError:
        return body.decode()
    if not isinstance(fields, dict):
        return body.decode()
    text = json.dumps({name: value for name, value in fields.items() if _RIGHT.get(name, fields) != value})
    return text.replace(json.dumps(_MODEL)[1:-1], "…")


def _step(**changes: Any) -> bytes:
    return _body(step={"seconds": 0.05, "model": _MODEL, **changes})


def _on_time(**changes: Any) -> bytes:
    return _body(on_time={"first_token_deadline_seconds": 2, **changes})


def _model(**changes: Any) -> bytes:
    return _step(model={**_MODEL, **changes})


def _limits(**limits: Any) -> bytes:
    return _body(limits=limits)


def _batching(**fields: Any) -> bytes:
    return _body(batching=fields)


_LEAST_1: Final = "greater than or equal to 1"
#: A body, and what the answer says of it: the field, and what is accepted. All are 422.
BODIES: Final[list[tuple[bytes, tuple[str, ...]]]] = [
    (b"", ("body", "JSON")),
    (b"{not json", ("body", "JSON")),
    (b"[]", ("body", "an object")),
    (b'{"service":"s","epoch":NaN,"generation":1}', ("epoch", "a valid integer")),
    (b'{"epoch":7,"generation":1}', ("service", "required")),
    (_body(generation=-1), ("generation", "greater than or equal to 0")),
    (_body(epoch="1"), ("epoch", "a valid integer")),
    (_body(epoch=1.5), ("epoch", "a valid integer")),
    (_body(service=""), ("service", "at least 1 character")),
    (_body(expires_seconds=1), ("expires_seconds", "greater than or equal to 60")),
    (_body(admission="shed"), ("admission", "accepted: service, epoch, generation, limits, step, shed")),
    (_limits(max_num_active_seqs=0), ("limits.max_num_active_seqs", _LEAST_1)),
    (_limits(max_num_active_seqs=True), ("limits.max_num_active_seqs", "a valid integer")),
    (_limits(max_num_scheduled_tokens=-5), ("limits.max_num_scheduled_tokens", _LEAST_1)),
    (_limits(max_num_scheduled_tokens=2**40), ("limits.max_num_scheduled_tokens", "less than or equal to 2147483647")),
    (_limits(long_prefill_token_threshold="no"), ("limits.long_prefill_token_threshold", "a valid integer")),
    (
        _limits(max_num_partial_prefills=2),
        ("limits.max_num_partial_prefills", "accepted: max_num_active_seqs,"),
    ),
    (_body(queue={"max_num_queued_reqs": -1}), ("queue.max_num_queued_reqs", "greater than or equal to 0")),
    (
        _body(queue={"max_queue_len": 5}),
        ("queue.max_queue_len", "accepted: max_num_queued_reqs, max_num_queued_tokens"),
    ),
    (_body(shed={}), ("shed.ttft_deadline_seconds", "required")),
    (_body(shed={"ttft_deadline_seconds": 0}), ("shed.ttft_deadline_seconds", "greater than 0")),
    (_body(shed={"ttft_deadline_seconds": 1, "margin": 2}), ("shed.margin", "less than or equal to 1")),
    (_body(on_time={}), ("on_time.first_token_deadline_seconds", "required")),
    (_on_time(late_share=0.9), ("on_time.late_share", "less than or equal to 0.5")),
    (_on_time(weights={}), ("on_time.weights", "accepted: first_token_deadline_seconds, margin, late_share")),
    (_body(classes={"classes": []}), ("classes.classes", "at least 1 item")),
    (_body(classes={"classes": [{"name": "a"}]}), ("classes.classes.0.value", "required")),
    (_body(classes={"classes": [{"name": "default", "value": "d"}]}), ("classes", "any but 'default'")),
    (
        _body(objectives=[{"metric": "TimeToFirstToken", "threshold_seconds": 1, "of_class": "a"}]),
        ("objectives.of_class", "'a' is no class"),
    ),
    (_body(step={"seconds": 0.1}), ("step.model", "required")),
    (_step(seconds=0), ("step.seconds", "greater than 0")),
    (_step(seconds=61), ("step.seconds", "less than or equal to 60")),
    (_step(least_prefill_chunk=0), ("step.least_prefill_chunk", _LEAST_1)),
    (_model(c1=-1e-9), ("step.model.c1", "greater than or equal to 0")),
    (_model(kappa=0), ("step.model.kappa", _LEAST_1)),
    (_model(c3=1.0), ("step.model.c3", "accepted: id, trusted, t0")),
    (_model(trusted="yes"), ("step.model.trusted", "a valid boolean")),
    (_batching(strategy={"type": "Greedy"}), ("batching.strategy", "'Continuous', 'Static', 'Dynamic', 'Bucketed'")),
    (_batching(strategy={"type": "Static"}), ("batching.strategy.Static.batch_size", "required")),
    (
        _batching(strategy={"type": "Static", "batch_size": 4, "sorted": True}),
        ("batching.strategy.Static.sorted", "accepted: type, batch_size"),
    ),
    (
        _batching(strategy={"type": "Dynamic", "batch_size": 4, "max_delay_seconds": 61}),
        ("batching.strategy.Dynamic.max_delay_seconds", "less than or equal to 60"),
    ),
    (
        _batching(strategy={"type": "Bucketed", "batch_size": 4}),
        ("batching.strategy.Bucketed", "either boundaries (prompt tokens, rising) or sorted = true"),
    ),
    (
        _batching(strategy={"type": "Bucketed", "batch_size": 4, "boundaries": [100, 50]}),
        ("boundaries: each must be above the one before", "[100, 50]"),
    ),
    (
        _batching(admission_delay_seconds=1, strategy={"type": "Dynamic", "batch_size": 4, "max_delay_seconds": 1}),
        ("admission_delay_seconds", "accepted beside Dynamic: 0"),
    ),
    (_batching(no_evict={"quantile": 0}), ("batching.no_evict.quantile", "greater than 0")),
    (_batching(policy="lifo"), ("batching.policy", "'fcfs' or 'priority'")),
    (_body(objectives=[{"metric": "Speed", "threshold_seconds": 1}]), ("objectives.0.metric", "'TimeToFirstToken'")),
    (
        _body(objectives=[{"metric": "TimeToFirstToken", "threshold_seconds": 1}] * 2),
        ("objectives: each metric and threshold may appear once",),
    ),
]
#: Other writes that are refused, in words: the tests of the same file make them.
OTHERS: Final[list[tuple[str, int, Refusal]]] = [
    ("no token, of another scheme, or of another key, issuer, service or body", 401, Refusal.BAD_TOKEN),
    ("a token that expired, or with claims too many", 401, Refusal.BAD_TOKEN),
    ("any token, where the file of public keys has no usable one", 401, Refusal.BAD_TOKEN),
    ("more than 64 KiB", 413, Refusal.TOO_LARGE),
    ("a body that never ends", 408, Refusal.INVALID),
    ("a setpoint for another service", 409, Refusal.OTHER_SERVICE),
    ("of an older leader", 409, Refusal.STALE_EPOCH),
    ("of an older generation", 409, Refusal.STALE_GENERATION),
    ("the same generation with another body", 409, Refusal.CONFLICT),
    ("a knob that this engine cannot move", 422, Refusal.UNSUPPORTED),
]
