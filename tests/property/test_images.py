"""Image references: what the grammar of distribution/reference makes is accepted, and one slip is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flyball_operator.api.rules import IS_IMAGE, IS_SHORT

_hosts = st.sampled_from(
    ["", "docker.io/", "localhost/", "localhost:5000/", "Registry-1.Example.Com/", "r:5000/", "[fd00::1]/", "[::1]:80/"]
)
_parts = st.from_regex(r"[a-z0-9]{1,8}((\.|_|__|-{1,3})[a-z0-9]{1,8}){0,2}", fullmatch=True)
_repositories = st.lists(_parts, min_size=1, max_size=4).map("/".join)
_tags = st.just("") | st.from_regex(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True).filter(str.isascii)
_digests = st.sampled_from(["", "@sha256:" + "0a" * 32, "@sha384:" + "1b" * 48, "@sha512:" + "2c" * 64])


def accepted(reference: str) -> bool:
    return IS_IMAGE.objection(reference) is None and IS_SHORT.objection(reference) is None


@given(_hosts, _repositories, _tags, _digests)
def test_what_the_grammar_makes_is_accepted(host: str, repository: str, tag: str, digest: str) -> None:
    assert accepted(host + repository + tag + digest)


SLIPS: dict[str, Callable[[str, str, str, str], str]] = {
    "a scheme": lambda host, repository, tag, digest: f"https://{host}{repository}{tag}{digest}",
    "upper case": lambda host, repository, tag, digest: f"{host}{repository.upper()}{tag}{digest}",
    "two tags": lambda host, repository, tag, digest: f"{host}{repository}:a:b{digest}",
    "an empty tag": lambda host, repository, tag, digest: f"{host}{repository}:{digest}",
    "an empty digest": lambda host, repository, tag, digest: f"{host}{repository}{tag}@",
    "a short digest": lambda host, repository, tag, digest: f"{host}{repository}{tag}@sha256:123",
    "a digest in upper case": lambda host, repository, tag, digest: f"{host}{repository}{tag}@sha256:{'A' * 64}",
    "another digest": lambda host, repository, tag, digest: f"{host}{repository}{tag}@md5:{'0' * 32}",
    "no repository": lambda host, repository, tag, digest: f"{host}{tag}{digest}",
    "a trailing slash": lambda host, repository, tag, digest: f"{host}{repository}/{tag}{digest}",
    "a blank": lambda host, repository, tag, digest: f"{host}{repository}{tag}{digest} ",
    "a long tag": lambda host, repository, tag, digest: f"{host}{repository}:{'t' * 129}{digest}",
    "a long repository": lambda host, repository, tag, digest: f"{host}{repository}/{'r' * 256}{tag}{digest}",
}


@given(st.sampled_from(sorted(SLIPS)), _hosts, _repositories, _tags, _digests)
def test_one_slip_is_refused(slip: str, host: str, repository: str, tag: str, digest: str) -> None:
    wrong = SLIPS[slip](host, repository, tag, digest)
    # A repository of digits has no upper case.
    assume(wrong != host + repository + tag + digest)
    assert not accepted(wrong)


@pytest.mark.parametrize(
    "reference", ["VLLM/engine", "Engine:v1", "-a.b/engine", "A_b.c/engine", "a..b/engine", "a._b"]
)
def test_what_looks_like_a_host_and_is_none_is_refused(reference: str) -> None:
    assert not accepted(reference)
