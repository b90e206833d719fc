"""Why a step-time model is not trusted, in words for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flyball_operator.tuning.estimate.step_time import Doubt, Fit

_MESSAGES: Final[Mapping[Doubt, str]] = {
    Doubt.FEW_STEPS: "too few engine steps were seen, or none that processed a prompt",
    Doubt.ALIKE: "all engine steps seen are of like size, as in an overload, and say nothing of others",
    Doubt.LARGE_ERROR: "it explains the times of the engine steps badly",
}


def message(fit: Fit | None) -> str:
    """What speaks against a model, in words that stay the same from tick to tick."""
    if fit is None or fit.doubt is None:
        return "too few requests have ended"
    return _MESSAGES[fit.doubt]
