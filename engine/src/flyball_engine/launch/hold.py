"""The command `python3 -m flyball_engine.launch.hold`, before a part of an engine core is told to end.

The leader of the group is told to end at the same time, and first finishes the requests that run, for which it needs
all parts. So this waits until the leader listens no more. The pod's grace period bounds the wait.
"""

from __future__ import annotations

import os
import time
from typing import Final

from flyball_engine.launch import group

_AGAIN_SECONDS: Final = 1.0


def hold(found: group.Member) -> None:
    """Wait until nobody listens at the leader's, or until it is not to be found."""
    try:
        while True:
            group.listening(found)
            time.sleep(_AGAIN_SECONDS)
    except OSError:
        return


if __name__ == "__main__":
    hold(group.member(os.environ))
