"""The Kubernetes API in memory, as far as the reconciler uses it: field ownership, preconditions, garbage collection.

For tests that crash the operator at every write, or show it the past: hundreds of runs that a real API server would
take hours for. What is modelled here is held against the real one by `tests/apiserver`: the same scenarios run there.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flyball_operator.api import names
from flyball_operator.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    UnknownKindError,
)
from flyball_operator.kube.resources import DEPLOYMENTS, VOLUME_CLAIMS, Resource

Object = dict[str, Any]
#: A leaf of an object, as the keys on the way to it; `(field, key)` steps into an item of a keyed list.
Path = tuple[Any, ...]

_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
    "ownerReferences": ("uid",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "conditions": ("type",),
}
#: Verbs that writes need; status has a resource of its own.
_RIGHTS = {"create": "create", "apply": "patch", "claim": "patch", "delete": "delete"}
#: Maps that are one field.
_ATOMIC = frozenset({"podSelector"})
_IDENTITY = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp"}
)


def copied(value: Any) -> Any:
    """A deep copy of an object, which is JSON and, where fields are managed, paths that nobody changes.

    Several times faster than `copy.deepcopy`, which took a third of all that tests of the reconciler took.
    """
    if isinstance(value, dict):
        return {field: copied(below) for field, below in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    if value is None or isinstance(value, str | int | float | tuple):
        return value
    return copy.deepcopy(value)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf below `value`; items of keyed lists by their key."""
    if isinstance(value, dict) and value:
        for field, below in value.items():
            keys = _KEYS.get(field)
            if field in _ATOMIC:
                yield (*path, field), below
            elif keys and isinstance(below, list) and below:
                for item in below:
                    key = next(item[name] for name in keys if name in item)
                    yield from leaves(item, (*path, (field, key)))
            else:
                yield from leaves(below, (*path, field))
    else:
        yield path, value


def grown(found: dict[Path, Any]) -> Object:
    """The object that has these leaves."""
    root: Object = {}
    items: dict[Path, Object] = {}
    for path, value in found.items():
        node: Any = root
        for depth, step in enumerate(path):
            last = depth == len(path) - 1
            if isinstance(step, tuple):
                here = path[: depth + 1]
                if here not in items:
                    items[here] = {}
                    node.setdefault(step[0], []).append(items[here])
                node = items[here]
            elif last:
                # An empty map of its own, as fields may be added to it.
                node[step] = {} if value == {} else value
            else:
                node = node.setdefault(step, {})
    return root


