"""Live retunes through the whole loop, under load."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.cluster import Object, patch
from support.live import MODEL, RESOURCE, Flyball, Service, scrape

pytestmark = pytest.mark.cluster

#: How many there are; on an engine without the loop around it they are a hundred, too.
RETUNES = (25, pytest.param(100, marks=pytest.mark.long))


def pin(chat: Service, *, seqs: int, tokens: int) -> None:
    """Pin both limits by the bounds, as a user would."""
    bounds = {
        "maxNumActiveSeqs": {"min": seqs, "max": seqs},
        "maxNumScheduledTokens": {"min": tokens, "max": tokens},
    }
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"mode": "Auto", "bounds": bounds}}}, namespace=chat.namespace)


def unpin(chat: Service) -> None:
    nothing = {"maxNumActiveSeqs": None, "maxNumScheduledTokens": None}
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": nothing}}}, namespace=chat.namespace)


def restarts(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


def expect_limits(chat: Service, wanted: dict[str, int]) -> None:
    eventually(lambda: wanted.items() <= chat.effective().items(), expecting=f"the engine runs under {wanted}")


@pytest.mark.parametrize("retunes", RETUNES)
def test_retunes_under_streaming_load_lose_no_request(
    chat: Service, flyball: Flyball, retunes: int, note_figure: Callable[[str], None]
) -> None:
    pod = chat.pod()
    started = chat.tuning()["generation"]
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=32)
    targets = itertools.cycle([(8, 512), (48, 2048), (16, 256), (32, 1024)])
    with load.running() as totals:
        try:
            for seqs, tokens in itertools.islice(targets, retunes):
                pin(chat, seqs=seqs, tokens=tokens)
                expect_limits(chat, {"max_num_active_seqs": seqs, "max_num_scheduled_tokens": tokens})
        finally:
            unpin(chat)  # the scenarios behind this one share the service
    totals.expect_nothing_lost()
    after = chat.pod()
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert restarts(after) == restarts(pod)
    assert chat.tuning()["generation"] >= started + retunes
    note_figure(f"{retunes} retunes, {totals.finished} requests, none failed or truncated; {push_times(flyball)}")


def test_explain_tells_what_was_done_and_why(chat: Service) -> None:
    pin(chat, seqs=24, tokens=768)  # a decision of its own: the service may have had none yet
    try:
        expect_limits(chat, {"max_num_active_seqs": 24, "max_num_scheduled_tokens": 768})
        said = explain(chat.name, "--namespace", chat.namespace)
    finally:
        unpin(chat)
    assert said.returncode == 0, said.stderr
    assert f"{chat.namespace}/{chat.name}: mode Auto, 1 of 1 pods Ready" in said.stdout
    assert re.search(r"setpoint \d+ of leadership", said.stdout)
    assert "MetricsAvailable True" in said.stdout
    assert "requests at once:" in said.stdout.partition("last decisions")[2]
    assert "no InferenceService nobody" in explain("nobody", "--namespace", chat.namespace).stderr
    assert "no usable kubeconfig" in explain(chat.name, "--context", "nowhere").stderr


def explain(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flyball_operator.cli", "explain", *arguments]
    sources = {"PYTHONPATH": f"{ROOT / 'operator/src'}:{ROOT / 'engine/src'}"}
    return subprocess.run(command, env=os.environ | sources, capture_output=True, text=True, timeout=60, check=False)


def push_times(flyball: Flyball) -> str:
    """The operator's push-to-acknowledged times beside the longest steps in flight, as it exports them."""
    (operator,) = flyball.operator_pods()
    families = {family.name: family for family in text_string_to_metric_families(scrape(operator, 8080))}
    return "; ".join(
        f"{words}: half within {upper_bound(families[name], 0.5)}, 99 % within {upper_bound(families[name], 0.99)}"
        for name, words in (
            ("flyball_operator_push_acknowledged_seconds", "push to acknowledged"),
            ("flyball_operator_longest_step_seconds", "longest step up to a push"),
        )
    )


def upper_bound(histogram: Metric, share: float) -> str:
    """The least bucket that holds this share of all observations, over all services."""
    counts: dict[float, float] = {}
    for sample in histogram.samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            counts[bound] = counts.get(bound, 0.0) + sample.value
    assert max(counts.values()) > 0, f"{histogram.name}: nothing was observed"
    return f"{min(bound for bound, count in counts.items() if count >= share * max(counts.values())):g} s"
