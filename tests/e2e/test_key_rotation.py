"""Another signing key by the steps of `signingKey.publicKeys`, while requests run and limits are moved."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.harness.engine import ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, get, patch
from support.live import MODEL, RELEASE, RESOURCE, Flyball, Service

pytestmark = pytest.mark.cluster

SECRET, KEY = f"{RELEASE}-signing-key", "signing-key.pem"
#: Seconds until the kubelet has brought a change of a Secret or ConfigMap into pods: its sync and its cache.
BROUGHT = 300


@dataclass
class Keys:
    """The release's Secret and its list of public keys."""

    flyball: Flyball

    def present(self) -> SetpointSigner:
        """The key in the Secret."""
        found = get("secret", SECRET, namespace=self.flyball.namespace)
        assert found is not None
        return SetpointSigner(load_pem_private_key(base64.b64decode(found["data"][KEY]), password=None))  # type: ignore[arg-type]

    def put(self, signer: SetpointSigner) -> None:
        """Write a key into the Secret."""
        data = {KEY: base64.b64encode(signer.private_pem).decode()}
        patch("secret", SECRET, {"data": data}, namespace=self.flyball.namespace)

    def list(self, *signers: SetpointSigner) -> None:
        """What engines accept, by the chart's value."""
        self.flyball.install(signingKey={"publicKeys": [signer.public_pem for signer in signers]})


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


def answered(chat: Service, signer: SetpointSigner) -> int:
    """How the engine answers to a write with this key that it must refuse anyway: 409 where it accepts the key."""
    body = setpoint(0, epoch=0, service=chat.uid).model_dump_json().encode()
    with closing(ControlClient(f"http://{chat.pod()['status']['podIP']}:{CONTROL_PORT}", signer)) as control:
        return control.put_raw(body, token=signer.token(body, audience=chat.uid)).status_code


def test_a_key_follows_another_under_load_and_the_first_is_refused(chat: Service, flyball: Flyball, keys: Keys) -> None:
    first, following = keys.present(), SetpointSigner()
    load = StreamLoad(url=chat.url(), model=MODEL, concurrency=4)
    try:
        with unrestarted(chat, flyball), load.running() as totals:
            expect_moved(chat, 21)
            keys.list(first, following)
            keys.put(following)
            expect_moved(chat, 22)
            read = "the signing key was replaced"
            eventually(lambda: read in flyball.logs(), expecting="the operator has read it", within=BROUGHT)
            expect_moved(chat, 23)
            keys.list(following)
            eventually(lambda: answered(chat, first) == 401, expecting="the first is refused", within=BROUGHT)
            assert answered(chat, following) == 409
            expect_moved(chat, 24)
        totals.expect_nothing_lost()
    finally:
        patch(RESOURCE, chat.name, {"spec": {"tuning": {"bounds": None}}}, namespace=chat.namespace)
