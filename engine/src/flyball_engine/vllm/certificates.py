"""Renewed certificates of the OpenAI port: loaded into the server that runs, so that no pod is restarted for one.

The kubelet renews a Secret's files by turning a link to a folder of new ones. VLLM's own `--enable-ssl-refresh` watches
the files that the link led to at the start: it hears that they went away, loads once, and hears nothing again. So the
second renewal would never be served. Here the files are read again and again.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from flyball_engine.log_events import EngineLogEvent, EventLog
from flyball_engine.vllm.wrapping import original, wrap

_log = EventLog(__name__)

#: Seconds between two looks at the files. They are small, and the kubelet is a minute later than the Secret anyway.
SECONDS: Final = 10.0


@dataclass
class ServedCertificate:
    """The certificate and key that a server was given, in the context that it takes new connections with."""

    context: ssl.SSLContext
    certificate: Path
    key: Path
    loaded: bytes = b""

    def refresh(self) -> bool:
        """Load what was renewed; whether anything was. Raises OSError, of which SSLError is one, for what cannot be.

        What was loaded before is then served on.
        """
        found = self.certificate.read_bytes() + self.key.read_bytes()
        if found == self.loaded:
            return False
        # Tried elsewhere: a certificate with the key of another would leave the context with neither.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        self.context.load_cert_chain(self.certificate, self.key)
        self.loaded = found
        return True


class CertificateKeeper:
    """Keeps the certificates of this process's servers current."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def install(self) -> None:
        """Look after each server that gets a certificate from now on. Installing again replaces the keeper."""
        load: Callable[[uvicorn.Config], None] = original(uvicorn.Config.load)

        @functools.wraps(load)
        def load_and_follow(self_: uvicorn.Config) -> None:
            load(self_)
            try:
                self._follow(self_)
            except Exception:  # noqa: BLE001 – vLLM must not fail with its guest
                _log.warning(EngineLogEvent.CERTIFICATE_NOT_FOLLOWED, "a renewed one needs a restart", exc_info=True)

        wrap(uvicorn.Config, "load", load_and_follow)

    def _follow(self, config: uvicorn.Config) -> None:
        if config.ssl is None or config.ssl_certfile is None or config.ssl_keyfile is None:
            return
        served = ServedCertificate(config.ssl, Path(config.ssl_certfile), Path(config.ssl_keyfile))
        served.refresh()
        task = asyncio.get_running_loop().create_task(self._keep(served), name="flyball-certificate")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, served: ServedCertificate) -> None:
        told = ""
        while True:
            await asyncio.sleep(self._seconds)
            try:
                if served.refresh():
                    told = ""
                    _log.info(EngineLogEvent.CERTIFICATE_RENEWED, "%s is served", served.certificate)
            except OSError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning(
                        EngineLogEvent.CERTIFICATE_NOT_SERVED,
                        "%s cannot be served, the earlier one is: %s",
                        served.certificate,
                        error,
                    )
