"""The private keys that setpoints are signed with, which are replaced while the operator runs.

The kubelet brings public keys to each pod at another moment. So the key before is kept: engines that do not know the
newest one yet are told by the other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flyball_engine.contract import MOST_PUBLIC_KEYS
from flyball_engine.signing import BadKeyError, Signer
from flyball_operator.api.log_events import LogEvent, logged

_log = logging.getLogger(__name__)


class HeldKeys:
    """As many as engines accept at a time, the first to sign with first. None until some are given.

    Behind these may be one for pods that know no other.
    """

    def __init__(self) -> None:
        self._signers: tuple[Signer, ...] = ()
        self._kept: tuple[Signer, ...] = ()

    def __call__(self) -> Sequence[Signer]:
        """The keys at this moment."""
        return self._signers

    def replace(self, *fresh: Signer, kept: Signer | None = None) -> None:
        """Sign with these, in this order, and behind them with those before. `kept`: last of all, however many."""
        last = () if kept is None else (kept,)
        # One that was kept goes at once, where it is kept no more.
        known = {signer.public_pem for signer in (*fresh, *self._kept, *last)}
        before = [signer for signer in self._signers if signer.public_pem not in known]
        self._signers, self._kept = (*(*fresh, *before)[:MOST_PUBLIC_KEYS], *last), last


class SigningKeys(HeldKeys):
    """Those of one file, which the kubelet renews when somebody changes the Secret.

    Raises BadKeyError where the file has none at the start. Later, a file that has none leaves those that were read.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.replace(Signer.load(path))
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
            self._read()
        return super().__call__()

    def _read(self) -> None:
        try:
            newest = Signer.load(self._path)
        except BadKeyError as error:
            _log.error(
                "the signing key cannot be read, the earlier one signs on: %s",
                error,
                extra=logged(LogEvent.SIGNING_KEY_UNREADABLE),
            )
            return
        self.replace(newest)
        _log.info(
            "the signing key was replaced: setpoints are signed with the one of %s",
            self._path,
            extra=logged(LogEvent.SIGNING_KEY_REPLACED),
        )
