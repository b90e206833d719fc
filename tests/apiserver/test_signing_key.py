"""The operator keeps its signing key on the real API server: it fills the Secret, publishes the key and rotates it."""

from __future__ import annotations

import base64
from pathlib import Path

from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.keys.state import CURRENT, CURRENT_SINCE, NEXT
from support.api import InferenceServices
from support.cluster import Object, apply, get, patch
from support.key_world import public
from support.operators import idle_service
from support.tenants import operator

#: As the chart calls it, which grants rights on this one alone.
SECRET = "flyball-operator-signing-key"


def keys(place: str) -> dict[str, str]:
    """What the Secret holds."""
    data = (get("secret", SECRET, namespace=place) or {}).get("data") or {}
    return {name: base64.b64decode(text).decode() for name, text in data.items()}


def published(place: str) -> str:
    """What engines are given."""
    found = get("configmap", names.PUBLIC_KEYS, namespace=place) or {}
    return str((found.get("data") or {}).get(names.PUBLIC_KEYS_KEY, ""))


def test_the_key_is_made_published_and_rotated(place: str, tmp_path: Path) -> None:
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "type": "Opaque", "data": {}}
    apply(secret, namespace=place, server_side=True)
    with operator(place, tmp_path, values={"signingKey": {}}, signing_key_secret=SECRET) as process:
        InferenceServices(place).create(idle_service())
        first = eventually(lambda: keys(place).get(CURRENT), expecting="a key in the Secret")
        eventually(lambda: published(place) == public(first), expecting="its public half in the namespace")
        # As old as no key may be.
        old = base64.b64encode(b"2020-01-01T00:00:00Z").decode()
        patch("secret", SECRET, {"data": {CURRENT_SINCE: old}}, namespace=place)
        following = eventually(lambda: keys(place).get(NEXT), expecting="the next key")
        eventually(lambda: published(place) == public(first) + public(following), expecting="both public keys")
        # Applied again by whoever installs the chart.
        apply(secret, namespace=place, server_side=True)
        assert keys(place)[CURRENT] == first
        eventually(lambda: keys(place).get(CURRENT) == following, expecting="the next key signs", within=600)
        eventually(lambda: published(place) == public(following), expecting="the first key is revoked")
        assert NEXT not in keys(place)
        assert "flyball_operator_public_keys_unpublished 0.0" in process.metrics()
