"""Another signing key by the steps of `signingKey.publicKeys`, while requests run and limits are moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flyball_lab.harness.engine import SetpointSigner
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, patch
from support.live import MODEL, RESOURCE, Flyball, Service
from support.signing_keys import Keys

pytestmark = pytest.mark.cluster


@pytest.fixture
def keys(flyball: Flyball) -> Iterator[Keys]:
    """Those of the release, whose key is back at the end: pods of the other scenarios name it."""
    made = Keys(flyball)
    first = made.present()
    yield made
    last = made.present()
    made.list(last, first)
    made.put(first)


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


def test_a_key_follows_another_under_load_and_the_first_is_refused(chat: Service, flyball: Flyball, keys: Keys) -> None:
    first, following = keys.present(), SetpointSigner()
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=4)
    try:
        with unrestarted(chat, flyball), load.running() as totals:
            expect_moved(chat, 21)
            keys.list(first, following)
            keys.put(following)
            expect_moved(chat, 22)
            keys.expect_read()
            expect_moved(chat, 23)
            keys.list(following)
            keys.expect_refused(chat, first)
            keys.expect_accepted(chat, following)
            expect_moved(chat, 24)
        totals.expect_nothing_lost()
    finally:
        patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)
