"""What Prometheus is asked with: credentials, certificates and headers, all from files.

Tokens, passwords and headers are read for each query, certificates for each connection: whoever rotates them need not
restart anything. A message names the file, never what is in it.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

#: Of a token, a password or all headers. A token with many groups has some thousand.
MOST_BYTES: Final = 65_536
#: Characters of the shortest secret in a header other than Authorization.
LEAST_SECRET: Final = 8
#: Headers that are made of other settings, or by the HTTP client.
REFUSED_HEADERS: Final = frozenset(
    {"authorization", "connection", "content-length", "host", "proxy-authorization", "transfer-encoding"}
)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_TOKEN: Final = re.compile(r"[!-~]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

_Read = TypeVar("_Read")


class AccessError(ValueError):
    """A file cannot be used; the message names it and what is accepted, and has nothing of its content."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to ask a Prometheus. None and empty: not needed.

    `client_certificate`: files of certificate and key. `ca_file`: the only authorities trusted, else the usual ones.
    """

    bearer_token_file: Path | None = None
    username: str = ""
    password_file: Path | None = None
    headers_file: Path | None = None
    ca_file: Path | None = None
    client_certificate: tuple[Path, Path] | None = None
    insecure_skip_verify: bool = False

    def headers(self) -> dict[str, str]:
        """The headers of a query, as the files have them now. Raises `AccessError`."""
        found = dict(read_headers(self.headers_file)) if self.headers_file is not None else {}
        if self.bearer_token_file is not None:
            found["Authorization"] = f"Bearer {read_token(self.bearer_token_file)}"
        elif self.password_file is not None:
            pair = f"{self.username}:{read_password(self.password_file)}".encode()
            found["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return found

    def check_certificates(self) -> None:
        """Return if the files of certificates can be used now. Raises `AccessError`."""
        if self.ca_file is not None:
            check_authorities(self.ca_file)
        if self.client_certificate is not None:
            check_pair(*self.client_certificate)


def secrets_of(headers: Mapping[str, str]) -> Iterator[str]:
    """What of a query's headers must not be repeated. Short values of other headers are names, as those of tenants."""
    yield from (value for name, value in headers.items() if name != "Authorization" and len(value) >= LEAST_SECRET)
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    if credentials:
        yield credentials
    if scheme == "Basic":
        yield base64.b64decode(credentials).decode().partition(":")[2]


def read_token(path: Path) -> str:
    """A bearer token. Raises `AccessError`."""
    return _one(path, _TOKEN.fullmatch, "a token: printable ASCII characters without spaces")


def read_password(path: Path) -> str:
    """A password; space around it is not its own. Raises `AccessError`."""
    return _one(path, lambda text: not _CONTROL.search(text), "a password: one line without control characters")


def read_headers(path: Path) -> Mapping[str, str]:
    """Headers, one a line. Raises `AccessError`."""
    found: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not (colon and _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
            raise AccessError(f"{path}: line {number} is no header, accepted: a line such as X-Scope-OrgID: team-a")
        if name.lower() in REFUSED_HEADERS:
            raise AccessError(f"{path}: {name} is not accepted here: other settings or the HTTP client set it")
        if name.lower() in map(str.lower, found):
            raise AccessError(f"{path}: {name} is there twice, accepted: each header once")
        found[name] = value
    if not found:
        raise AccessError(f"{path}: has no header, accepted: a line such as X-Scope-OrgID: team-a")
    return found


def check_authorities(path: Path) -> None:
    """Return if the file has certificates of authorities. Raises `AccessError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _loaded(path, lambda: context.load_verify_locations(path), "certificates of authorities as PEM")


def check_pair(certificate: Path, key: Path) -> None:
    """Return if the files are a certificate and its key. Raises `AccessError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for path in (certificate, key):
        _loaded(path, path.read_bytes, "a file")
    # Without a password of our own an encrypted key would be asked for on the terminal.
    _loaded(
        key,
        lambda: context.load_cert_chain(certificate, key, password=lambda: b""),
        f"the PEM key, not encrypted, of the PEM certificate {certificate}",
    )


def _one(path: Path, accepts: Callable[[str], object], accepted: str) -> str:
    text = _text(path).strip()
    if not text:
        raise AccessError(f"{path}: is empty, accepted: {accepted}")
    if not accepts(text):
        raise AccessError(f"{path}: accepted: {accepted}")
    return text


def _text(path: Path) -> str:
    def read() -> str:
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
        if len(found) > MOST_BYTES:
            raise AccessError(f"{path}: more than {MOST_BYTES:,} bytes, accepted: at most so many")
        return found.decode()

    return _loaded(path, read, "UTF-8 text")


def _loaded(path: Path, load: Callable[[], _Read], accepted: str) -> _Read:
    """What is loaded from a file. Where that fails, what went wrong is not chained: it may repeat what was read."""
    try:
        return load()
    except (ssl.SSLError, UnicodeDecodeError):
        raise AccessError(f"{path}: accepted: {accepted}") from None
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or 'cannot be read'}, accepted: {accepted}") from None