def _normal(path: Path, value: Any) -> Any:
    """Quantities come back in another spelling than they were sent in."""
    if path[0] == "spec" and {"requests", "limits"} & set(path) and value in ("1000m", "2000m"):
        return str(int(value[:-1]) // 1000)
    return value


def chosen(labels: Mapping[str, str], selector: str) -> bool:
    """Whether a selector of labels, with a value, one of several or that are there, chooses an object."""
    if among := re.fullmatch(r"(\S+) in \((.+)\)", selector):
        return labels.get(among[1]) in among[2].split(",")
    wanted = [part.partition("=") for part in selector.split(",") if part]
    return all(key in labels and (not sign or labels[key] == value) for key, sign, value in wanted)


def _told(event: Object, fields: str) -> bool:
    """Whether a selector of fields, each with a value that it has or has not, chooses an event."""
    about = event.get("involvedObject") or {}
    known = {f"involvedObject.{field}": about.get(field) for field in ("uid", "kind")}
    known["reason"] = event.get("reason")
    wanted = [part.partition("=") for part in fields.split(",") if part]
    return all((known[key.rstrip("!")] == value) is not key.endswith("!") for key, _, value in wanted)


class MemoryApi:
    """A server and, for each writer, the methods of `kube.api.KubeApi`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.writes = 0
        self.reads: Counter[tuple[str, str]] = Counter()
        """Reads by verb and plural."""
        self._version = itertools.count(100)
        self._made: Counter[tuple[str, str]] = Counter()
        self._past: list[dict[tuple[str, str, str], Object]] = []
        #: What mutating admission policies make of objects of a kind, in each write of the operator.
        self.policies: list[tuple[Resource, Callable[[Object], None]]] = []
        #: Kinds that the server does not have.
        self.unknown: set[Resource] = set()
        #: Kinds that the operator may not list.
        self.unlisted: set[Resource] = set()
        self.dry_runs: Counter[str] = Counter()
        """Dry runs of applies, by plural and name."""

    # What the tests do

    def put(self, resource: Resource, body: Object, *, manager: str = "user") -> Object:
        """Create or update an object as a user or a controller would: its fields are then `manager`'s."""
        key = self._key(resource, body["metadata"]["namespace"], body["metadata"]["name"])
        before = self.objects.get(key)
        metadata = {**(before or {}).get("metadata", {}), **copied(body["metadata"])}
        if "uid" not in metadata:
            metadata["uid"] = self._uid(resource, metadata["name"])
        status = body.get("status", (before or {}).get("status"))
        stored = {**copied(body), "metadata": metadata} | ({"status": copied(status)} if status else {})
        changed = before is None or before.get("spec") != stored.get("spec")
        metadata["generation"] = metadata.get("generation", 0) + changed
        metadata.setdefault("managedFields", [])
        return self._store(key, stored)

    def edit(self, resource: Resource, name: str, change: Callable[[Object], None], *, namespace: str = "ns") -> None:
        """Change an object in place."""
        body = copied(self.objects[self._key(resource, namespace, name)])
        change(body)
        self.put(resource, body)

    def remove(self, resource: Resource, name: str, *, namespace: str = "ns", cascade: str = "background") -> None:
        """Delete as a user would; dependents go at once, or lose their owner."""
        gone = self.objects.pop(self._key(resource, namespace, name))
        next(self._version)
        for key, found in list(self.objects.items()):
            owners = found["metadata"].get("ownerReferences") or []
            if not any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                continue
            if cascade == "orphan":
                orphan = copied(found)
                orphan["metadata"]["ownerReferences"] = []
                self._store(key, orphan)
            else:
                del self.objects[key]

    def find(self, resource: Resource, *, namespace: str = "ns") -> list[Object]:
        """All objects of a kind."""
        return [found for key, found in self.objects.items() if key[:2] == (resource.plural, namespace)]

    def one(self, resource: Resource, name: str, *, namespace: str = "ns") -> Object:
        """An object that must be there."""
        return self.objects[self._key(resource, namespace, name)]

    # What the operator does

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """A read."""
        self.reads["get", resource.plural] += 1
        self._knows(resource)
        found = self.shown().get(self._key(resource, namespace, name))
        if found is None:
            raise NotFoundError(f"{resource.plural} {name}")
        return found

    async def list(
        self,
        resource: Resource,
        namespace: str,
        *,
        selector: str = "",
        fields: str = "",
        metadata_only: bool = False,
        part: Callable[[Object], Object] = lambda whole: whole,
    ) -> tuple[list[Object], str]:
        """A list by labels, and of events by fields. Its items do not say their kind."""
        assert "list" in resource.verbs, f"the operator asks for no right to list {resource.plural}"
        self.reads["list", resource.plural] += 1
        if resource in self.unlisted:
            raise ForbiddenError(f"{resource.plural} is forbidden: cannot list resource in the namespace {namespace}")
        found = [
            part({field: value for field, value in item.items() if field not in ("apiVersion", "kind")})
            for key, item in self.shown().items()
            if key[:2] == (resource.plural, namespace)
            and chosen(item["metadata"].get("labels") or {}, selector)
            and _told(item, fields)
        ]
        return found, str(next(self._version))

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """POST."""
        key = self._key(resource, namespace, body["metadata"]["name"])
        self._begin("create", resource)
        if key in self.objects:
            raise AlreadyExistsError(str(key))
        self.counts["create", f"{resource.plural}/{body['metadata']['name']}"] += 1
        stored = grown({path: _normal(path, value) for path, value in leaves(body)})
        metadata = stored["metadata"]
        entry = {"manager": names.MANAGER_RECONCILER, "operation": "Update", "paths": _owned_paths(body)}
        metadata |= {"uid": self._uid(resource, metadata["name"]), "generation": 1, "managedFields": [entry]}
        self._defaults(resource, stored)
        return self._end(self._store(key, self._admitted(resource, stored)))

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        """Server-side apply with force."""
        self._begin("status" if subresource else "apply", resource)
        live, stored = self._applied(resource, body, subresource)
        key = self._key(resource, body["metadata"]["namespace"], body["metadata"]["name"])
        return self._end(live if stored == live else self._store(key, stored))

    async def dry_apply(self, resource: Resource, body: Object) -> Object:
        """Server-side apply with force, of which nothing is stored."""
        assert "patch" in resource.verbs, f"the operator asks for no right to patch {resource.plural}"
        self.dry_runs[f"{resource.plural}/{body['metadata']['name']}"] += 1
        return self._applied(resource, body, None)[1]

    async def json_patch(self, resource: Resource, namespace: str, name: str, patch: Sequence[Object]) -> Object:
        """A JSON patch of managed fields, as a claim makes it, or of data."""
        self._begin("claim", resource)
        key = self._key(resource, namespace, name)
        values = {step["path"].rsplit("/", 1)[-1]: step["value"] for step in patch}
        found = self._matching(key, values)
        live = {**found, "metadata": dict(found["metadata"])}
        for field, holder in (("managedFields", live["metadata"]), ("data", live)):
            if field in values:
                holder[field] = copied(values[field])
        return self._end(self._store(key, self._admitted(resource, live)))

    async def delete(self, resource: Resource, namespace: str, name: str, *, uid: str) -> None:
        """DELETE with a UID."""
        self._begin("delete", resource)
        key = self._key(resource, namespace, name)
        self._matching(key, {"uid": uid})
        self.counts["delete", f"{resource.plural}/{name}"] += 1
        del self.objects[key]
        self._end({})

    # Inside

    def shown(self) -> dict[tuple[str, str, str], Object]:
        """What reads show: the present. A lagging server shows something else."""
        return self.objects

    def past(self, back: int) -> dict[tuple[str, str, str], Object]:
        """Everything as it was so many writes ago."""
        return self._past[-back] if back and len(self._past) >= back else self.objects

    def _uid(self, resource: Resource, name: str) -> str:
        """The same in every run, so that runs can be compared."""
        self._made[resource.plural, name] += 1
        return f"{resource.plural}-{name}-{self._made[resource.plural, name]}"

    def _begin(self, verb: str, resource: Resource) -> None:
        right = _RIGHTS.get(verb)
        assert right is None or right in resource.verbs, f"the operator asks for no right to {right} {resource.plural}"
        self._knows(resource)
        self.writes += 1

    def _knows(self, resource: Resource) -> None:
        if resource in self.unknown:
            raise UnknownKindError(resource.plural)

    def _end(self, answer: Object) -> Object:
        return answer

    def _applied(self, resource: Resource, body: Object, subresource: str | None) -> tuple[Object, Object]:
        """The object as it is, and as an apply leaves it."""
        metadata = body["metadata"]
        live = self._matching(self._key(resource, metadata["namespace"], metadata["name"]), metadata)
        entries = live["metadata"]["managedFields"]
        paths = _owned_paths(body)
        mine = next((entry for entry in entries if entry["operation"] == "Apply"), None)
        others = {path for entry in entries if entry is not mine for path in entry["paths"]}
        dropped = set(mine["paths"] if mine else ()) - set(paths) - others
        before = dict(leaves(live))
        found = {path: value for path, value in before.items() if path not in dropped}
        found |= {path: _normal(path, value) for path, value in leaves(body) if path in paths}
        overruled = {path for path in paths if before.get(path) != found[path]}
        stored = grown(found)
        if resource is VOLUME_CLAIMS and _fixed(stored, live) != _fixed(live, live):
            raise InvalidObjectError("spec is immutable after creation except resources.requests")
        managed = [item for item in entries if item is not mine and not overruled.intersection(item["paths"])]
        entry = {"manager": names.MANAGER_RECONCILER, "operation": "Apply", "paths": paths}
        stored["metadata"]["managedFields"] = [*managed, entry]
        if not subresource:
            stored = self._admitted(resource, stored)
        if not subresource and _without_status(stored) != _without_status(live):
            stored["metadata"]["generation"] += 1
        return live, stored

    def _admitted(self, resource: Resource, stored: Object) -> Object:
        """What mutating policies make of an object. They are no field managers."""
        changed = copied(stored)
        for kind, change in self.policies:
            if kind is resource:
                change(changed)
        return dict(changed)

    def _matching(self, key: tuple[str, str, str], wanted: Object) -> Object:
        live = self.objects.get(key)
        if live is None:
            raise ConflictError("no such object, and its UID was given")
        for field in ("uid", "resourceVersion"):
            if wanted.get(field) not in (None, live["metadata"][field]):
                raise ConflictError(f"another {field}")
        return live

    def _store(self, key: tuple[str, str, str], body: Object) -> Object:
        # Stored objects are never changed in place, so a copy of the table is a copy of everything.
        self._past = [*self._past[-50:], dict(self.objects)]
        body["metadata"]["resourceVersion"] = str(next(self._version))
        self.objects[key] = body
        return body

    def _defaults(self, resource: Resource, stored: Object) -> None:
        if resource is DEPLOYMENTS:
            stored["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"

    @staticmethod
    def _key(resource: Resource, namespace: str, name: str) -> tuple[str, str, str]:
        return (resource.plural, namespace, name)


class CrashError(Exception):
    """The operator died, at this moment."""


class CrashingApi(MemoryApi):
    """Kills the operator once, at one write: just before it, or when it is done but not yet known."""

    def __init__(self, at: int, *, after: bool) -> None:
        super().__init__()
        self._at = at
        self._after = after

    def _begin(self, verb: str, resource: Resource) -> None:
        super()._begin(verb, resource)
        if self.writes == self._at and not self._after:
            raise CrashError

    def _end(self, answer: Object) -> Object:
        if self.writes == self._at and self._after:
            self._at = -1
            raise CrashError
        return super()._end(answer)


def _owned_paths(body: Object) -> list[Path]:
    """Leaves that an applier owns: not identity."""
    skipped = ("apiVersion", "kind")
    return [
        path
        for path, _ in leaves(body)
        if path[0] not in skipped and not (path[0] == "metadata" and path[1] in {*_IDENTITY, "name", "namespace"})
    ]


def _fixed(claim: Object, live: Object) -> Object:
    """What of a claim's spec nobody can change. One that has no class may still be given one."""
    free = {"resources"} | ({"storageClassName"} - live["spec"].keys())
    return {field: value for field, value in claim["spec"].items() if field not in free}


def _without_status(found: Object) -> Object:
    return {field: value for field, value in found.items() if field not in ("status", "metadata")}
