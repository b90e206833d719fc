"""The chart of `flyball watch`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_operator.cli.watch_chart import Sample, as_json, chart, sample

AT = "2026-11-22T04:00:00Z"


def a_service(*, attained: str = "99.5", arrivals: int = 14, seqs: int | None = 48) -> Object:
    setpoint = {} if seqs is None else {"maxNumActiveSeqs": seqs, "maxNumScheduledTokens": 1024}
    decision = {
        "time": "2026-11-22T03:48:00Z",
        "trigger": "ttft binds",
        "before": {"maxNumActiveSeqs": 64},
        "after": {"maxNumActiveSeqs": 48},
    }
    status = {
        "replicas": 2,
        "readyReplicas": 2,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}],
        "objectives": [{"name": "ttft", "attained": attained}],
        "tuning": {"arrivals": f"{arrivals}", "capacity": "20", "setpoint": setpoint, "decisions": [decision]},
    }
    return good(metadata__namespace="team") | {"status": status}


def lines(samples: list[Sample], width: int = 80) -> dict[str, str]:
    """Lines of the chart by their first word; of several the first."""
    return {line.split()[0]: line for line in reversed(chart(samples, width)) if line.strip()}


def test_it_says_what_is_now() -> None:
    shown = "\n".join(chart([sample(a_service(), AT)], 80))
    for expected in (
        "team/chat, mode Auto, 2/2 pods Ready, 2026-11-22T04:00:00Z",
        "14 of 20/s, 70 %",
        "48 at once",
        "1024 in a step",
        "99.5 % of 99 %",
        "2026-11-22T03:48:00Z: requests at once from 64 to 48",
        "ttft binds",
    ):
        assert expected in shown


def test_the_newest_is_at_the_right_and_high_is_a_full_block() -> None:
    samples = [sample(a_service(arrivals=arrivals), AT) for arrivals in (0, 10, 20)]
    assert "▁▅█  20 of 20/s" in lines(samples)["load"]


def test_what_is_not_known_is_a_gap() -> None:
    samples = [sample(a_service(seqs=seqs), AT) for seqs in (48, None, 48)]
    assert "█ █  48 at once" in lines(samples)["requests"]
    assert "not known" in lines([sample(good(metadata__namespace="team"), AT)])["load"]


def test_an_objectives_line_spans_five_percent_at_least() -> None:
    samples = [sample(a_service(attained=attained), AT) for attained in ("99.9", "95", "40")]
    assert "██" not in lines(samples)["ttft"]
    assert "█▁  95.0 %" in lines(samples[:2])["ttft"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    one = sample(a_service(), AT)
    long = replace(one, decisions=tuple(replace(entry, why="x" * 500) for entry in one.decisions))
    shown = chart([long] * 500, width)
    assert max(map(len, shown)) <= width
    assert shown[-1] == f"    {'x' * (width - 5)}…"


def test_as_json() -> None:
    document = as_json(sample(a_service(), AT))
    assert (document["at"], document["row"]["requests"], document["attained"]) == (AT, 48, {"ttft": 99.5})
    assert document["decisions"][0]["why"] == "ttft binds"
