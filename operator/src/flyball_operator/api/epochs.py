"""Which epochs of leaderships can be: election, status and tuning keep to the same. Pure."""

from __future__ import annotations

from typing import Final

#: Leaders in a row, at most, that wrote no status. A Lease made anew begins so far above the last epoch that any status
#: has, and the epoch is raised by no more to order above an engine.
UNRECORDED_LEADERS: Final = 1000
#: The largest epoch in a status that is believed. The Lease counts to 2³¹ - 1: at one leader every two seconds, or one
#: raise of 1000 an hour, the other half of that lasts for decades.
LARGEST_EPOCH: Final = 2**30
