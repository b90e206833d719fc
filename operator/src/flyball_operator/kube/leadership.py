"""Whether this process may write: what everybody who writes asks of the election. No call to the API server here."""

from __future__ import annotations

from typing import Protocol


class Leadership(Protocol):
    """Whether this process may write, and under which epoch."""

    def may_act(self) -> bool:
        """True while the lease is surely ours. Ask immediately before each write."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of this leadership: larger than that of every leader before. 0 while not leading."""
        ...


class RaisableLeadership(Leadership, Protocol):
    """A leadership whose epoch can be raised."""

    def raise_epoch(self, above: int) -> None:
        """Have the Lease take an epoch above this one. `epoch` shows it once the Lease has it, if it is let."""
        ...
