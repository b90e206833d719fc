"""Lists by the value of a label: those that are wanted while one is under way become one request after it.

At a start a thousand services are looked at, some at a time, and of each the same lists are read. The API server looks
through all objects of a namespace for each list. So a list for eight services costs it little more than one for one.
A list that nobody else waits for is sent at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from flyball_operator.api.objects import Object
from flyball_operator.kube.api import KubeApi
from flyball_operator.kube.resources import Resource

#: Values of one request: its address has them all, and 50 UIDs are 2 KB of the 8 KB that proxies take.
MOST_VALUES: Final = 50

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
        kind = (resource, namespace, label)
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
        resource, namespace, label = kind
        values = sorted({value for value, _ in waiting})
        if not values:
            return
        chosen = f"{label}={values[0]}" if len(values) == 1 else f"{label} in ({','.join(values)})"
        found: defaultdict[str, list[Object]] = defaultdict(list)
        try:
            items, _ = await self._api.list(resource, namespace, selector=chosen)
            for item in items:
                found[(item["metadata"].get("labels") or {}).get(label, "")].append(item)
        except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            for _, answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for value, answer in waiting:
                # One that nobody waits for any more was cancelled.
                if not answer.done():
                    answer.set_result(found[value])
        finally:
            for _, answer in waiting:
                answer.cancel()
