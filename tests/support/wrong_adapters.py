"""Wrong manifests about LoRA adapters, beside their nearest good neighbours."""

from __future__ import annotations

from typing import Any

from flyball_engine.adapters import MOST_ADAPTERS
from flyball_lab.harness.manifests import Wrong

_ADAPTERS = "spec.adapters"
_GOOD = {"name": "sql", "uri": "hf://org/sql"}
_NAME = "must begin and end with a-z or 0-9"
_URI = "must be hf://<organisation>/<adapter> or file:///<path in the pod>"
_OWN = "may not hold the model's own name"


def _one(id: str, field: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:  # noqa: A002
    def listed(value: Any) -> dict[str, Any]:
        return {_ADAPTERS: [_GOOD | {field: value}]}

    return Wrong(id, listed(wrong), listed(right), f"{_ADAPTERS}[0].{field}", says, server)


def _list(id: str, wrong: list[Any], right: list[Any], says: str, server: str = "") -> Wrong:  # noqa: A002
    return Wrong(id, {_ADAPTERS: wrong}, {_ADAPTERS: right}, _ADAPTERS, says, server)


def _numbered(count: int) -> list[dict[str, str]]:
    return [_GOOD | {"name": f"a-{number}"} for number in range(count)]


WRONG_ADAPTERS = (
    _one("adapter in capitals", "name", "SQL", "sql-v2.1_b", _NAME),
    _one("adapter that ends in a hyphen", "name", "sql-", "sql-2", _NAME),
    _one("adapter with a slash", "name", "org/sql", "org.sql", _NAME),
    _one("adapter without a name", "name", "", "s", "at least 1 character", "at least 1 char"),
    _one("long name of an adapter", "name", "a" * 64, "a" * 63, "at most 63 characters", "may not be more than 63"),
    _one("adapter in a bucket", "uri", "s3://adapters/sql", "hf://org/sql", _URI),
    _one("adapter on a claim", "uri", "pvc://adapters/sql", "file:///adapters/sql", _URI),
    _one("adapter of a web server", "uri", "https://example.com/sql", "hf://org/sql.v1", _URI),
    _one("adapter without an organisation", "uri", "hf://sql", "hf://org/sql", _URI),
    _one("adapter by a relative path", "uri", "file://adapters/sql", "file:///adapters/sql", _URI),
    _one("adapter out of its folder", "uri", "file:///adapters/../sql", "file:///adapters/sql", _URI),
    _one(
        "revision in an adapter's uri",
        "uri",
        "hf://org/sql@v1",
        "hf://org/sql",
        "may not hold a revision: write it into",
    ),
    _one("adapter's revision that is an option", "revision", "--force", "refs/pr/1", "must be a branch, a tag or a"),
    Wrong(
        "revision of a folder",
        {_ADAPTERS: [_GOOD | {"uri": "file:///adapters/sql", "revision": "v1"}]},
        {_ADAPTERS: [_GOOD | {"revision": "v1"}]},
        f"{_ADAPTERS}[0].revision",
        "is of Hugging Face: a folder has no revisions",
    ),
    _list("two adapters of one name", [_GOOD, _GOOD], [_GOOD, _GOOD | {"name": "law"}], "Duplicate value"),
    _list(
        "more adapters than there may be",
        _numbered(MOST_ADAPTERS + 1),
        _numbered(MOST_ADAPTERS),
        f"at most {MOST_ADAPTERS} items",
        f"must have at most {MOST_ADAPTERS} items",
    ),
    Wrong(
        "adapter of the model's name",
        {"metadata.name": "chat", _ADAPTERS: [_GOOD | {"name": "chat"}]},
        {"metadata.name": "chat", "spec.model.servedName": "llm", _ADAPTERS: [_GOOD | {"name": "chat"}]},
        _ADAPTERS,
        _OWN,
    ),
    Wrong(
        "adapter of the served name",
        {"spec.model.servedName": "sql", _ADAPTERS: [_GOOD]},
        {"spec.model.servedName": "SQL", _ADAPTERS: [_GOOD]},
        _ADAPTERS,
        _OWN,
    ),
    Wrong(
        "adapters of plain vLLM",
        {"spec.engine.governed": False, "spec.tuning.mode": "Disabled", _ADAPTERS: []},
        {"spec.engine.governed": True, "spec.tuning.mode": "Disabled", _ADAPTERS: []},
        _ADAPTERS,
        "needs spec.engine.governed true: without the plugin nobody loads them",
    ),
)
