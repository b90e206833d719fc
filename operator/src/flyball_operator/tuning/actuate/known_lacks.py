"""What the pods of a service have said that their engines lack."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from flyball_engine.contract import AnyKnob, OrderKnob, ReadBack, Setpoint
from flyball_operator.engines.errors import EngineError
from flyball_operator.tuning.actuate.engine_handle import is_unknown
from flyball_operator.tuning.actuate.lacks import Lacks

_CLASSES: Final = "these classes of requests"


class KnownLacks:
    """What each pod of a service has said that its engine lacks, by UID, be it Ready or not.

    It is kept through restarts, because these change no image: an engine that starts is to be told what it can do, or
    it would wait for a setpoint in vain. Where no governed pod is left, those that come are likely as the last.
    """

    def __init__(self) -> None:
        self.lacks = Lacks()
        self._read: dict[str, ReadBack] = {}
        self._unknown: dict[str, dict[AnyKnob, str]] = {}

    @property
    def governed(self) -> bool:
        """Whether some pod has said that its engine is governed."""
        return any(found.governed for found in self._read.values())

    def keep(self, uids: Collection[str]) -> None:
        """Forget the pods that are gone."""
        self._read = {uid: found for uid, found in self._read.items() if uid in uids}
        self._unknown = {uid: found for uid, found in self._unknown.items() if uid in uids}
        self._note()

    def told(self, uid: str, read_back: ReadBack) -> None:
        """Take a read-back, without its steps, in."""
        self._read[uid] = read_back
        self._note()

    def refused(self, uid: str, sent: Setpoint, answer: EngineError) -> None:
        """Take in that a pod did not accept a setpoint: maybe its plugin is older than some field."""
        fields = {OrderKnob.ON_TIME: (sent.on_time, "the on-time order"), OrderKnob.CLASSES: (sent.classes, _CLASSES)}
        for knob, (asked, what) in fields.items():
            if asked is not None and is_unknown(answer, knob):
                self._unknown.setdefault(uid, {})[knob] = f"the plugin in the pod is older than {what}"
        self._note()

    def _note(self) -> None:
        """One that is not governed is told less, the others are not."""
        read = self._read.items()
        found = Lacks.of((one, self._unknown.get(uid, {})) for uid, one in read if one.governed)
        # While they are equal, they shall be the same: what is made of them is not made anew then.
        if self.governed and found != self.lacks:
            self.lacks = found
