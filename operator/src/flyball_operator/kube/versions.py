"""Which objects each service has, and in which versions, by the labels that name the service.

Whoever has looked at a service sees here whether something of it was written since. Versions alone are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from flyball_operator.api import names
from flyball_operator.api.objects import Object, version_of
from flyball_operator.api.service_key import Key
from flyball_operator.kube.resources import INFERENCE_SERVICES, Resource
from flyball_operator.kube.store import Store

_NONE: Final[Mapping[str, int]] = MappingProxyType({})
#: EndpointSlices have it of their Service, which has the service's name.
_OF_SLICES: Final = "kubernetes.io/service-name"


class Versions:
    """Versions by service and UID.

    Services are among them, with 0: their status is written often, so whoever looks compares it by content.
    """

    def __init__(self) -> None:
        self._stores: dict[Resource, Store[Key]] = {}
        self._of: dict[Key, dict[str, int]] = {}

    def of(self, key: Key) -> Mapping[str, int]:
        """Versions of everything that is known of a service, by UID."""
        return self._of.get(key, _NONE)

    def observe(self, resource: Resource, found: Object, *, deleted: bool) -> None:
        """Take a watch event."""
        key, uid = _service_of(resource, found), str(found["metadata"]["uid"])
        store = self._stores.setdefault(resource, Store())
        before = store.get(uid)
        if deleted or key is None:
            store.drop(uid)
        else:
            store.put(uid, key.namespace, version_of(found), key)
        if before is not None:
            self._of.get(before, {}).pop(uid, None)
        self._note(resource, store, uid)

    def replace(self, resource: Resource, listed: Iterable[Object], version: int, namespace: str | None) -> None:
        """Take a list of a kind in a namespace, None for all of them."""
        store = self._stores.setdefault(resource, Store())
        known = [
            (str(found["metadata"]["uid"]), key.namespace, version_of(found), key)
            for found in listed
            if (key := _service_of(resource, found)) is not None
        ]
        store.replace(namespace, known, version)
        self._index()

    def forget(self, namespace: str | None) -> None:
        """Drop everything of a namespace, None for all."""
        for store in self._stores.values():
            store.forget(namespace)
        self._index()

    def _index(self) -> None:
        self._of = {}
        for resource, store in self._stores.items():
            for uid, _ in store.entries():
                self._note(resource, store, uid)

    def _note(self, resource: Resource, store: Store[Key], uid: str) -> None:
        entry = store.entry(uid)
        if entry is not None:
            version = 0 if resource is INFERENCE_SERVICES else entry.version
            self._of.setdefault(entry.value, {})[uid] = version


def _service_of(resource: Resource, found: Object) -> Key | None:
    """The service that an object says it is of; None if it names none."""
    metadata = found["metadata"]
    labels = metadata.get("labels") or {}
    named = metadata.get("name") if resource is INFERENCE_SERVICES else labels.get(names.LABEL_SERVICE)
    name = named or labels.get(_OF_SLICES)
    return Key(str(metadata.get("namespace")), str(name)) if name else None
