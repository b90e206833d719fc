"""What goes wrong between the operator and an engine, as metrics name it."""

from __future__ import annotations

from flyball_operator.engines.errors import EngineError


def test_outcomes_of_pushes_are_named_as_dashboards_know_them() -> None:
    named = {error.outcome for error in EngineError.__subclasses__()}
    assert named == {"BadAnswer", "NoSigningKey", "NotLeading", "Refused", "Unknown", "Unreachable"}
