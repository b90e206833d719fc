"""Pipeline parallelism: the law thinks in rounds, an engine counts steps.

With d stages there are d steps in flight, each with other requests, a d-th part of those that run; a request's next
token is made once its step has passed all stages, while d steps end. Such a round is a step of an engine without
stages, whose fixed costs are d times as large: T'(tok, n) = d·T(tok / d, n / d). So what the law says of steps holds of
rounds, and little of it has to know of stages. Time, decodes and tokens of a round are d times those of a step;
`max_num_active_seqs` counts requests in all steps in flight, so that it is the same. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from flyball_operator.tuning.control_input import ControlInput, ControlOutput
from flyball_operator.tuning.spec import Envelope, Span


def in_rounds(inputs: ControlInput, stages: int) -> ControlInput:
    """The same inputs, told of rounds of so many steps."""
    if stages == 1:
        return inputs
    tokens, model = inputs.envelope.tokens, inputs.model
    # A token, a decode and attention cost the same. What each step costs comes as often as there are steps.
    model = replace(model, t0=stages * model.t0, h=stages * model.h, kappa=stages * model.kappa)
    return replace(
        inputs,
        model=model,
        workload=replace(inputs.workload, decodes=stages * inputs.workload.decodes),
        envelope=Envelope(inputs.envelope.seqs, Span(stages * tokens.least, stages * tokens.most)),
        stages=stages,
    )


def in_steps(output: ControlOutput, stages: int) -> ControlOutput:
    """What was chosen of rounds of so many steps, told of the steps that an engine is held to."""
    budget = None if output.budget is None else output.budget / stages
    return replace(output, tokens=output.tokens // stages, budget=budget)
