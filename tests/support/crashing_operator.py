"""An operator one of whose parts ends as soon as the file named by CRASH_FILE exists.

CRASH says which: `worker` raises; any other word begins the name of a task, which is cancelled as by a stranger.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from flyball_operator.api.service_key import Key
from flyball_operator.app.main import main
from flyball_operator.reconcile.queue import KeyQueue
from flyball_operator.reconcile.reconciler import Reconciler

_work = Reconciler.work


def _look(die: asyncio.Future[None], how: str) -> None:
    if not Path(os.environ["CRASH_FILE"]).exists():
        die.get_loop().call_later(0.05, _look, die, how)
    elif how == "worker":
        die.set_exception(RuntimeError("a worker dies"))
    else:
        for task in asyncio.all_tasks():
            if task.get_name().startswith(how):
                task.cancel()


async def _work_until(self: Reconciler, queue: KeyQueue[Key]) -> None:
    die: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _look(die, os.environ.get("CRASH", "worker"))
    await asyncio.gather(_work(self, queue), die)


if __name__ == "__main__":
    Reconciler.work = _work_until  # type: ignore[method-assign]
    sys.exit(main())
