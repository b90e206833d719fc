"""One query to a Prometheus, and why it was not answered.

Nothing is sent to where a redirect leads: it would have the credentials, too. What a server or a library says of a
failure is not repeated where it could hold them.
"""

from __future__ import annotations

import logging
import ssl
import warnings
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode, urljoin, urlsplit

import requests
from prometheus_api_client import PrometheusConnect
from requests.auth import AuthBase
from requests.utils import default_headers
from urllib3.exceptions import InsecureRequestWarning
from urllib3.util.retry import Retry

from flyball_operator.api.log_events import LogEvent, logged
from flyball_operator.prometheus.access import Access, AccessError, secrets_of
from flyball_operator.prometheus.vector import BadVectorError, Vector, parsed
from flyball_operator.tuning.observe.signals import Missing

#: Series of one answer: 1000 services with 42 cells of 7 figures.
MAX_SERIES: Final = 400_000
#: Characters of a query in an address: of 8 KB, which proxies take with the rest of a request's first line.
LONGEST_ADDRESS: Final = 7_900
#: Bytes that are read of an answer that is no figures, and characters that are repeated of it.
_MOST_READ: Final = 4096
_MOST_REPEATED: Final = 200
#: So many characters of a secret are looked for in an answer, which may be cut off before its end.
_MOST_ALIKE: Final = 12
#: What to do where a server's certificate is refused, by OpenSSL's codes: too old, another host name, another address.
_UNTRUSTED: Final = {
    10: "Let it be renewed",
    62: "Use a host name that it is valid for",
    64: "Use a host name that it is valid for",
}

log = logging.getLogger(__name__)


class PrometheusError(Exception):
    """Prometheus could not be asked. `missing` says in which way."""

    def __init__(self, missing: Missing, detail: str) -> None:
        super().__init__(detail)
        self.missing = missing


class _Session(requests.Session):
    """Sends a query that is too long for an address in a body, as Prometheus accepts it.

    Not each query: who may only read may not send a POST, where a proxy goes by Kubernetes' verbs.
    """

    def request(self, method: str | bytes, url: str | bytes, params: Any = None, **how: Any) -> requests.Response:  # type: ignore[override]
        """As that of `requests`."""
        if len(urlencode(params or {})) > LONGEST_ADDRESS:
            return super().request("POST", url, data=params, **how)
        return super().request(method, url, params=params, **how)


