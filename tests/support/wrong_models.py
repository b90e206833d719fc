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


def _claim(id: str, field: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:  # noqa: A002
    def asked(value: Any) -> dict[str, Any]:
        return {**_URI, f"{_CACHE}.claim": {"size": "1Gi", field: value}}

    return Wrong(id, asked(wrong), asked(right), f"{_CACHE}.claim.{field}", says, server)


#: Too little, or no amount.
_SIZES = (0, 100, "100", "1023Ki", "100m", "-1Gi", "100GB", "1 Gi", "")

WRONG_MODELS = (
    Wrong(
        "cache without a claim",
        {**_URI, _CACHE: {"path": "llm"}},
        {**_URI, _CACHE: {"path": "llm", "claimName": "models"}},
        _CACHE,
        "must have exactly one volume; accepted: claimName, claim",
    ),
    Wrong(
        "cache with two claims",
        {**_URI, _CACHE: {"claimName": "models", "claim": {"size": "1Gi"}}},
        {**_URI, _CACHE: {"claim": {"size": "1Gi"}}},
        _CACHE,
        "must have exactly one volume; accepted: claimName, claim",
    ),
    Wrong(
        "claim without a size",
        {**_URI, f"{_CACHE}.claim": {"storageClassName": "fast"}},
        {**_URI, f"{_CACHE}.claim": {"storageClassName": "fast", "size": "1Gi"}},
        f"{_CACHE}.claim.size",
        "Field required",
        "Required value",
    ),
    *(_claim(f"size {size!r} of a claim", "size", size, "1Mi", "of at least 1Mi, such as 100Gi") for size in _SIZES),
    _claim(
        "long size of a claim", "size", "1" * 33, "1" * 32, "of at least 1Mi, such as 100Gi", "may not be more than 32"
    ),
    _claim("class in capitals", "storageClassName", "Fast", "", "must be the name of a StorageClass"),
    _claim("class with a slash", "storageClassName", "a/b", "a.b", "must be the name of a StorageClass"),
    _claim("long class", "storageClassName", "c" * 254, "c" * 253, "at most 253 char", "may not be more than 253"),
    _claim("no access mode", "accessModes", [], ["ReadWriteMany"], "at least 1 item", "should have at least 1 items"),
    Wrong(
        "access mode that one pod alone has",
        {**_URI, f"{_CACHE}.claim": {"size": "1Gi", "accessModes": ["ReadWriteOncePod"]}},
        {**_URI, f"{_CACHE}.claim": {"size": "1Gi", "accessModes": ["ReadWriteOnce"]}},
        f"{_CACHE}.claim.accessModes[0]",
        "'ReadWriteMany' or 'ReadWriteOnce'",
        'supported values: "ReadWriteMany", "ReadWriteOnce"',
    ),
    _claim("deletion in small letters", "deletion", "delete", "Delete", "'Keep' or 'Delete'", '"Keep", "Delete"'),
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
        for uri in ("pvc://claim/m", "file:///m", "oci://r.example.com/m:v1")
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
