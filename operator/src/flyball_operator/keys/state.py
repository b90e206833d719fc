"""What the Secret of the signing key holds, and what it is to hold next. Pure.

A rotation has two steps, each one write of the Secret:

1. `next` is made beside `current`. Engines are given both public keys, setpoints are signed with `current`.
2. Once the engines accept `next`, or after `LONGEST_WAIT`, it becomes `current`. Engines are given it alone, which
   revokes the one before.

Pods that an earlier operator made know one key for good. For them alone the key before is kept, as `kept`, until there
are none any more: engines that take keys do not accept it.

All that is known of a rotation is in the Secret, so another leader goes on with it at any point.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from flyball_operator.api.objects import moment, timestamp

#: Keys of the Secret's data: private keys as PEM, and the times from when on they count.
CURRENT: Final = "current"
CURRENT_SINCE: Final = "current-since"
NEXT: Final = "next"
NEXT_SINCE: Final = "next-since"
KEPT: Final = "kept"
KEPT_SINCE: Final = "kept-since"
#: Where an earlier chart wrote the key. It is taken over as the current one.
EARLIER: Final = "signing-key.pem"
#: After this, engines that do not accept the next key hold up the rotation no more. The kubelet brings a ConfigMap to
#: a pod in about a minute, so they will not accept it soon, and one engine must not keep a key alive for ever.
LONGEST_WAIT: Final = timedelta(minutes=10)


class BadSecretError(Exception):
    """The Secret's data is no text in base64; the message names the key."""


@dataclass(frozen=True)
class SigningKey:
    """A private key as PEM. `since`: when it was made, or became the one that is signed with."""

    pem: str
    since: datetime


@dataclass(frozen=True)
class KeyRing:
    """What the Secret holds. `current` signs; None in a Secret that nobody has filled yet.

    `kept`: one before, for pods that know no other. A later one is not kept for them: it is not the one they know.
    Where people emptied the Secret these pods know none of its keys, and what is kept later is of no use to them.
    """

    current: SigningKey | None = None
    next: SigningKey | None = None
    kept: SigningKey | None = None


def read(data: Mapping[str, str], *, now: datetime) -> KeyRing:
    """The keys in a Secret's data. Raises BadSecretError.

    A time that is missing, is none or is yet to come counts as now: a clock that was wrong shall stop no rotation.
    """

    def key(name: str, since: str) -> SigningKey | None:
        pem = _text(data, name)
        return SigningKey(pem, min(moment(_text(data, since)) or now, now)) if pem else None

    current = key(CURRENT, CURRENT_SINCE)
    if current is None:
        return KeyRing(key(EARLIER, CURRENT_SINCE))
    return KeyRing(current, key(NEXT, NEXT_SINCE), key(KEPT, KEPT_SINCE))


def written(keys: KeyRing) -> dict[str, str]:
    """The Secret's data for these keys."""
    texts: dict[str, str] = {}
    for key, name, since in (
        (keys.current, CURRENT, CURRENT_SINCE),
        (keys.next, NEXT, NEXT_SINCE),
        (keys.kept, KEPT, KEPT_SINCE),
    ):
        if key is not None:
            texts |= {name: key.pem, since: timestamp(key.since)}
    return {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()}


def advanced(
    keys: KeyRing, *, now: datetime, period: timedelta, accepted: bool, bound: bool, make: Callable[[], str]
) -> KeyRing:
    """The keys after the next step; the same ones where none is due.

    `period`: age at which the current key is replaced, zero is never. `accepted`: whether engines accept the next one.
    `bound`: whether there may be pods that know one key for good. `make`: a new private key, PEM.
    """
    current, following = keys.current, keys.next
    if current is None:
        return KeyRing(SigningKey(make(), now))
    kept = keys.kept if bound else None
    if following is not None and (accepted or now - following.since >= LONGEST_WAIT):
        return KeyRing(replace(following, since=now), kept=(kept or current) if bound else None)
    if following is None and period and now - current.since >= period:
        following = SigningKey(make(), now)
    return KeyRing(current, following, kept)


def _text(data: Mapping[str, str], name: str) -> str:
    try:
        return base64.b64decode(data.get(name, ""), validate=True).decode()
    except ValueError as error:
        raise BadSecretError(f"{name}: {error}") from error
