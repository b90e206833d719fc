"""The release's signing key on the local cluster: what is in its Secret, and what the engines of a service accept."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import dataclass

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from flyball_engine.contract import CONTROL_PORT
from flyball_lab.harness.engine import ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.waiting import eventually
from support.cluster import Object, get, patch
from support.live import RELEASE, Flyball, Service

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

    def expect_read(self) -> None:
        """The operator has read another key than at its start."""
        read = "the signing key was replaced"
        eventually(lambda: read in self.flyball.logs(), expecting="the operator has read it", within=BROUGHT)

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
