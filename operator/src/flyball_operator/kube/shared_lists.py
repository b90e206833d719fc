"""Lists by the value of a label: those that are wanted while one is under way become one request after it.

At a start a thousand services are looked at, some at a time, and of each the same lists are read. The API server looks
through all objects of a namespace for each list. So a list for eight services costs it little more than one for one.
A list that nobody else waits for is sent at once.

Events are the dearest. The API server keeps none in memory: of 15,000 it decodes each for every list, a third of a
second of processor, whatever is asked for. Two hundred pods that wait, each asked about alone, take all it has.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Final

from flyball_operator.api.objects import Object
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.resources import EVENTS, Resource

#: Values of one request: its address has them all, and 50 UIDs are 2 KB of the 8 KB that proxies take.
MOST_VALUES: Final = 50

#: The field of an event that names what it is about. A selector has one value of a field, so of several objects all
#: events are asked for, but those that a rollout makes by the thousand and that give no reason for a wait. `Pulled`
#: stays, as it says that the wait for volumes is over. Of several StatefulSets all of theirs are asked for, as
#: `SuccessfulCreate` says that the wait for a pod is over.
_ABOUT: Final = "involvedObject.uid"
_TELLING: Final = ",".join(
    f"reason!={reason}"
    for reason in ("Scheduled", "Created", "Started", "Killing", "SuccessfulCreate", "ScalingReplicaSet")
)
_OF_STATEFUL_SETS: Final = "involvedObject.kind=StatefulSet"
_OF_NOBODY: Final[Object] = {}

#: Resource, namespace, and the label, of events the fields of a request for several objects.
_Kind = tuple[Resource, str, str]
_Waiting = tuple[str, "asyncio.Future[list[Object]]"]


class SharedLists:
    """What callers share. It is used by one event loop."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._waiting: defaultdict[_Kind, list[_Waiting]] = defaultdict(list)
        self._under_way: dict[_Kind, asyncio.Task[None]] = {}

    async def of(self, resource: Resource, namespace: str, label: str, value: str) -> list[Object]:
        """The objects of a kind in a namespace whose label has this value, by a request that is sent after this call.

        Raises `ClusterError`, and to all who share the request the same.
        """
        return await self._share((resource, namespace, label), value)

    async def events(self, namespace: str, about: str) -> list[Object]:
        """Events about the object of this UID, likewise; of a StatefulSet, not all."""
        return await self._share((EVENTS, namespace, _TELLING), about)

    async def events_of_stateful_set(self, namespace: str, about: str) -> list[Object]:
        """Events about the StatefulSet of this UID, likewise."""
        return await self._share((EVENTS, namespace, _OF_STATEFUL_SETS), about)

    async def _share(self, kind: _Kind, value: str) -> list[Object]:
        answer: asyncio.Future[list[Object]] = asyncio.get_running_loop().create_future()
        self._waiting[kind].append((value, answer))
        if kind not in self._under_way:
            self._under_way[kind] = asyncio.create_task(self._ask(kind))
        return await answer

    async def _ask(self, kind: _Kind) -> None:
        """Send requests until nobody waits."""
        try:
            # Whoever asks in the same turn of the loop is in the first request.
            await asyncio.sleep(0)
            while waiting := self._waiting[kind]:
                self._waiting[kind] = waiting[MOST_VALUES:]
                await self._answer(kind, [one for one in waiting[:MOST_VALUES] if not one[1].done()])
        finally:
            del self._under_way[kind]
            for _, answer in self._waiting.pop(kind, ()):
                answer.cancel()

    async def _answer(self, kind: _Kind, waiting: list[_Waiting]) -> None:
        values = {value for value, _ in waiting}
        if not values:
            return
        try:
            found = await (self._about if kind[0] is EVENTS else self._labelled)(kind, values)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for value, answer in waiting:
                # One that nobody waits for any more was cancelled.
                if not answer.done():
                    answer.set_result(found.get(value, []))
        finally:
            for _, answer in waiting:
                answer.cancel()

    async def _labelled(self, kind: _Kind, values: Set[str]) -> Mapping[str, list[Object]]:
        resource, namespace, label = kind
        chosen = f"{label} in ({','.join(sorted(values))})" if len(values) > 1 else f"{label}={min(values)}"
        items, _ = await self._api.list(resource, namespace, selector=chosen)
        return _grouped(((item["metadata"].get("labels") or {}).get(label, ""), item) for item in items)

    async def _about(self, kind: _Kind, values: Set[str]) -> Mapping[str, list[Object]]:
        resource, namespace, of_several = kind

        def wanted(event: Object) -> Object:
            return event if event["involvedObject"].get("uid") in values else _OF_NOBODY

        fields = of_several if len(values) > 1 else f"{_ABOUT}={min(values)}"
        items, _ = await self._api.list(resource, namespace, fields=fields, part=wanted)
        return _grouped((item["involvedObject"]["uid"], item) for item in items if item)


def _grouped(items: Iterable[tuple[str, Object]]) -> Mapping[str, list[Object]]:
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for value, item in items:
        found[value].append(item)
    return found
