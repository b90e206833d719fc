"""A service whose clients need a key and speak TLS, both from Secrets of its namespace."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from flyball_lab.harness.waiting import eventually
from support.certificates import Authority
from support.cluster import apply, delete
from support.https_client import HTTPSClient
from support.live import MODEL, RESOURCE, Flyball, Service, inference_service
from support.secret_volume import secret, tls_data

pytestmark = pytest.mark.cluster

NAME, KEY = "secured", "a-key-of-clients"
CERTIFICATE, KEYS = "secured-tls", "secured-keys"
#: Seconds until the kubelet has brought a Secret's change into pods: its sync and its cache, a minute each.
BROUGHT = 300


@dataclass
class Secured:
    """The service, and who issues its certificates."""

    service: Service
    authority: Authority

    def certify(self, name: str) -> None:
        """Write a certificate of this name into the Secret, as cert-manager renews one."""
        apply(secret(CERTIFICATE, tls_data(self.authority.issue(name))), namespace=self.service.namespace)

    def client(self) -> HTTPSClient:
        # The cluster IP is not known before the certificate has to be there.
        trusted = ssl.create_default_context(cadata=self.authority.pem)
        trusted.check_hostname = False
        return HTTPSClient(self.service.url(), trusted, MODEL)


@pytest.fixture
def secured(flyball: Flyball) -> Iterator[Secured]:
    """A service with both, governed; gone at the end, since a second engine takes a core from the others."""
    made = Secured(Service(NAME, flyball.watched), Authority())
    made.certify("first")
    apply(secret(KEYS, {"api-key": KEY}), namespace=flyball.watched)
    manifest = inference_service(NAME, image=flyball.refs["engine-cpu"])
    engine = manifest["spec"]["engine"]
    engine["env"].append({"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": KEYS, "key": "api-key"}}})
    engine["tls"] = {"secretName": CERTIFICATE}
    apply(manifest, namespace=flyball.watched)
    made.service.expect_governed()
    yield made
    delete(RESOURCE, NAME, namespace=flyball.watched)
    for name in (CERTIFICATE, KEYS):
        delete("secret", name, namespace=flyball.watched)


def test_clients_need_the_key_and_a_renewed_certificate_restarts_no_pod(secured: Secured) -> None:
    client, pod = secured.client(), secured.service.pod()
    assert secured.service.read()["status"]["url"].startswith("https://")
    assert (client.complete(), client.complete(key=KEY)) == (401, 200)
    assert client.presented() == "first"
    for name in ("second", "third"):
        secured.certify(name)
        eventually(lambda name=name: client.presented() == name, expecting=f"{name} is served", within=BROUGHT)  # type: ignore[misc]
    after = secured.service.pod()
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert [one["restartCount"] for one in after["status"]["containerStatuses"]] == [0]
    # Tuning reads the control port, which speaks HTTP as before.
    secured.service.expect_condition("MetricsAvailable", "True")
