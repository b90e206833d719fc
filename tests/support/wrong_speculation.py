"""Wrong speculative decoding, a part of `wrong_manifests.WRONG`."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Wrong

_WHERE = "spec.batching.speculative"
_NGRAM = {"method": "ngram", "numSpeculativeTokens": 3}
_CACHED = {"uri": "hf://Qwen/Qwen3-8B", "cache": {"claimName": "models"}}
_EAGLE = {"method": "eagle3", "numSpeculativeTokens": 3, "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}


def _wrong(id: str, wrong: dict[str, Any], where: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    right = _EAGLE if wrong.get("method") in ("eagle3", "medusa") else _NGRAM
    return Wrong(f"speculation {id}", {_WHERE: wrong}, {_WHERE: right}, f"{_WHERE}{where}", says, server)


WRONG_SPECULATION = (
    *(
        _wrong(
            f"of {tokens} tokens",
            _NGRAM | {"numSpeculativeTokens": tokens},
            ".numSpeculativeTokens",
            "must be a whole number, greater than or equal to 1 and less than or equal to 16 (Most tokens that a step",
            server,
        )
        for tokens, server in ((0, "greater than or equal to 1"), (17, "less than or equal to 16"))
    ),
    _wrong("by eagle without a model", {"method": "eagle3", "numSpeculativeTokens": 3}, ".model", "is required beside"),
    _wrong("by n-grams with a model", _NGRAM | {"model": "gpt2"}, ".model", "may not stand beside the methods ngram"),
    _wrong("with a model of two words", _EAGLE | {"model": "two words"}, ".model", "must not hold spaces"),
    *(
        Wrong(
            f"speculation with the model {uri}",
            {_WHERE: _EAGLE | {"model": uri}},
            {_WHERE: _EAGLE | {"model": right}},
            f"{_WHERE}.model",
            "must be a repository of Hugging Face such as org/name, or a folder such as /models/draft: vLLM reads",
        )
        for uri, right in (
            ("hf://yuhuili/EAGLE3", "yuhuili/EAGLE3"),
            ("file:///models/eagle", "/models/eagle"),
            ("s3://models/eagle", "/mnt/models/eagle"),
            ("oci://r.example.com/eagle:v1", "unsloth/Qwen3-0.6B-GGUF:Q4_K_M"),
        )
    ),
    Wrong(
        "steps without room for drafts",
        {_WHERE: _NGRAM, "spec.batching.maxNumSeqs": 256, "spec.batching.maxNumBatchedTokens": 1023},
        {_WHERE: _NGRAM, "spec.batching.maxNumSeqs": 256, "spec.batching.maxNumBatchedTokens": 1024},
        "spec.batching.maxNumBatchedTokens",
        "must be at least maxNumSeqs times (1 + speculative.numSpeculativeTokens)",
    ),
    Wrong(
        "drafts of a model that nobody downloads",
        {_WHERE: _EAGLE, "spec.model": _CACHED},
        {_WHERE: _EAGLE | {"model": "/models/eagle"}, "spec.model": _CACHED},
        f"{_WHERE}.model",
        "must be a folder beside spec.model.cache or an oci:// model",
    ),
    Wrong(
        "speculation by a shorter argument, too",
        {_WHERE: _NGRAM, "spec.engine.args": ["--spec-method=ngram"]},
        {_WHERE: _NGRAM, "spec.engine.args": []},
        "spec.engine.args",
        "may not hold --speculative-config where spec.batching.speculative says it",
    ),
    Wrong(
        "as many drafts as requests",
        {_WHERE: _NGRAM, "spec.batching.maxNumSeqs": 3},
        {_WHERE: _NGRAM, "spec.batching.maxNumSeqs": 4},
        "spec.batching.maxNumSeqs",
        "must be greater than speculative.numSpeculativeTokens",
    ),
    Wrong(
        "speculation by an argument, too",
        {_WHERE: _NGRAM, "spec.engine.args": ["--speculative-config={}"]},
        {_WHERE: _NGRAM, "spec.engine.args": []},
        "spec.engine.args",
        "may not hold --speculative-config where spec.batching.speculative says it",
    ),
)
