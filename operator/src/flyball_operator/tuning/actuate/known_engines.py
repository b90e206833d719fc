"""What the engines of a service have said of themselves: what they lack, and what they were started with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flyball_engine.contract import AnyKnob, OrderKnob, ReadBack, Setpoint
from flyball_operator.engines.errors import EngineError
from flyball_operator.tuning.actuate.engine_handle import is_unknown
from flyball_operator.tuning.actuate.lacks import Lacks
from flyball_operator.tuning.ports import EnginePod

_CLASSES: Final = "these classes of requests"


class KnownEngines:
    """What each pod of a service has said, by UID, be it Ready or not.

    It is kept through restarts, because these change no image: an engine that starts is to be told what it can do, or
    it would wait for a setpoint in vain. Where no governed pod is left, those that come are likely as the last.

    A pod counts once it was Ready, and before that at its first start. So one that never comes up takes nothing from
    the others. Of pods that others make, only those that were Ready count: no such engine waits for a setpoint.
    """

    def __init__(self) -> None:
        #: Whether others make the pods.
        self.foreign = False
        self.lacks = Lacks()
        #: Whether some pod has said that its engine is governed.
        self.governed = False
        #: Most requests and tokens that any engine was started with; None while none has said so. Others clamp.
        self.ceilings: tuple[int, int] | None = None
        self._read: dict[str, ReadBack] = {}
        self._unknown: dict[str, dict[AnyKnob, str]] = {}
        self._were_ready: set[str] = set()
        self._counted: set[str] = set()

    def update_pods(self, pods: Sequence[EnginePod]) -> None:
        """Take note of the pods there are now, and forget those that are gone."""
        there = {pod.uid for pod in pods}
        self._read = {uid: found for uid, found in self._read.items() if uid in there}
        self._unknown = {uid: found for uid, found in self._unknown.items() if uid in there}
        self._were_ready = (self._were_ready & there) | {pod.uid for pod in pods if pod.ready}
        first_starts = () if self.foreign else (pod.uid for pod in pods if not pod.restarts)
        self._counted = self._were_ready.union(first_starts)
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
        counted = {uid: found for uid, found in self._read.items() if uid in self._counted}
        sizes = [core.ceilings for one in counted.values() for core in one.cores]
        self.ceilings = None
        if sizes:
            self.ceilings = max(one.max_num_seqs for one in sizes), max(one.max_num_batched_tokens for one in sizes)
        self.governed = any(one.governed for one in counted.values())
        found = Lacks.of((one, self._unknown.get(uid, {})) for uid, one in counted.items() if one.governed)
        # While they are equal, they shall be the same: what is made of them is not made anew then.
        if self.governed and found != self.lacks:
            self.lacks = found