class PrometheusClient:
    """A Prometheus. `timeout` in seconds, for connecting and for each wait for bytes; without `access` nobody asks."""

    def __init__(self, url: str, *, timeout: float, access: Access | None = None) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout
        self._access = access or Access()
        # No retries: the next tick is one, and a late answer is an old one. `read=False`: then a late answer is told as
        # such, and not as a connection that failed.
        retry = Retry(total=0, read=False)
        self._client = PrometheusConnect(url=self._url, retry=retry, timeout=timeout, session=self._session())

    def query(self, text: str, at: float | None = None) -> Vector:
        """As `Source` has it."""
        params: dict[str, Any] = {"limit": MAX_SERIES} | ({} if at is None else {"time": at})
        try:
            return self._checked(self._client.custom_query(text, params=params))
        except AccessError as error:
            raise PrometheusError(Missing.UNUSABLE_FILE, str(error)) from None
        except requests.Timeout as error:
            raise PrometheusError(Missing.TIMED_OUT, f"Prometheus did not answer in {self._timeout:g} s") from error
        except OSError as error:  # That all errors of `requests` are, and those of files that are not there.
            raise self._failure(error) from error

    def close(self) -> None:
        """Close its connections; calls in flight end by their own timeout."""
        self._client.close()

    def _session(self) -> requests.Session:
        access, session = self._access, _Session()
        session.auth = _Headers(access)
        # Before `requests` looks where a redirect leads.
        session.hooks["response"] += [self._refuse_answer, _parse_typed]
        session.verify = str(access.ca_file) if access.ca_file is not None else not access.insecure_skip_verify
        if access.client_certificate is not None:
            certificate, key = access.client_certificate
            session.cert = (str(certificate), str(key))
        if access.insecure_skip_verify:
            log.warning(
                "the certificate of %s is not verified", self._url, extra=logged(LogEvent.CERTIFICATE_NOT_VERIFIED)
            )
            # Told once, not at every query.
            warnings.filterwarnings("ignore", category=InsecureRequestWarning)
        return session

    def _checked(self, vector: Vector) -> Vector:
        try:
            yield from vector
        except BadVectorError as error:
            raise PrometheusError(Missing.BAD_ANSWER, f"{self._url} answers with {error}") from error

    def _failure(self, error: OSError) -> PrometheusError:
        """Why there is no answer at all."""
        try:
            # Where a file of them was taken away or spoilt, libraries say many things.
            self._access.check_certificates()
        except AccessError as wrong:
            return PrometheusError(Missing.UNUSABLE_FILE, str(wrong))
        if isinstance(error, requests.exceptions.SSLError):
            return PrometheusError(Missing.TLS_FAILED, f"TLS with {self._url} failed: {_tls_words(error)}")
        return PrometheusError(Missing.UNREACHABLE, f"{self._url} cannot be reached")

    def _refuse_answer(self, response: requests.Response, **_: Any) -> None:
        """Raise `PrometheusError` for what is no answer of figures."""
        missing, words = self._refusal(response) or (None, "")
        if missing is not None:
            response.close()
            raise PrometheusError(missing, f"{self._url} answered {words}")

    def _refusal(self, response: requests.Response) -> tuple[Missing, str] | None:
        status = response.status_code
        if response.is_redirect:
            return Missing.REDIRECTED, (
                f"{status}, a redirect to {_origin(urljoin(self._url, response.headers['location']))}, which is not "
                "followed. Where that is a login page, set credentials; else set the address that answers itself"
            )
        if status == HTTPStatus.UNAUTHORIZED:
            return Missing.UNAUTHORIZED, f"401: {self._who_is_unknown()}"
        if status == HTTPStatus.FORBIDDEN:
            return Missing.FORBIDDEN, (
                "403: whoever asks may not query. Let the account of the credentials read metrics, "
                "or send the header of a tenant that it may read"
            )
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if status == HTTPStatus.OK and kind == "text/html":
            return Missing.BAD_ANSWER, "with a page, not with figures: a login page, or another server"
        if status != HTTPStatus.OK:
            return Missing.UNREACHABLE, f"{status}: {_repeated(response)}"
        return None

    def _who_is_unknown(self) -> str:
        if self._access.bearer_token_file is not None:
            return "it does not take the bearer token. Renew the token, or set one of an account that it knows"
        if self._access.password_file is not None:
            return "it does not take this user name with this password. Correct them"
        return "no credentials are set. Set a bearer token, or user name and password, or the header of a tenant"


class _Headers(AuthBase):
    """Gives each query the headers that files have by then; raises `AccessError`. A .netrc is not looked at then."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._access.headers())
        return request


class _Answer(requests.Response):
    """An answer that a typed decoder reads, in a third of the time that Python's own takes."""

    def json(self, **_: Any) -> Any:
        """As the client library looks for the vector."""
        return {"data": {"result": parsed(self.content)}}


def _parse_typed(response: requests.Response, **_: Any) -> None:
    # Not a method of the one object: it would keep the object, with all of its bytes, until cycles are looked for.
    response.__class__ = _Answer


def _origin(url: str) -> str:
    """Where an address leads, without what a login may have added to it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"[:_MOST_REPEATED]


def _repeated(response: requests.Response) -> str:
    """The beginning of an answer; nothing where it holds what was sent with the query, as some gateways' answers do."""
    try:
        text = next(response.iter_content(_MOST_READ), b"").decode(errors="replace")
    except requests.RequestException:
        # The status is known, and says more than that the connection ended then.
        return "no more is known"
    sent = {name: value for name, value in response.request.headers.items() if name not in default_headers()}
    if any(secret[:_MOST_ALIKE] in text for secret in secrets_of(sent)):
        return "the answer is not shown, it repeats credentials"
    return " ".join(text.split())[:_MOST_REPEATED]


def _tls_words(error: BaseException) -> str:
    """Why TLS failed, and what to do."""
    found = _of_openssl(error)
    if isinstance(found, ssl.SSLCertVerificationError):
        remedy = _UNTRUSTED.get(found.verify_code, "Set the CA that signed it")
        return f"its certificate is refused ({found.verify_message.rstrip('.')}). {remedy}"
    reason = (found.reason if found is not None else None) or "UNKNOWN"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return f"it wants another client certificate ({reason}). Set one of a CA that it trusts, and its key"
    return f"{reason}. Check that the address speaks TLS"


def _of_openssl(error: BaseException | None) -> ssl.SSLError | None:
    """What OpenSSL said, among the errors that led to this one."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, ssl.SSLError):
            return error
        seen.add(id(error))
        inner = next((one for one in (*error.args, getattr(error, "reason", None)) if isinstance(one, Exception)), None)
        error = inner or error.__cause__ or error.__context__
    return None
