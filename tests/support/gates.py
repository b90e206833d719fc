"""Gates before made-up cores: what they published, and prompts that come."""

from __future__ import annotations

from typing import Any, Literal

from flyball_engine.batching.gate import AdmissionReason, Admitted, Arrival, CoreLoad, Gate
from flyball_engine.batching.prefill_rate import PrefillRate
from flyball_engine.contract import Setpoint, Shed
from flyball_engine.model import StepModel
from flyball_engine.vllm.gate import RequestGate
from flyball_lab.harness.engine import setpoint
from support.reflexes import a_budget

#: A step of 110 ms has 100 tokens.
MODEL = StepModel(t0=0.010, h=0.0, c1=0.001, c2=0.001, beta=0.0, g=0.0, kappa=1)
#: A thousand tokens take a second.
IDLE = CoreLoad(rate=PrefillRate(per_token=0.001))
#: One request decodes, and takes next to nothing.
BUSY = IDLE._replace(running=1)
#: Prompts wait, whatever comes.
FULL = IDLE._replace(running=64, waiting=1000, prefills=8)


def a_policy(
    deadline: float | None = 2.0,
    *,
    trusted: bool = True,
    margin: float = 1.0,
    refusal_status: Literal[503, 429] = 503,
    **fields: Any,
) -> Setpoint:
    """A setpoint with a deadline, None being none, and a step budget."""
    shed = (
        None if deadline is None else Shed(ttft_deadline_seconds=deadline, margin=margin, refusal_status=refusal_status)
    )
    return setpoint(1, step=a_budget(0.110, MODEL, trusted=trusted), shed=shed, **fields)


class GatedCores:
    """A gate before some cores, at time 0 unless told otherwise."""

    def __init__(self, *loads: CoreLoad, policy: Setpoint | None = None) -> None:
        self.loads: list[CoreLoad] | None = list(loads or [BUSY])
        self.gate = Gate(lambda: self.loads)
        self.gate.set_policy(policy or a_policy(), now=0.0)

    def publish(self, **changes: Any) -> None:
        """The only core is this far now."""
        assert self.loads is not None
        self.loads = [self.loads[0]._replace(**changes)]

    def ask(self, prompt: int, *, cached: tuple[int, ...] | None = None, now: float = 0.0) -> Admitted:
        return self.gate.decide(Arrival(prompt, cached), now=now)

    def expect(
        self, prompt: int, reason: AdmissionReason, *, cached: tuple[int, ...] | None = None, now: float = 0.0
    ) -> None:
        assert self.ask(prompt, cached=cached, now=now).reason is reason


def no_gate() -> RequestGate:
    """A gate that sees no core: everything is let in."""
    return RequestGate(Gate(lambda: None), lambda: 0.0, lambda: 0.0)
