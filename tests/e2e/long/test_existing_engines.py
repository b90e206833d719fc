"""A Deployment of vLLM that serves already: its pod template is labelled, its load rises, and its label goes again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from flyball_engine.contract import Metric
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.quantities import parse_duration
from support import existing_engine
from support.cluster import Object, condition, patch
from support.existing_engine import Existing
from support.live import ENGINE_START_SECONDS, MODEL, RESOURCE, Flyball, in_time
from support.measured import Wish, measure

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

NAME = "theirs"
#: Tokens of prompts and answers: most requests of a batch make tokens, so that their number matters.
PROMPTS, ANSWER = (900, 200, 60, 60), 64
#: Clients before the load rises, and those that come then.
FEW, MORE = 1, 24
#: The objective for a token, over what a client alone sees: it bounds the batch, and leaves prompts their room.
ROOM = 5.0
#: Seconds between two looks of the tuner.
PERIOD = 5.0
#: Limits that hold for so long are those of the load before the step.
HELD = 5 * PERIOD


@pytest.fixture
def unlabelled(flyball: Flyball) -> Iterator[Existing]:
    """A Deployment that serves without Flyball, and a service that would tune its pods; both are gone at the end."""
    service = existing_engine.ask(flyball, NAME, labelled=False)
    service.expect_rolled_out()
    yield service
    service.remove()


def test_a_label_on_the_pod_template_brings_the_law_which_answers_a_step_of_the_load_and_goes_with_the_label(
    unlabelled: Existing, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    theirs = unlabelled
    theirs.expect_stock()
    expect_named_as_stock(theirs)

    theirs.label_template(NAME)
    note_figure(expect_governed_after_start(theirs))
    theirs.expect_rolled_out()
    theirs.expect_condition("Ready", "True", reason="Serving")

    expect_load_step_answered(theirs, note_figure)

    theirs.label_template(None)
    theirs.expect_rolled_out()
    theirs.expect_stock()
    expect_named_as_stock(theirs)
    theirs.expect_unwritten(flyball.audit)


def expect_named_as_stock(theirs: Existing) -> None:
    """The service says of the pod that it lacks the plugin, and which label brings it."""
    pod = theirs.theirs()["metadata"]["name"]

    def named() -> bool:
        ready = theirs.condition("Ready")
        return ready.get("reason") == "PluginMissing" and pod in ready["message"]

    eventually(named, expecting=f"{pod} is named as a pod without the plugin", within=60)


def expect_governed_after_start(theirs: Existing) -> str:
    """The pod that the label brings has a setpoint of the operator; how long after its start, in words."""

    def governed() -> Object | None:
        pods = [pod for pod in theirs.pods() if "podIP" in pod["status"]]
        return pods[0] if pods and theirs.read_back(pods[0])["cores"][0]["applied"] else None

    pod = eventually(governed, expecting="a setpoint in the labelled pod", within=ENGINE_START_SECONDS)
    at = time.time()
    (container,) = pod["status"]["containerStatuses"]
    started = at - moment(container["state"]["running"]["startedAt"])
    ready = at - moment(condition(pod, "Ready")["lastTransitionTime"])
    return f"a labelled pod of others has a setpoint {ready:.0f} s after it was Ready, {started:.0f} s after its start"


def moment(text: str) -> float:
    """Unix seconds of a time as Kubernetes tells it."""
    return datetime.fromisoformat(text).timestamp()


def expect_load_step_answered(theirs: Existing, note_figure: Callable[[str], None]) -> None:
    """More clients come all at once: the law gives the engine another batch or other steps, and all are served.

    What a decode costs shows only beside others, so that before nobody can say which way that will be.
    """
    token = ROOM * token_seconds(theirs)
    with load(theirs, FEW).running() as few:
        theirs.expect_condition("Tuned", "True", within=300)
        asked = {"spec": {"objectives": in_time("5s", f"{token * 1000:.0f}ms")}}
        patch(RESOURCE, NAME, asked, namespace=theirs.namespace)
        before = eventually(lambda: limits_by(theirs, token), expecting="limits by the objective")
        with load(theirs, MORE).running() as more:
            began = time.monotonic()
            after = eventually(
                lambda: other(theirs.limits(), before), expecting="other limits for the load", within=300
            )
            seconds = time.monotonic() - began
            reason = theirs.tuning()["decisions"][0]["trigger"]
            served = few.finished + more.finished
            eventually(lambda: few.finished + more.finished >= served + 2 * MORE, expecting="requests under these")
    few.expect_nothing_lost()
    more.expect_nothing_lost()
    note_figure(
        f"from {FEW} to {FEW + MORE} clients at {token * 1000:.0f} ms for a token: {before} to {after}"
        f" {seconds / PERIOD:.1f} control periods after the step, {reason};"
        f" {few.finished + more.finished} requests, none lost"
    )


def token_seconds(theirs: Existing) -> float:
    """What a client alone sees of the time of a token."""
    wishes = [Wish(prompt_tokens=one, max_tokens=ANSWER) for one in PROMPTS]
    return asyncio.run(measure(theirs.url(), MODEL, wishes, concurrency=1)).median(Metric.TIME_PER_OUTPUT_TOKEN)


def load(theirs: Existing, clients: int) -> StreamLoad:
    return StreamLoad(url=theirs.url(), model=MODEL, concurrency=clients, prompt_tokens=PROMPTS, max_tokens=ANSWER)


def limits_by(theirs: Existing, token: float) -> dict[str, int] | None:
    """What the engine runs under, once that keeps an objective of so many seconds for a token, and has held a while."""
    tuning, limits = theirs.tuning(), theirs.limits()
    setpoint = tuning["setpoint"]
    keeps = "stepBudget" in setpoint and parse_duration(setpoint["stepBudget"]) <= token
    confirmed = [setpoint["maxNumActiveSeqs"], setpoint["maxNumScheduledTokens"]] == list(limits.values())
    held = time.time() - moment(tuning["decisions"][0]["time"]) >= HELD
    return limits if keeps and confirmed and held else None


def other(now: dict[str, int], before: dict[str, int]) -> dict[str, int] | None:
    """The limits, once they are other ones."""
    return now if now != before else None
