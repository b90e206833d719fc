"""Image references, by the grammar of github.com/distribution/reference, which the kubelet and containerd parse with.

Stricter in one point: a first part without a dot and without a port is no host (but `localhost`), so it must be in
lower case. The kubelet would take `VLLM/engine` for the host `VLLM`. Pure.
"""

from __future__ import annotations

from typing import Final

from flyball_operator.api.rules import Matches

_HOST_PART: Final = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PORT: Final = r":[0-9]+"
_HOST: Final = (
    rf"(?:{_HOST_PART}(?:\.{_HOST_PART})+(?:{_PORT})?|{_HOST_PART}{_PORT}|localhost|\[[a-fA-F0-9:]+\](?:{_PORT})?)"
)
_PART: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME: Final = rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"
_TAG: Final = r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST: Final = r"@sha(?:256:[a-f0-9]{64}|384:[a-f0-9]{96}|512:[a-f0-9]{128})"

IMAGE: Final = rf"{_NAME}(?:{_TAG})?(?:{_DIGEST})?"
#: A repository ends where a tag or a digest begins. What is too long for any of these readings is too long.
SHORT: Final = rf"(?:{_HOST}/)?.{{0,255}}(?:{_TAG})?(?:@.*)?"

IS_IMAGE: Final = Matches(
    IMAGE,
    "must be an image reference [host[:port]/]repository[:tag][@sha256:digest], such as vllm/vllm-openai:v0.32.0:"
    " without https://, the repository in lower case, a digest of 64 hex digits",
)
IS_SHORT: Final = Matches(SHORT, "must have a repository of at most 255 characters between the host and the tag")
