"""How much of a threshold the law aims at: the rest is for what the prediction does not say. Pure.

Margins are constants. What counts of violations say came too late to steer by, and where an objective cannot be met by
some answers whatever is done, it lowered them without end.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Final

from flyball_engine.contract import Metric
from flyball_operator.tuning.control_input import Margins, Workload
from flyball_operator.tuning.spec import LatencyObjective
from flyball_operator.tuning.tunables import TUNABLES

_NORMAL: Final = NormalDist()


def margins() -> Margins:
    """The shares of the objectives that are aimed at."""
    return Margins(token=TUNABLES.token_margin, first_token=TUNABLES.first_token_margin)


def scattered(margins: Margins, objectives: tuple[LatencyObjective, ...], workload: Workload) -> Margins:
    """The margins, narrowed for speculation: so that all but the allowed share of answers keep their token time.

    A request's time per token is a mean over its steps, so that of few steps it scatters nearly as each of them does.
    The tokens that a step makes are between one and all drafts; their mean bounds their variance (Bhatia and Davis,
    2000).
    """
    drafts = max(0.0, (workload.made - 1.0) * (workload.drafted - workload.made)) / workload.made**2
    scatter = math.sqrt(drafts / max(1.0, workload.output / workload.made))
    token = margins.token
    for objective in objectives:
        if objective.metric is Metric.TIME_PER_OUTPUT_TOKEN:
            deviations = -_NORMAL.inv_cdf(min(0.5, objective.allowed))
            token = min(token, 1.0 / (1.0 + deviations * scatter))
    return replace(margins, token=token)
