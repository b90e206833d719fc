"""The release's signing key on the local cluster: what is in its Secret, and what the engines of a service accept."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from dataclasses import dataclass

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.harness.engine import ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.waiting import eventually
from flyball_operator.keys.state import CURRENT, CURRENT_SINCE, NEXT
from support.cluster import Object, get, kubectl, patch
from support.live import RELEASE, Flyball, Service

SECRET = f"{RELEASE}-signing-key"
#: Seconds until the kubelet has brought a change of a Secret or ConfigMap into pods: its sync and its cache.
BROUGHT = 300
#: Seconds until engines that are asked whether they accept the next key hold up a rotation no more, and some more.
ROTATED = 900


@dataclass
class Keys:
    """The release's Secret, whose keys the operator makes."""

    flyball: Flyball

    def present(self) -> SetpointSigner:
        """The key that is signed with."""
        pem = base64.b64decode(self._data()[CURRENT])
        return SetpointSigner(load_pem_private_key(pem, password=None))  # type: ignore[arg-type]

    def grow_old(self) -> None:
        """Make the key older than any may be, so that the operator replaces it."""
        since = base64.b64encode(b"2020-01-01T00:00:00Z").decode()
        patch("secret", SECRET, {"data": {CURRENT_SINCE: since}}, namespace=self.flyball.namespace)

    def empty(self) -> None:
        """What to do if the key is stolen."""
        change = json.dumps([{"op": "remove", "path": "/data"}])
        kubectl("patch", "secret", SECRET, "-n", self.flyball.namespace, "--type=json", "-p", change)

    def expect_followed(self, first: SetpointSigner) -> None:
        """Another key is signed with, and no other is about to follow it."""

        def followed() -> bool:
            data = self._data()
            return CURRENT in data and NEXT not in data and self.present().public_pem != first.public_pem

        eventually(followed, expecting="the operator signs with another key", within=ROTATED, every=0.5)

    def _data(self) -> dict[str, str]:
        found = get("secret", SECRET, namespace=self.flyball.namespace)
        assert found is not None
        return dict(found.get("data") or {})

    def expect_refused(self, service: Service, signer: SetpointSigner) -> None:
        """No engine of the service takes this key any more."""
        eventually(
            lambda: _answers(service, signer) == {401}, expecting="the key is refused by all pods", within=BROUGHT
        )

    def expect_accepted(self, service: Service, signer: SetpointSigner) -> None:
        """Each engine of the service takes this key."""
        assert _answers(service, signer) == {409}


def _answers(service: Service, signer: SetpointSigner) -> set[int]:
    """How engines answer to a write with this key that they must refuse anyway: 409 where they accept the key."""
    body = setpoint(0, epoch=0, service=service.uid).model_dump_json().encode()
    token = signer.token(body, audience=service.uid)
    return {_answer(pod, signer, body, token) for pod in service.pods()}


def _answer(pod: Object, signer: SetpointSigner, body: bytes, token: str) -> int:
    with closing(ControlClient(f"http://{pod['status']['podIP']}:{CONTROL_PORT}", signer)) as control:
        return control.put_raw(body, token=token).status_code
