"""Wrong prefill/decode disaggregation, a part of `wrong_manifests.WRONG`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Wrong

_WHERE = "spec.engine.kvTransfer"
_PRODUCER = {"role": "Producer", "connector": "NixlConnector"}
_CONSUMER = _PRODUCER | {"role": "Consumer"}
_FIRST = {"name": "first", "metric": "TimeToFirstToken", "threshold": "1s"}
_TOKEN = {"name": "token", "metric": "TimePerOutputToken", "threshold": "50ms"}
_GAP = {"name": "token", "metric": "InterTokenLatency", "threshold": "50ms"}


def _wrong(id: str, field: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:  # noqa: A002
    refused, accepted = ({_WHERE: _PRODUCER | {field: value}} for value in (wrong, right))
    return Wrong(f"KV transfer {id}", refused, accepted, f"{_WHERE}.{field}", says, server)


WRONG_KV_TRANSFER = (
    _wrong(
        "with vLLM's own word for a role",
        "role",
        "kv_producer",
        "Producer",
        "'Producer', 'Consumer' or 'Both'",
        "Unsupported value",
    ),
    _wrong("by no class", "connector", "nixl-connector", "NixlConnector", "must be the name of a class"),
    _wrong("by a file", "connectorModulePath", "a/b.py", "a.b", "must be the name of a Python module"),
    _wrong("through a device by number", "bufferDevice", "cuda:0", "cuda", "must be a device that vLLM knows"),
    _wrong(
        "whose failures are ignored",
        "loadFailurePolicy",
        "Ignore",
        "Recompute",
        "'Recompute' or 'Fail'",
        "Unsupported value",
    ),
    Wrong(
        "KV transfer without a connector",
        {_WHERE: {"role": "Producer"}},
        {_WHERE: _PRODUCER},
        f"{_WHERE}.connector",
        "required",
        "Required value",
    ),
    *(
        Wrong(
            f"KV transfer and argument {argument}",
            {_WHERE: _PRODUCER, "spec.engine.args": [argument]},
            {_WHERE: _PRODUCER, "spec.engine.args": ["--max-model-len=16384"]},
            "spec.engine.args",
            "may not hold --kv-transfer-config where spec.engine.kvTransfer says it",
        )
        for argument in ("--kv-transfer-config={}", "--kv-transfer-config.kv_role=kv_both", "--kv_offloading_size=8")
    ),
    *(
        Wrong(
            f"producer with an objective on {objective['metric']}",
            {_WHERE: _PRODUCER, "spec.objectives": [_FIRST, objective]},
            {_WHERE: _CONSUMER, "spec.objectives": [_FIRST, objective]},
            "spec.objectives",
            "each ends with its first token",
        )
        for objective in (_TOKEN, _GAP)
    ),
    Wrong(
        "producer that drafts",
        {_WHERE: _PRODUCER, "spec.batching.speculative": {"method": "ngram", "numSpeculativeTokens": 3}},
        {_WHERE: _CONSUMER, "spec.batching.speculative": {"method": "ngram", "numSpeculativeTokens": 3}},
        "spec.batching.speculative",
        "may not stand where spec.engine.kvTransfer.role is Producer",
    ),
    *(
        Wrong(
            f"{role} that refuses what is late",
            {_WHERE: _PRODUCER | {"role": role}, "spec.objectives": [_FIRST], "spec.tuning.overload": "Shed"},
            {_WHERE: _PRODUCER, "spec.objectives": [_FIRST], "spec.tuning.overload": "Shed"},
            "spec.tuning.overload",
            "must be Queue where spec.engine.kvTransfer.role is Consumer or Both",
        )
        for role in ("Consumer", "Both")
    ),
)
