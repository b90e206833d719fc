"""What the engines of one service lack, and what of a policy they are given then. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flyball_engine.contract import (
    DEFAULT_CLASS,
    AnyKnob,
    Batching,
    Knob,
    Limits,
    OrderKnob,
    QueueKnob,
    QueueLimits,
    ReadBack,
    Setpoint,
)
from flyball_operator.tuning.policy import Policy
from flyball_operator.tuning.queueing import Queueing

#: What the tuner moves in every service; an engine that lacks another knob lacks nothing that is asked of it.
_TUNED: Final = (Knob.MAX_NUM_ACTIVE_SEQS, Knob.MAX_NUM_SCHEDULED_TOKENS)


@dataclass(frozen=True)
class Lacks:
    """`unsupported`: knobs that some governed pod cannot move live, and why.

    `ungated`: why some governed pod cannot refuse requests by a deadline, None if all can.
    """

    unsupported: Mapping[AnyKnob, str] = field(default_factory=dict)
    ungated: str | None = None

    @classmethod
    def of(cls, governed: Iterable[tuple[ReadBack, dict[AnyKnob, str]]]) -> Lacks:
        """Of pods whose engines are governed: what they say, and knobs that these do not know."""
        unsupported: dict[AnyKnob, str] = {}
        ungated = None
        for read_back, unknown in governed:
            unsupported |= read_back.unsupported | unknown
            ungated = read_back.ungated if ungated is None else ungated
        return cls(unsupported, ungated)

    @property
    def unordered(self) -> str | None:
        """Why some governed pod cannot serve prompts in the on-time order, None if all can."""
        # How fast prompts are processed is known of steps whose tokens are.
        needed = (OrderKnob.ON_TIME, Knob.MAX_NUM_SCHEDULED_TOKENS)
        return next((self.unsupported[knob] for knob in needed if knob in self.unsupported), None)

    @property
    def unclassed(self) -> str | None:
        """Why some governed pod cannot tell classes of requests apart, None if all can."""
        return self.unsupported.get(OrderKnob.CLASSES)

    @property
    def all_refuse(self) -> bool:
        """Whether every governed pod can refuse requests: a gate predicts by what steps are fitted to."""
        return self.ungated is None and Knob.MAX_NUM_SCHEDULED_TOKENS not in self.unsupported

    def supported_policy(self, policy: Policy) -> Policy:
        """The policy without what some pod cannot do: it would refuse the whole."""
        lacking = self.unsupported
        limits = Limits(**{knob.value: value for knob, value in policy.limits.given().items() if knob not in lacking})
        queued = None if QueueKnob.MAX_NUM_QUEUED_TOKENS in lacking else policy.queued_tokens
        if Knob.MAX_NUM_SCHEDULED_TOKENS in lacking:
            # A step is fitted into its time by its tokens, and a gate predicts by what steps are fitted to.
            return Policy(limits=limits, queued_tokens=queued)
        shed = None if self.ungated is not None else policy.shed
        on_time = None if self.unordered is not None else policy.on_time
        # Without a budget the model is for gate and order alone.
        step = policy.step if shed is not None or on_time is not None or policy.budget is not None else None
        due = policy.class_deadlines if shed is not None or on_time is not None else ()
        found = Policy(limits=limits, step=step, shed=shed, on_time=on_time, class_deadlines=due, queued_tokens=queued)
        return found.without_classes() if due and self.unclassed is not None else found

    def told(self, asked: Queueing, *, sheds: bool, drafts: bool = False) -> str:
        """All that is lacking of what is asked for, for people.

        `sheds`: requests are to be refused. `drafts`: engines speculate, at a depth that is moved.
        """
        tuned = (*_TUNED, Knob.NUM_SPECULATIVE_TOKENS) if drafts else _TUNED
        found = [f"{knob.value}: {self.unsupported[knob]}" for knob in tuned if knob in self.unsupported]
        if sheds and self.ungated is not None:
            found.append(f"overload Shed: {self.ungated}")
        return "; ".join(filter(None, [*found, asked.told(self.unsupported)]))


def supported_setpoint(setpoint: Setpoint, read_back: ReadBack | None) -> Setpoint:
    """What of a setpoint an engine can be told. Plain vLLM would refuse the whole, and counts requests alone."""
    if read_back is None or read_back.governed:
        return setpoint
    nothing: dict[str, object] = dict.fromkeys(("step", "shed", "on_time", "classes"))
    nothing |= {"limits": Limits(), "batching": Batching(), "queue": QueueLimits()}
    counted = tuple(one for one in setpoint.objectives if one.of_class == DEFAULT_CLASS)
    return setpoint.model_copy(update=nothing | {"objectives": counted})
