"""The command `python3 -m flyball_engine.launch.await_leader`, which a worker runs before it is told to end.

The leader of the group is told to end at the same time. It first finishes the requests that run, and needs its workers
for them. So this waits until the leader listens no more. The pod's grace period bounds the wait.

It asks the address that the launcher has noted. The leader's name goes before the leader does, since a LeaderWorkerSet
deletes the Service of a group whose leader is to end.
"""

from __future__ import annotations

import errno
import tempfile
import time
from pathlib import Path
from typing import Final

from flyball_engine.launch import group

_AGAIN_SECONDS: Final = 1.0
#: What says that nobody listens there.
_GONE: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH})
#: So many attempts in a row that come to nothing else, such as time-outs, say so, too: one may be a lost packet.
MOST_FAILURES: Final = 5


def await_leader(folder: Path) -> None:
    """Wait until nobody listens at the address noted in this folder. Where none is noted, none was ever found."""
    address, failures = group.noted(folder), 0
    while address is not None and failures < MOST_FAILURES:
        try:
            group.connect(address)
            failures = 0
        except OSError as error:
            if error.errno in _GONE:
                return
            failures += 1
        time.sleep(_AGAIN_SECONDS)


if __name__ == "__main__":
    await_leader(Path(tempfile.gettempdir()))
