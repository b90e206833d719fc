"""The private keys that setpoints are signed with: read anew from a file that is replaced while the operator runs.

The kubelet renews the file when the Secret changes, at another moment than it renews the public keys in each pod. So
the key before is kept: engines that do not know the newest one yet, or no longer the one before, are told by the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flyball_engine.contract import MOST_PUBLIC_KEYS
from flyball_engine.signing import BadKeyError, Signer

_log = logging.getLogger(__name__)


class SigningKeys:
    """Those of one file, the newest first: as many as engines accept at a time.

    Raises BadKeyError where the file has none at the start. Later, a file that has none leaves those that were read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signers: tuple[Signer, ...] = (Signer.load(path),)
        self._seen = path.read_bytes()

    @property
    def public_pem(self) -> str:
        """The public half of the newest that was read, PEM, for the templates of pods."""
        return self._signers[0].public_pem

    def __call__(self) -> Sequence[Signer]:
        """The keys at this moment. The file is small, and looked at for each write, as engines look at theirs."""
        try:
            found = self._path.read_bytes()
        except OSError:
            # The kubelet renews it at one moment, so it is there again only once somebody mends the Secret.
            found = b""
        if found != self._seen:
            self._seen = found
            self._replace()
        return self._signers

    def _replace(self) -> None:
        try:
            newest = Signer.load(self._path)
        except BadKeyError as error:
            _log.error("the signing key cannot be read, the earlier one signs on: %s", error)
            return
        before = [signer for signer in self._signers if signer.public_pem != newest.public_pem]
        self._signers = (newest, *before)[:MOST_PUBLIC_KEYS]
        _log.info("the signing key was replaced: setpoints are signed with the one of %s", self._path)
