"""One Flyball and one served InferenceService for all scenarios: an engine takes most of a minute to start."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.cluster import apply
from support.live import Flyball, Service, inference_service, installed

#: Level names at which the operator reports that something of its own went wrong.
_ERRORS = re.compile(r'"level": ?"(ERROR|CRITICAL)"|Traceback|\b(ERROR|CRITICAL)\b')


@pytest.fixture(scope="session")
def flyball() -> Iterator[Flyball]:
    """Flyball installed by its chart; in the end, nothing it asked for was refused to its account."""
    with installed() as release:
        yield release
        assert not release.refused(), f"the chart's account lacks rights: {release.refused()[:5]}"


@pytest.fixture(scope="session")
def chat(flyball: Flyball) -> Service:
    """A service that serves and is tuned; scenarios leave it as they found it."""
    service = Service("chat", flyball.watched)
    apply(inference_service(image=flyball.refs["engine-cpu"]), namespace=flyball.watched)
    service.expect_governed()
    return service


@pytest.fixture(autouse=True)
def operator_logs_no_error(flyball: Flyball) -> Iterator[None]:
    """After each scenario: the operator met nothing it calls an error, besides what came before."""
    before = set(_errors(flyball))  # not their number: the log of an operator that was replaced begins anew
    yield
    fresh = [line for line in _errors(flyball) if line not in before]
    assert not fresh, "the operator logged:\n" + "\n".join(fresh[:5])


def _errors(flyball: Flyball) -> list[str]:
    return [line for line in flyball.logs().splitlines() if _ERRORS.search(line)]
