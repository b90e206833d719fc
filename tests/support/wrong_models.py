"""Wrong manifests about the volume that a model is downloaded to, beside their nearest good neighbours."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Wrong

_CACHE = "spec.model.cache"
_URI = {"spec.model.uri": "hf://org/m"}


def _cache(id: str, field: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:  # noqa: A002
    good = {**_URI, f"{_CACHE}.claimName": "models"}
    path = f"{_CACHE}.{field}"
    return Wrong(id, {**good, path: wrong}, {**good, path: right}, path, says, server)


WRONG_MODELS = (
    Wrong(
        "cache without a claim",
        {**_URI, _CACHE: {"path": "llm"}},
        {**_URI, _CACHE: {"path": "llm", "claimName": "models"}},
        f"{_CACHE}.claimName",
        "Field required",
        "Required value",
    ),
    _cache("cache with an empty claim", "claimName", "", "m", "at least 1 character", "at least 1 char"),
    _cache("claim in capitals", "claimName", "Models", "models.v1", "must be the name of a Kubernetes object"),
    _cache("claim with a path", "claimName", "models/llm", "models-llm", "must be the name of a Kubernetes object"),
    _cache("absolute path of a cache", "path", "/models", "models", "must be a relative path such as models/llm"),
    _cache("path out of a cache", "path", "a/../b", "a/b", "must be a relative path such as models/llm"),
    _cache("path with a space", "path", "a b", "a.b/c_d", "must be a relative path such as models/llm"),
    _cache("long path of a cache", "path", "p" * 257, "p" * 256, "at most 256 characters", "may not be more than 256"),
    _cache("revision with a space", "revision", "main branch", "main", "must be a branch, a tag or a commit"),
    _cache("revision that is an option", "revision", "--force", "refs/pr/1", "must be a branch, a tag or a commit"),
    _cache("revision out of the folder", "revision", "v1..2", "v1.2", "may not contain '--' or '..'"),
    _cache("revision with two hyphens", "revision", "a--b", "a-b", "may not contain '--' or '..'"),
    *(
        Wrong(
            f"cache of {uri}",
            {"spec.model.uri": uri, _CACHE: {"claimName": "models"}},
            {"spec.model.uri": "hf://gpt2", _CACHE: {"claimName": "models"}},
            _CACHE,
            "needs a uri that begins with hf://",
        )
        for uri in ("pvc://claim/m", "file:///m")
    ),
    *(
        Wrong(
            f"two revisions, {args[0]}",
            {**_URI, _CACHE: {"claimName": "models"}, "spec.engine.args": args},
            {
                **_URI,
                _CACHE: {"claimName": "models", "revision": "v1"},
                "spec.engine.args": ["--tokenizer-revision=v1"],
            },
            "spec.engine.args",
            "write it into spec.model.cache.revision",
        )
        for args in (["--revision=v1"], ["--revision", "v1"])
    ),
)
