"""What the tests on a real vLLM share: its environment, the plugin as a pod finds it, the small model."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.vllm_server import make_model, make_plugin, started
from support import forked_processes
from support.installed import Installed, ask
from support.served import Keeper, Served
from support.whole_run import Machine, made_once, run_folder

#: A chat template: the small model's tokenizer has none.
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
#: Opens a route that takes tokens, where there is such an option.
_SCALE_OUT = "--enable-scale-out"


#: Tests that need a server, by file, where this vLLM has none.
_LEFT_OUT = pytest.StashKey[Counter[str]]()
#: Whose the machine is, where several processes have tests; seconds that a phase of a test waited for it.
_MACHINE, _WAITED = pytest.StashKey[Machine](), pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.stash[_MACHINE] = Machine(run_folder(Path(config.getoption("basetemp"))))


@contextmanager
def the_machine(item: pytest.Item, *, alone: bool = False) -> Iterator[None]:
    """Have it for one phase of a test. Engines start side by side, and measure one after the other."""
    if (machine := item.config.stash.get(_MACHINE, None)) is None:
        yield
        return
    began = time.monotonic()
    with machine.held(alone=alone):
        item.stash[_WAITED] = time.monotonic() - began
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with the_machine(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """The limit of a test begins once it has the machine."""
    with the_machine(item, alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with the_machine(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test takes is told without its waiting."""
    report = yield
    report.duration -= item.stash.get(_WAITED, 0.0)
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What ends the shared server comes after what uses it: it would have to be started anew.

    What looks at the start of a file's server comes before what uses that one.
    """
    order = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}

    def place(item: pytest.Item) -> tuple[bool, int, bool]:
        ends, begins = (item.get_closest_marker(name) is not None for name in ("ends_server", "begins_server"))
        return ends, order[item.path], not begins

    items.sort(key=place)
    if os.environ.get("FLYBALL_VLLM_SERVES") == "no":
        left_out = [item for item in items if "server_python" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=left_out)
        keep_left_out(config, Counter(item.path.name for item in left_out))
        items[:] = [item for item in items if item not in left_out]


def keep_left_out(config: pytest.Config, left_out: Counter[str]) -> None:
    """For the end of the run, which another process may tell."""
    config.stash[_LEFT_OUT] = left_out
    if (output := getattr(config, "workeroutput", None)) is not None:
        output["left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process that ran some of the tests has ended; each of them left out the same."""
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[_LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says what was left out."""
    if left_out := config.stash.get(_LEFT_OUT, None):
        named = ", ".join(f"{file} ({count})" for file, count in sorted(left_out.items()))
        terminalreporter.write_line(f"left out, for there is no build of this vLLM that serves on a CPU: {named}")


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The Python of the vLLM environment, which is not this one."""
    python = os.environ.get("FLYBALL_VLLM_PYTHON")
    if not python:
        pytest.skip("FLYBALL_VLLM_PYTHON names no Python with vLLM; hack/test engine does")
    return python


@pytest.fixture(scope="session")
def server_python(vllm_python: str) -> str:
    """The same, for what serves a model. Tests with it are left out where FLYBALL_VLLM_SERVES is `no`."""
    return vllm_python


@pytest.fixture(scope="session")
def installed(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What is known of the vLLM that is tested."""
    asked = made_once(run_folder(tmp_path_factory.getbasetemp()), "asked", partial(ask, vllm_python))
    return Installed.read(asked)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH."""
    return make_plugin(tmp_path_factory.mktemp("plugin") / "flyball")


@pytest.fixture(scope="session")
def forking_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for servers of tests that are not about a start."""
    return make_plugin(tmp_path_factory.mktemp("forking_plugin") / "flyball", Path(forked_processes.__file__))


@pytest.fixture(scope="session")
def model(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model."""
    run = run_folder(tmp_path_factory.getbasetemp())
    return made_once(run, "model", lambda folder: make_model(vllm_python, folder / "tiny")) / "tiny"


@pytest.fixture(scope="session")
def keeper(
    server_python: str, plugin: Path, model: Path, installed: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keeper]:
    """Keeps the server of `served`."""
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(_TEMPLATE)
    tools = ["--enable-auto-tool-choice", "--tool-call-parser=pythonic"]
    user = [f"--chat-template={template}", *tools, *([] if installed.absent([_SCALE_OUT]) else [_SCALE_OUT])]
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--enable-prefix-caching", "--shutdown-timeout=120"]
    with closing(
        Keeper(
            lambda: started(
                server_python, tmp_path_factory.mktemp("served"), model=model, plugin=plugin, user=user, owned=owned
            )
        )
    ) as kept:
        yield kept


@pytest.fixture
def served(keeper: Keeper) -> Served:
    """A governed server with all that pods have, at its start values; it takes most of a minute to start."""
    return keeper.served()
