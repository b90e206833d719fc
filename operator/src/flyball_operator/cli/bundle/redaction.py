"""Takes out of objects and logs what may be a secret. Pure.

What is kept is what a fault needs: names, references, images, figures, conditions. Whatever people can write freely and
could hold a credential goes, whether it does or not: values of environment variables and headers, attributes of
volumes, annotations of others, and arguments whose name speaks of a key. In every text that is left, what looks like a
credential goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from flyball_operator.api import names

REDACTED: Final = "(redacted)"
#: Annotations with these prefixes are Kubernetes' and ours; others may hold anything.
_KEPT_ANNOTATIONS: Final = (f"{names.GROUP}/", "prometheus.io/", "deployment.kubernetes.io/", "meta.helm.sh/")
#: Ours, but in a person's words.
_FREE_ANNOTATIONS: Final = frozenset({names.ANNOTATION_TUNING_REASON})
#: Fields that are left out: they repeat others, in another form.
_DROPPED: Final = frozenset({"managedFields"})
#: What a value is called that is never shown, at the end of a name.
_PRIVATE: Final = r"(?:password|passwd|passphrase|token|credentials?|(?:api|access|secret|private|account)[-_]?key)"
_SECRET_NAME: Final = rf"(?:{_PRIVATE}|secret)"
#: Fields whose text is never shown: `token`, `clientSecret`, `lmcache.remote_password`; not `tlsSecret`, a name.
_SECRET_FIELD: Final = re.compile(
    rf"[\w.-]*{_PRIVATE}|(?:[\w.-]*[-_.])?(?:auth|bearer|client|session|access)?secret", re.IGNORECASE
)
#: Of a field's name so many characters at its end are looked at.
_LONGEST_FIELD: Final = 100
#: Mappings all of whose values go.
_SECRET_MAPPINGS: Final = frozenset({"volumeAttributes", "options", "stringData"})
#: An argument whose name has such a word: `--api-key`, `--hf_token`, but not `--max-num-batched-tokens`. Words have no
#: separator in them: where both could match it, a line of underscores would take for ever.
_SECRET_FLAG: Final = re.compile(
    rf"--?(?:[a-z0-9]{{0,30}}[-_.]){{0,9}}(?:[a-z0-9]{{0,30}}{_SECRET_NAME}|key|keyfile|auth|headers?)"
    r"(?:[-_.][a-z0-9]{0,30}){0,9}",
    re.IGNORECASE,
)
#: What stands in quotes, or up to a blank. JSON within JSON escapes its quotes. Where the closing one was cut off, all
#: of the line. Its length has a bound, so that many such quotes do not take for ever.
_VALUE: Final = (
    r"(?:(?P<quote>\\*[\"'])(?:.{0,4000}?(?<!\\)(?P=quote)|.*)|(?!--)(?:[^\s\"'}\\,]|,(?![\s\"'])|\\(?![\"']))+)"
)
#: In a text, also as an item of a list. Not inside a word: `per-token 50.0 %` is an objective and its figure.
_FLAG_IN_TEXT: Final = re.compile(
    rf"(?<![\w.-])(?P<name>{_SECRET_FLAG.pattern}(?:\s*=\s*|\s+|\\*[\"']\s*,\s*)){_VALUE}", re.IGNORECASE
)
#: The same of settings and JSON in a text. Of fewer words: `signing-key: not there` is a finding.
_ASSIGNED: Final = re.compile(rf"(?P<name>{_SECRET_NAME}(?:\\*[\"'])?\s*[=:]\s*){_VALUE}", re.IGNORECASE)
#: An argument whose value is a name and a password, as of curl.
_LOGIN_FLAG: Final = r"(?:-[A-Za-z]{0,8}[uU]|--(?:proxy-)?user)"
#: Between the two: an address, a format of `date` and numbers of a user and a group are none.
_COLON: Final = r":(?!//)"
_NO_LOGIN: Final = r"(?!\+|\d+:\d+(?!\w))"
_LOGIN: Final = re.compile(rf"{_NO_LOGIN}(?P<name>[^:]{{0,100}}{_COLON})", re.DOTALL)
_TO_LOGIN: Final = rf"(?<![\w-]){_LOGIN_FLAG}(?:\s+|\s*=\s*|\\*[\"']\s*,\s*)"
#: In a text: both in quotes, or the name up to a blank. Where the closing quote was cut off, all of the line.
_LOGIN_IN_QUOTES: Final = re.compile(
    rf"(?P<name>{_TO_LOGIN}(?P<quote>\\*[\"']){_NO_LOGIN}[^:\"'\\\r\n]{{0,100}}{_COLON})"
    r"(?:.{0,4000}?(?<!\\)(?P=quote)|.*)"
)
_LOGIN_IN_TEXT: Final = re.compile(
    rf"(?P<name>{_TO_LOGIN}{_NO_LOGIN}[\"']?[^\s:\"'\\,]{{0,100}}[\"']?{_COLON}){_VALUE}"
)
#: What looks like a credential wherever it stands.
_CREDENTIALS: Final = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REDACTED),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    # A header, up to its end: what follows the scheme, or several cookies.
    (
        re.compile(r"\b((?:authorization|cookie)(?:\\*[\"'])?\s*[=:]\s*(?:\\*[\"'])?)[^\"'\\\r\n]+", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    # Tokens of Hugging Face, OpenAI, GitHub, GitLab, Docker, NVIDIA, Slack, AWS and Google.
    (
        re.compile(r"\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|dckr_pat_|nvapi-|xox[a-z]-|AKIA|ASIA|AIza)[\w-]{8,}"),
        REDACTED,
    ),
    (re.compile(r"(\w://)[^/\s?#\"']+@"), rf"\1{REDACTED}@"),
    # Of an address that is signed.
    (re.compile(r"([?&][\w-]*(?:sig|signature|credential|key|token)=)[^&\s\"'\\]+", re.IGNORECASE), rf"\1{REDACTED}"),
)
#: Deeper than any object of Kubernetes is.
_DEEPEST: Final = 60


def redacted(value: Any, *, depth: int = 0) -> Any:
    """The same object without what may be a secret. What is nested deeper than any real object is left out."""
    if depth > _DEEPEST:
        return REDACTED
    if isinstance(value, Mapping):
        return dict(_fields(value, depth))
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Sequence):
        return [redacted(item, depth=depth + 1) for item in value]
    return value


def _fields(found: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    named = "name" in found
    for field, value in found.items():
        if field in _DROPPED:
            continue
        if field == "annotations" and isinstance(value, Mapping):
            yield field, {key: text(str(item)) if _is_kept(key) else REDACTED for key, item in value.items()}
        elif field in _SECRET_MAPPINGS and isinstance(value, Mapping):
            yield field, dict.fromkeys(value, REDACTED)
        # Of an environment variable, a header, or a parameter.
        elif (named and field == "value") or (isinstance(value, str) and _is_secret(field)):
            yield field, REDACTED
        elif field in ("args", "command") and isinstance(value, list):
            yield field, list(_arguments(value))
        else:
            yield field, redacted(value, depth=depth + 1)


def _is_kept(annotation: str) -> bool:
    return annotation.startswith(_KEPT_ANNOTATIONS) and annotation not in _FREE_ANNOTATIONS


def _is_secret(field: str) -> bool:
    return _SECRET_FIELD.fullmatch(field[-_LONGEST_FIELD:]) is not None


def _arguments(found: Sequence[Any]) -> Iterator[Any]:
    """Arguments of a program, without the value of one whose name speaks of a key."""
    follows = False
    before = ""
    for item in found:
        argument, flag = str(item), before
        before = argument
        if follows and not argument.startswith("-"):
            yield REDACTED
            follows = False
            continue
        if re.fullmatch(_LOGIN_FLAG, flag) and (login := _LOGIN.match(argument)):
            yield f"{login['name']}{REDACTED}"
            continue
        name, equals, _ = argument.partition("=")
        secret = _SECRET_FLAG.fullmatch(name) is not None
        follows = secret and not equals
        yield f"{name}={REDACTED}" if secret and equals else text(argument)


def text(found: str) -> str:
    """A text, such as a log, without what looks like a credential."""
    for pattern, instead in _CREDENTIALS:
        found = pattern.sub(instead, found)
    found = _LOGIN_IN_QUOTES.sub(_without_password, found)
    for pattern in (_LOGIN_IN_TEXT, _FLAG_IN_TEXT, _ASSIGNED):
        found = pattern.sub(_without_value, found)
    return found


def _without_password(found: re.Match[str]) -> str:
    """A name, and that its password is redacted, in the quotes that both had."""
    return f"{found['name']}{REDACTED}{found['quote']}"


def _without_value(found: re.Match[str]) -> str:
    """A name, and that its value is redacted, in the quotes that it had: JSON stays JSON."""
    quote = found["quote"] or ""
    return f"{found['name']}{quote}{REDACTED}{quote}"
