"""vLLM's own tests of its scheduler, with the governed class in the scheduler's place.

Run by the Python of the vLLM environment, in a folder where the models that the tests name are found: `python -m
support.own_tests SITE SETPOINT REPORT FILE...`. SITE is where pytest is installed. REPORT gets what became of each
test, as JSON: what vLLM prints, it prints to stdout.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vllm.v1.core.sched import async_scheduler, diffusion_scheduler, scheduler
from vllm.version import __version_tuple__

from flyball_engine.contract import OnTime, Setpoint
from flyball_engine.model import StepModel
from flyball_engine.vllm.plugin import governed_class
from flyball_lab.harness.engine import setpoint
from support import an_image_model
from support.model_classes import look_up_here
from support.reflexes import a_budget

#: Seconds of a step that no test comes near: every prompt fits.
WIDE: Final = 60.0
_MODEL: Final = StepModel(t0=1e-3, h=0.0, c1=1e-5, c2=1e-5, beta=0.0, g=0.0, kappa=1)
#: Where vLLM's classes are named, and where its tests find them.
_CLASSES: Final = (
    (scheduler, "Scheduler"),
    (async_scheduler, "AsyncScheduler"),
    (diffusion_scheduler, "DiffusionScheduler"),
    (diffusion_scheduler, "DiffusionAsyncScheduler"),
)


#: Of the other models that they name.
_ARCHITECTURES: Final = ("OPTForCausalLM", "Qwen3NextForCausalLM")
#: Since 0.33 these need the newer model runner. On a GPU vLLM chooses it by itself, without Triton never.
_NEWER_RUNNER: Final = ("test_async_scheduling_pp_allows_rescheduling_with_output_placeholders",)


def _start(hooks: Any) -> dict[str, int]:
    return {knob.value: value for knob, value in hooks._enforcer.started().items()}


#: What a scheduler is told as soon as it is made.
SETPOINTS: Final[dict[str, Callable[[Any], Setpoint | None]]] = {
    "no setpoint": lambda _: None,
    "the ceilings": lambda hooks: setpoint(1, limits=_start(hooks)),
    "a wide budget": lambda hooks: setpoint(1, limits=_start(hooks), step=a_budget(WIDE, _MODEL)),
    "the on-time order": lambda hooks: setpoint(
        1,
        limits=_start(hooks),
        step=a_budget(WIDE, _MODEL),
        on_time=OnTime(first_token_deadline_seconds=60.0),
    ),
}


def govern(tell: Callable[[Any], Setpoint | None]) -> None:
    """Put governed classes in the place of vLLM's."""
    for module, name in _CLASSES:
        setattr(module, name, _told(governed_class(getattr(module, name)), tell))


def _told(base: type[Any], tell: Callable[[Any], Setpoint | None]) -> type[Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 – it becomes a class's
        base.__init__(self, *args, **kwargs)
        assert self.flyball is not None, "this scheduler is not governed"
        if (told := tell(self.flyball)) is not None:
            self.flyball.apply(told)

    return type(base.__name__, (base,), {"__init__": __init__})


class Told:
    """A pytest plugin that keeps what became of each test, and has the one fixture that they take from elsewhere."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """The worst of a test's phases counts."""
        # Both files have tests of the same name.
        name = f"{Path(report.location[0]).name}::{report.nodeid.rpartition('::')[2]}"
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[name] = report.outcome
        if report.failed:
            self.reasons[name] = str(report.longrepr)[-3000:]


def main(site: str, told: str, report: str, *files: str) -> int:
    """Run them all; a failure among them is a result, not an error."""
    if told != "vLLM's own":
        govern(SETPOINTS[told])
    an_image_model.register()
    for architecture in _ARCHITECTURES:
        look_up_here(architecture)
    sys.path.append(site)  # behind all that vLLM brings
    import pytest  # noqa: PLC0415 – found there

    class Fixtures:
        @pytest.fixture(autouse=True)
        def model_runner(self, request: Any, monkeypatch: Any) -> None:
            if request.node.name in _NEWER_RUNNER and __version_tuple__[:2] >= (0, 33):
                monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")

        @pytest.fixture
        def caplog_vllm(self, caplog: Any, monkeypatch: Any) -> Any:
            monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
            return caplog

    results = Told()
    code = pytest.main(
        ["-q", "--import-mode=importlib", "-p", "no:cacheprovider", *files], plugins=[results, Fixtures()]
    )
    Path(report).write_text(json.dumps({"outcomes": results.outcomes, "reasons": results.reasons}))
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(code)


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # At once: how a process ends in which vLLM's tests left threads says nothing of the tests.
    os._exit(code)
