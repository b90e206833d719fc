"""docs/batch-metrics.md speaks of metrics that there are, and the reference that it points to explains them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flyball_engine.contract import MetricName
from flyball_lab.tools import metrics

PAGE = (Path(__file__).parents[2] / "docs/batch-metrics.md").read_text()
EXPLAINED = {
    MetricName.TOKENS,
    MetricName.COMPUTED_PROMPT_TOKENS_SQUARED,
    MetricName.SLOT_SECONDS,
    MetricName.TOKEN_ROOM,
    MetricName.BATCH_SIZE,
    MetricName.WAITING,
    MetricName.OLDEST_WAITING_SECONDS,
    MetricName.QUEUE_SECONDS,
    MetricName.QUEUED_REQUESTS,
    MetricName.MOVED_BEHIND,
    MetricName.IN_TIME_AFTER_ALL,
    MetricName.BEHIND,
    MetricName.LONGEST_WAIT_BEHIND_SECONDS,
    MetricName.PREEMPTIONS,
    MetricName.COHORTS,
    MetricName.COHORT_REQUESTS,
    MetricName.COHORT_TOKENS,
    MetricName.COHORT_PADDED_TOKENS,
}


@pytest.fixture(scope="module")
def reference() -> str:
    """The page of all metrics, made once: it takes half a second."""
    return metrics.metrics_page()


def test_every_name_on_the_page_is_a_metric() -> None:
    histogram = {f"{MetricName.BATCH_SIZE.value}_{part}" for part in ("sum", "count", "bucket")}
    named = set(re.findall(r"\bflyball_[a-z_]+", PAGE)) - {"flyball_lab"}
    assert named <= {name.value for name in MetricName} | histogram


@pytest.mark.parametrize("name", sorted(EXPLAINED))
def test_the_reference_says_what_a_batch_metric_counts(reference: str, name: MetricName) -> None:
    assert re.search(rf"^\| `{name}` \| [^|]+: [^|]+ \|$", reference, flags=re.MULTILINE)
