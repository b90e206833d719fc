"""An OpenID Connect provider in the cluster: dex, whose users log in by a form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from support.binaries import imported
from support.certificates import Authority
from support.cluster import Object, apply, get, kubectl
from support.secret_volume import secret, tls_data
from support.side_pods import apply_and_wait, restricted_pod

#: The password of every user, and its hash.
PASSWORD: Final = "a-password-of-tests"
_HASH: Final = "$2b$10$abcdefghijklmnopqrstuuocOVL67vmNHwc5xZqz/as7STjYElUoS"
_NAME: Final = "dex"
_PORT: Final = 5556
_FOLDER: Final = "/etc/dex"


def settings(issuer: str, address: str, tls: tuple[str, str], client: Object, users: Sequence[str]) -> Object:
    """What `hack/lib/go/dex` reads. `tls`: files of a certificate and its key. `client`: as in dex."""
    known = [{"email": one, "hash": _HASH} for one in users]
    certificate, key = tls
    listening = {"address": address, "certificate": certificate, "key": key}
    return {"issuer": issuer, **listening, "clients": [client], "users": known}


@contextmanager
def oidc_provider(
    namespace: str, host: str, authority: Authority, *, client: Object, users: Sequence[str]
) -> Iterator[str]:
    """It is `https://HOST` for who asks the address that this gives. `client`: as in dex. `users`: their e-mails."""
    configuration = settings(
        f"https://{host}", f"0.0.0.0:{_PORT}", (f"{_FOLDER}/tls.crt", f"{_FOLDER}/tls.key"), client, users
    )
    files = {"config.json": json.dumps(configuration), **tls_data(authority.issue(host))}
    spec = {"selector": {"app": _NAME}, "ports": [{"port": 443, "targetPort": _PORT}]}
    service: Object = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _NAME}, "spec": spec}
    pod = restricted_pod(
        _NAME,
        imported(_NAME)[_NAME],
        [f"/bin/{_NAME}", f"{_FOLDER}/config.json"],
        volumes=[{"name": "files", "secret": {"secretName": _NAME}}],
        mounts=[{"name": "files", "mountPath": _FOLDER}],
        port=_PORT,
    )
    try:
        apply(secret(_NAME, files), namespace=namespace)
        apply(service, namespace=namespace)
        apply_and_wait(pod, namespace)
        found = get("service", _NAME, namespace=namespace)
        assert found is not None
        yield str(found["spec"]["clusterIP"])
    finally:
        kubectl("delete", "pod,service,secret", _NAME, "-n", namespace, "--ignore-not-found", timeout=120)
