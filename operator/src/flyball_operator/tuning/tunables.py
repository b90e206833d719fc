"""The tunable constants of the law and its filters: value, unit, meaning and reason.

`hack/bench law --ablate` says what those buy that goodput hangs on. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Tunables:
    """One value for all services. A comment goes with the constants below it; units stand in brackets."""

    # The step-time model: what is kept, fitted and believed (`estimate/step_time.py`)

    #: Rows kept per cell, the newest. Six windows of 15 s smooth noise and bound memory at 42 cells.
    rows_per_cell: int = 6  # [rows]
    #: A trusted model is fitted anew so often where nothing asks for it sooner: steps of a new size or kind, or a
    #: change that CUSUM finds. A fit in each window is a fifth of a tick's processor time.
    fits_apart: float = 60.0  # [s]
    #: A fit is used only if half of its rows are explained within this relative error.
    largest_error: float = 0.25  # [relative]
    #: Least evidence for steps that are alike: full ones may take two seconds, and of each kind few windows are kept.
    least_alike_steps: int = 30  # [steps]
    #: Least evidence for a fit: cells, and steps in them.
    least_cells: int = 4  # [cells]
    least_steps: int = 60  # [steps]
    #: Pull to the prior, as the relative error it costs to move a coefficient by its own unit. A first guess decides
    #: only what the data leave open. A proven model also decides what they show too faintly. One pull of 0.1 for both
    #: loses 7 % where an engine becomes slower, one of 0.2 up to 6 % at other loads (simulated).
    guess_pull: float = 0.1  # [relative]
    proven_pull: float = 0.4  # [relative]
    #: Unit of g, by the seconds per token: a context of some thousand tokens doubles what a prefill token costs.
    attention_unit: float = 3e-4  # [of the seconds per token]
    #: Unit of d, likewise: a decode pays for a context of 400 tokens what a token costs (an 8B model on an H100). Where
    #: contexts are all alike, decodes and what they read go together: long ones are put down to d, short ones to β.
    kv_unit: float = 2.5e-3  # [of the seconds per token]
    #: Relative residuals beyond this count linearly (Huber): a stalled step must not bend the model.
    huber: float = 0.15  # [relative]
    #: CUSUM on residuals in standard deviations: drift allowed, and sum that raises the alarm.
    cusum_drift: float = 0.5  # [standard deviations]
    cusum_alarm: float = 5.0  # [standard deviations]
    #: Residuals are never taken as finer than this: shared machines and step composition scatter that much.
    least_noise: float = 0.06  # [relative]
    # The workload (`estimate/workload.py`)

    #: Share of what is known of requests and steps that is kept with each window: some ten of them are remembered.
    kept_per_window: float = 0.9  # [share]
    #: Decodes that a position of drafts must have been offered before its acceptance is believed; twice as many are
    #: remembered at least. A share of a half is then known to 0.04.
    least_drafts: float = 200.0  # [decodes]
    #: The depth of speculation changes only if tokens become faster by this share, or if steps that are over their
    #: budget become shorter by it. Each change is a setpoint that all pods confirm.
    depth_gain: float = 0.03  # [relative]
    # Margins (`control_input.py`)

    #: Shares of the objectives that are aimed at. Order and gate keep what comes of the queue near the prediction.
    token_margin: float = 0.92  # [share of the objective]
    first_token_margin: float = 0.85  # [share of the objective]
    #: Gap objectives hold for single steps, which scatter about the mean that the model predicts. Without it
    #: 1.7 % of gaps are too long, where 1 % may be (simulated).
    gap_share: float = 0.85  # [share of the objective]
    # The law (`optimise.py`, `policy.py`)

    #: Share of an end-to-end objective that is left to the first token at least. Else a few long answers would make a
    #: deadline that no request can meet. With none served, nothing would show that answers are short again: of an
    #: engine that refuses nine tenths of the goodput may be lost (simulated).
    least_first_share: float = 0.25  # [share of the objective]
    #: A step may take this many times the mean budget. More wins nothing, 1.5 loses 2 % with long prompts (simulated).
    long_step: float = 2.5  # [times the budget]
    #: A mean prompt must take this share of the first-token objective in steps of the mean, for longer ones to be worth
    #: it.
    long_prompt: float = 1 / 3  # [share of the objective]
    #: Of a mean answer's tokens what a short one has: where lengths are exponential, one in ten is shorter.
    short_answer: float = 0.1  # [share of a mean answer]
    #: Tokens of a step before anything is known of the engine, where a gate will stand and tokens have an objective.
    #: They are near full speed on what vLLM runs on, and short beside most objectives. A whole step of long prompts is
    #: several of them.
    first_tokens: int = 512  # [tokens]
    # Capacity and replicas (`capacity.py`)

    #: Mean waits that are added to the predicted one, as headroom: few wait longer than four times the mean (e⁻⁴, where
    #: waits are exponential).
    tail: float = 3.0  # [times the mean wait]
    #: Figures within this share are alike: what people are shown stays. An overload ends so far below the capacity, and
    #: a slow pod so far below its factor. Fewer replicas must carry the load with so much to spare.
    alike: float = 0.1  # [relative]
    #: Of the capacity so much is kept free where the operator scales: a new pod takes a minute or more to start.
    #: In a simulated day 97.4 % of requests are in time with none free, 99.7 % with 0.1, for 16 % more replica-hours,
    #: and 99.8 % with 0.15, for another 5 %.
    spare: float = 0.1  # [share of the capacity]
    #: Requests that wait are to be served within so many seconds, or their deadline, by pods besides those that the
    #: arrivals need. Where these have all pods, a queue stays for ever, and its late requests take memory from others.
    #: Simulated, on Azure's trace and begun with one pod: 91.9 % of requests are in time without, 95.2 % with 120 s for
    #: 6 % more replica-hours. They are 96.4 % with 60 s for another 1 %, 96.8 % with 30 s for another 10 %.
    drain_seconds: float = 60.0  # [s]
    #: The advice falls to the most that was needed in so many seconds, as an autoscaler's stabilisation window does.
    fewer_seconds: float = 300.0  # [s]
    #: More replicas are never advised than so many times those that run. Where hardly any rate keeps the objectives,
    #: more replicas do not either, and an autoscaler would follow any number.
    most_growth: int = 4  # [times the replicas]
    # Filters (`filters/`, `policy.py`)

    #: A change must be worth it: S, C, a budget, a deadline and the time that a model gives some step stay up to this
    #: relative change.
    hysteresis: float = 0.1  # [relative]
    #: After a policy failed, in one pod or in all, nothing moves for so long. Then the law may try again: the load may
    #: be another.
    rollback_hold: float = 300.0  # [s]
    #: Seconds between two changes that the law makes by itself: six in any minute at most.
    changes_apart: float = 10.0  # [s]
    #: A policy is on trial for so long. The first pod has it to confirm the policy and to make a step; without requests
    #: it passes then. A policy that lives so long without a stall, and lets requests finish, shows that engines work.
    trial_seconds: float = 60.0  # [s]
    #: A batch that runs may leave a long prompt too little memory, and then it rightly waits.
    kv_free: float = 0.5  # [share of the cache]
    # What is seen (`observe/`, `prometheus/queries.py`)

    #: The load is weighed, and a pod on trial is judged, by a window of signals: three scrapes at the
    #: usual 5 s.
    window_seconds: float = 15.0  # [s]
    #: What counts of the past where it must be short: the rows of a model that explains no more, and the load that
    #: capacity is weighed with, whose lengths scatter. Four windows.
    memory_seconds: float = 60.0  # [s]
    #: A pod stands out by this factor over the median, of an even number the lower one. Of two nobody knows which one
    #: is usual, so that it takes the square.
    slower: float = 1.3  # [times the median]
    #: Cores and pods are compared over so long: a stall, a burst of long prompts, or chance in one window passes.
    compared_seconds: int = 120  # [s]
    #: Samples older than this are not acted on: three scrapes at Prometheus' usual 5 s.
    stale_seconds: float = 20.0  # [s]


#: In force. `hack/bench law --ablate` changes it for a run; nothing else does.
TUNABLES: Final = Tunables()
