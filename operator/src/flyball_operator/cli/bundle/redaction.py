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
#: Fields whose text is never shown.
_SECRET_FIELDS: Final = frozenset({"password", "token", "apikey", "secret", "privatekey", "credentials"})
#: Mappings all of whose values go.
_SECRET_MAPPINGS: Final = frozenset({"volumeAttributes", "options", "stringData"})
_SECRET_WORDS: Final = r"(?:key|apikey|keyfile|token|password|passwd|secret|credential|credentials|auth)"
#: An argument whose name has such a word: `--api-key`, `--hf_token`, but not `--max-num-batched-tokens`.
_SECRET_FLAG: Final = re.compile(rf"--?(?:\w+[-_.])*{_SECRET_WORDS}(?:[-_.]\w+)*", re.IGNORECASE)
#: Not inside a word: `per-token 50.0 %` is an objective and its figure.
_FLAG_IN_TEXT: Final = re.compile(
    rf"(?<![\w-])({_SECRET_FLAG.pattern})([=\s]+)(\"[^\"]*\"|'[^']*'|[^\s\"']+)", re.IGNORECASE
)
#: The same of settings and JSON in a text. Of fewer words: `signing-key: not there` is a finding.
_ASSIGNED: Final = re.compile(
    r"((?:api[-_]?key|token|password|passwd|secret|credentials)[\"']?\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"',}]+)",
    re.IGNORECASE,
)
#: What looks like a credential wherever it stands.
_CREDENTIALS: Final = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REDACTED),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"\b(?:hf_|sk-|ghp_|glpat-|xox[a-z]-|AKIA)[\w-]{8,}"), REDACTED),
    (re.compile(r"(\w://)[^/\s@\"']+@"), rf"\1{REDACTED}@"),
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
    return field.replace("_", "").replace("-", "").lower() in _SECRET_FIELDS


def _arguments(found: Sequence[Any]) -> Iterator[Any]:
    """Arguments of a program, without the value of one whose name speaks of a key."""
    follows = False
    for item in found:
        argument = str(item)
        if follows and not argument.startswith("-"):
            yield REDACTED
            follows = False
            continue
        name, equals, _ = argument.partition("=")
        secret = _SECRET_FLAG.fullmatch(name) is not None
        follows = secret and not equals
        yield f"{name}={REDACTED}" if secret and equals else text(argument)


def text(found: str) -> str:
    """A text, such as a log, without what looks like a credential."""
    for pattern, instead in _CREDENTIALS:
        found = pattern.sub(instead, found)
    found = _FLAG_IN_TEXT.sub(rf"\1\2{REDACTED}", found)
    return _ASSIGNED.sub(rf"\1{REDACTED}", found)
