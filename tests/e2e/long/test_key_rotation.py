"""The operator replaces its signing key while requests run and limits are moved: by its age, and as it was stolen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, patch
from support.live import MODEL, RESOURCE, Flyball, Service
from support.signing_keys import Keys

pytestmark = pytest.mark.cluster


@pytest.fixture
def keys(flyball: Flyball) -> Keys:
    """Those of the release."""
    return Keys(flyball)


@pytest.fixture
def rotating(flyball: Flyball, keys: Keys) -> Iterator[Keys]:
    """The same, of which none lives longer than a minute."""
    flyball.install(signingKey={"rotationPeriod": "1m"})
    yield keys
    flyball.install(signingKey={"rotationPeriod": "720h"})


def identities(pods: list[Object]) -> list[tuple[str, int]]:
    """UID and restarts of each."""
    return sorted(
        (pod["metadata"]["uid"], sum(one["restartCount"] for one in pod["status"]["containerStatuses"])) for pod in pods
    )


@contextmanager
def unrestarted(chat: Service, flyball: Flyball) -> Iterator[None]:
    """Neither engine nor operator is restarted meanwhile."""
    before = identities(chat.pods()), identities(flyball.operator_pods())
    yield
    assert (identities(chat.pods()), identities(flyball.operator_pods())) == before


def expect_moved(chat: Service, seqs: int) -> None:
    """The operator moves a limit, so its key is accepted."""
    bounds = {"maxNumActiveSeqs": {"min": seqs, "max": seqs}}
    patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": bounds}}}, namespace=chat.namespace)
    eventually(lambda: chat.effective()["max_num_active_seqs"] == seqs, expecting=f"{seqs} at once", within=180)


def test_a_key_follows_another_under_load_and_the_first_is_refused(
    chat: Service, flyball: Flyball, rotating: Keys
) -> None:
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=4)
    try:
        with unrestarted(chat, flyball), load.running() as totals:
            expect_moved(chat, 21)
            first = rotating.present()
            rotating.expect_accepted(chat, first)
            rotating.expect_followed(first)
            expect_moved(chat, 22)
            rotating.expect_refused(chat, first)
            expect_moved(chat, 23)
        totals.expect_nothing_lost()
    finally:
        patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)


def test_a_key_that_was_stolen_is_replaced_once_its_secret_is_emptied(
    chat: Service, flyball: Flyball, keys: Keys
) -> None:
    first = keys.present()
    try:
        with unrestarted(chat, flyball):
            keys.empty()
            keys.expect_followed(first)
            keys.expect_refused(chat, first)
            keys.expect_accepted(chat, keys.present())
            expect_moved(chat, 24)
    finally:
        patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)
