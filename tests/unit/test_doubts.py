"""Why a model is not trusted, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_engine.model import StepModel
from flyball_operator.tuning.estimate.step_time import Doubt, Fit, doubt_message

MODEL = StepModel(t0=0.01, h=0.0, c1=1e-4, c2=1e-4, beta=0.0, g=0.0, kappa=1)
FIT = Fit(model=MODEL, error=0.1, steps=34, reach=64, doubt=Doubt.ALIKE)


def test_steps_that_are_alike_are_said_to_be_so() -> None:
    assert doubt_message(FIT) == "all engine steps seen are of like size, as in an overload, and say nothing of others"


@pytest.mark.parametrize("doubt", list(Doubt))
def test_every_doubt_has_words_of_its_own_and_no_code(doubt: Doubt) -> None:
    said = doubt_message(replace(FIT, doubt=doubt))
    assert doubt.value not in said
    assert sum(doubt_message(replace(FIT, doubt=other)) == said for other in Doubt) == 1


def test_without_a_fit_it_is_requests_that_lack() -> None:
    assert doubt_message(None) == "too few requests have ended"
