"""A pod that is one of a group over several nodes, as a LeaderWorkerSet makes them: which part of the engine it runs.

With data-parallel ranks, each pod has its own API server and its share of them. Else one engine core spans the pods:
the leader has its scheduler and the API server, and workers have the rest. They find each other by the leader's
address.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flyball_engine.launching import GROUP_PORT

#: What a LeaderWorkerSet tells each container of its pods.
_LEADER: Final = "LWS_LEADER_ADDRESS"
_INDEX: Final = "LWS_WORKER_INDEX"
#: Seconds between two attempts to reach the leader, for one of them, and between two lines that say so.
_AGAIN_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 3.0
_TOLD_SECONDS: Final = 30.0
#: File with the leader's address.
_NOTE: Final = "flyball-leader-address"
#: vLLM's argument for a process that has workers of an engine core alone.
HEADLESS: Final = "--headless"


class NoGroupError(Exception):
    """The environment does not say which pod of which group this is; the message names what lacks."""


@dataclass(frozen=True)
class Member:
    """Which pod of a group this is: its index, 0 for the leader, and the leader's name."""

    index: int
    leader: str

    @property
    def leads(self) -> bool:
        """Whether it is the leader."""
        return self.index == 0


def member(variables: Mapping[str, str]) -> Member:
    """What the environment says. Raises `NoGroupError`."""
    index, leader = variables.get(_INDEX, ""), variables.get(_LEADER, "")
    if not index.isdecimal() or not leader:
        raise NoGroupError(f"a pod of several nodes needs {_INDEX} and {_LEADER}, which a LeaderWorkerSet sets")
    return Member(int(index), leader)


def arguments(found: Member, *, ranks: int, address: str) -> list[str]:
    """What vLLM is told of the pod's ranks, of which each pod has so many. `address`: the leader's, as a number.

    Each pod balances over its own ranks alone; the Service does so over the pods. With one rank there is nothing to
    balance. That vLLM refuses for models without experts, in clear words only where it is asked for so.
    """
    several = [
        f"--data-parallel-size-local={ranks}",
        f"--data-parallel-start-rank={found.index * ranks}",
        "--data-parallel-hybrid-lb",
    ]
    of_pod = [f"--data-parallel-rank={found.index}"] if ranks == 1 else several
    return [*of_pod, f"--data-parallel-address={address}", f"--data-parallel-rpc-port={GROUP_PORT}"]


def arguments_of_core(found: Member, *, nodes: int, address: str) -> list[str]:
    """What vLLM is told of a pod of one engine core over so many. `address`: the leader's, as a number.

    A worker starts no API server, whatever number of them the user wants.
    """
    headless = [] if found.leads else [HEADLESS, "--api-server-count=0"]
    of_group = [f"--nnodes={nodes}", f"--node-rank={found.index}"]
    return [*of_group, f"--master-addr={address}", f"--master-port={GROUP_PORT}", *headless]


def leader_address(found: Member, say: Callable[[str], None]) -> str:
    """The leader's address, once it listens there. vLLM binds to it, so a name would not do.

    A leader that was replaced has another address, which DNS may tell late. So the name is asked anew each time. The
    start-up probe of the pod, or of the leader, bounds the wait.
    """
    if found.leads:
        return _resolved(socket.gethostname())
    told: float | None = None
    while True:
        try:
            return listening(found)
        except OSError as error:
            if told is None or time.monotonic() - told >= _TOLD_SECONDS:
                told = time.monotonic()
                say(f"waiting for the leader {found.leader}: {error}")
            time.sleep(_AGAIN_SECONDS)


def listening(found: Member) -> str:
    """The leader's address, where it listens. Raises OSError."""
    address = _resolved(found.leader)
    connect(address)
    return address


def connect(address: str) -> None:
    """Does nothing where the leader listens at its address, a number. Raises OSError."""
    with socket.create_connection((address, GROUP_PORT), timeout=_CONNECT_SECONDS):
        pass


def note(address: str, folder: Path) -> None:
    """Keep the leader's address in this folder, for whoever asks later. Raises OSError."""
    unnamed = folder / f"{_NOTE}.new"
    unnamed.write_text(address)
    unnamed.replace(folder / _NOTE)


def noted(folder: Path) -> str | None:
    """The leader's address, as kept in this folder; None where there is none."""
    try:
        return (folder / _NOTE).read_text() or None
    except OSError:
        return None


def _resolved(name: str) -> str:
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
