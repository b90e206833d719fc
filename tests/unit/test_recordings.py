"""Recorded minutes of tuning come out as they did, to the digit: whoever moves code around changes none of it."""

from __future__ import annotations

import pytest

from flyball_lab.harness.recordings import Recording, names

#: So many there are at least: the bench's loads, the disturbances, and what befalls engines and users do.
AT_LEAST = 30


@pytest.mark.parametrize("name", names())
def test_it_comes_out_as_it_was_recorded(name: str) -> None:
    recording = Recording.named(name)
    assert recording.replayed() == recording.outcome()


def test_there_is_a_recording_of_all_that_befalls_a_service() -> None:
    assert len(names()) >= AT_LEAST
    told = "".join(line for name in names() for line in Recording.named(name).outcome())
    happens = (
        "Retuned",
        "SetpointTrialFailed",
        "AdmissionStuck",
        "WatchdogTripped",
        "CapacityOverloaded",
        "ObjectivesViolated",
        "MetricsLost",
        "PodSlow",
        "TuningPaused",
    )
    for event in happens:
        assert event in told, f"no recording has {event}"
