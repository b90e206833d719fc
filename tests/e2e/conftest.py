"""One Flyball and one served InferenceService for all scenarios: an engine takes most of a minute to start."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from support import existing_engine
from support.cluster import apply
from support.engine_starts import EngineStarts
from support.live import (
    SHEDDING,
    SHEDDING_DEADLINE,
    Flyball,
    Service,
    ask_to_shed,
    in_time,
    inference_service,
    installed,
)

#: Level names at which the operator reports that something of its own went wrong.
_ERRORS = re.compile(r'"level": ?"(ERROR|CRITICAL)"|Traceback|\b(ERROR|CRITICAL)\b')
#: Off by default. Admission must refuse nothing to the operator; the network here enforces no NetworkPolicy by itself.
_STRICT = {
    "admissionPolicies": {"operator": True, "inferenceServices": {"enabled": True}},
    "networkPolicy": {"enabled": True},
}
#: Values of the chart, by the fixture that needs them.
_VALUES = {
    "console_pod": {"console": {"enabled": True}},
    "existing": {"inject": {"enabled": True}},
    "unlabelled": {"inject": {"enabled": True}},
}
#: Whom OpenShift lets pods run as: a user of the namespace's range, whom no image knows, in the group root.
_ASSIGNED_USER = {"runAsUser": 1_000_660_000, "runAsGroup": 0, "fsGroup": 1_000_660_000}
#: Services of scenarios by their fixtures, in the order in which their engines are asked for.
_SERVICES = ("chat", "short", "existing", "shedding")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who measures under load comes last: before that, engines are started beside what others do."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def _wanted(request: pytest.FixtureRequest) -> set[str]:
    """Fixtures that tests of this session ask for."""
    return {name for item in request.session.items if isinstance(item, pytest.Function) for name in item.fixturenames}


@pytest.fixture(scope="session")
def flyball(request: pytest.FixtureRequest) -> Iterator[Flyball]:
    """Flyball installed by its chart, under its own policies; in the end, none of its requests was refused."""
    values: dict[str, object] = {**_STRICT}
    for name in _VALUES.keys() & _wanted(request):
        values |= _VALUES[name]
    with installed(**values) as release:
        yield release
        assert not release.refused(), f"the chart's account lacks rights: {release.refused()[:5]}"


@pytest.fixture(scope="session")
def starts(request: pytest.FixtureRequest, flyball: Flyball) -> EngineStarts:
    """Who starts an engine has that of another scenario started beside it."""

    def small(name: str, **security: int) -> Callable[[], None]:
        asked = inference_service(name, image=flyball.refs["engine-cpu"])
        asked["spec"]["podTemplate"]["securityContext"] = security
        return lambda: apply(asked, namespace=flyball.watched)

    asking: dict[str, Callable[[], object]] = {
        "chat": small("chat"),
        "short": small("short", **_ASSIGNED_USER),
        "existing": lambda: existing_engine.ask(flyball),
        "shedding": lambda: ask_to_shed(flyball, SHEDDING, in_time(f"{SHEDDING_DEADLINE:g}s", "500ms")),
    }
    wanted = _wanted(request)
    return EngineStarts(flyball.watched, {name: asking[name] for name in _SERVICES if name in wanted})


@pytest.fixture(scope="session")
def chat(flyball: Flyball, starts: EngineStarts) -> Service:
    """A service that serves and is tuned; scenarios leave it as they found it."""
    service = Service("chat", flyball.watched)
    starts.ask(service.name)
    starts.ask_next()
    service.expect_governed()
    return service


@pytest.fixture(autouse=True)
def nothing_starts_beside_what_measures(request: pytest.FixtureRequest, flyball: Flyball) -> None:
    """Before a scenario that measures an engine under load, all engines are up, and idle."""
    if request.node.get_closest_marker("alone"):
        request.getfixturevalue("starts").expect_none()


@pytest.fixture(autouse=True)
def operator_logs_no_error(flyball: Flyball) -> Iterator[None]:
    """After each scenario: the operator met nothing it calls an error, besides what came before."""
    before = set(_errors(flyball))  # not their number: the log of an operator that was replaced begins anew
    yield
    fresh = [line for line in _errors(flyball) if line not in before]
    assert not fresh, "the operator logged:\n" + "\n".join(fresh[:5])


def _errors(flyball: Flyball) -> list[str]:
    return [line for line in flyball.logs().splitlines() if _ERRORS.search(line)]
