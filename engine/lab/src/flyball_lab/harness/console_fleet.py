"""Services for the console: recordings played again, each with its tuner's knowledge at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from flyball_lab.harness.manifests import Object
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.recordings import Recording
from flyball_operator.api.desire import Desire, read_desire
from flyball_operator.app.console_server import ConsoleServer
from flyball_operator.tuning.insight import Insight

NAMESPACE: Final = "team-a"
#: What the reconciler would say: recordings have the tuner alone.
_RECONCILED: Final = [
    {"type": kind, "status": "True", "reason": reason, "message": ""}
    for kind, reason in (("Accepted", "Accepted"), ("Available", "EndpointsReady"), ("Ready", "Serving"))
]


@dataclass
class Fleet:
    """Services and what is known beside (implements `console.source.Source`)."""

    desires: Sequence[Desire] = ()
    insights: Mapping[str, Insight] = field(default_factory=dict)

    def services(self) -> Iterable[Desire]:
        """All of them."""
        return self.desires

    def insight(self, service_uid: str) -> Insight | None:
        """What is known of one."""
        return self.insights.get(service_uid)

    @classmethod
    def recorded(cls, *names: str) -> Fleet:
        """A service of each recording, of its name."""
        desires, insights = [], {}
        for name in names:
            recording = Recording.named(name)
            replayed = recording.replay()
            desires.append(read_desire(reconciled(replayed.services[-1], name, pods=len(recording.pods))))
            insights[name] = replayed.insight
        return cls(desires, insights)


def reconciled(raw: Object, name: str, *, pods: int) -> Object:
    """A service of a recording as an API server has it, under this name, with so many Ready pods."""
    metadata = raw["metadata"] | {"namespace": NAMESPACE, "name": name, "uid": name}
    told = raw.get("status") or {}
    status = {"replicas": pods, "readyReplicas": pods} | told
    status["conditions"] = [*_RECONCILED, *told.get("conditions", ())]
    return raw | {"metadata": metadata, "status": status}


@asynccontextmanager
async def serving(fleet: Fleet, listening: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address of a console that shows them. `listening`: what it listens on, of this machine's."""
    port = free_port()
    server = ConsoleServer(fleet, listening, port)
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        await server.stop()


@contextmanager
def served(fleet: Fleet) -> Iterator[str]:
    """A console in a thread of its own: a browser waits for it in this one."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[str] = []

    async def serve() -> None:
        async with serving(fleet) as address:
            found.append(address)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
