"""What the scripts in hack/ make of wrong input, where that starts nothing: no cluster, no build, no engine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball_lab.harness.waiting import eventually
from support.wrong_inputs.command_lines import SCRIPTS

HACK = Path(__file__).parents[2] / "hack"


@dataclass(frozen=True)
class Machine:
    """A user's shell: a cache of its own, and tools in front of the real ones that only note how they are called."""

    folder: Path
    cluster: Path

    @property
    def calls(self) -> str:
        noted = self.folder / "calls"
        return noted.read_text() if noted.exists() else ""

    def tool(self, name: str, script: str = "") -> None:
        tool = self.folder / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.folder}/calls"\n{script}\n')
        tool.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        theirs = {key: value for key, value in os.environ.items() if not key.startswith("FLYBALL_")}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        ours = {"FLYBALL_CACHE": f"{self.folder}/cache", "FLYBALL_CLUSTER_DIR": str(self.cluster)}
        return {**theirs, **ours, "HOME": str(self.folder), "PATH": path}

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HACK / command[0], *command[1:]],
            env={**self.environment, **variables}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def has_environment(self, name: str, script: str, *arguments: str) -> None:
        """The Python of a virtual environment that hack/ would otherwise install."""
        asked_for = " ".join([f"{name}_venv", *arguments])
        ask = f'source "{HACK}/lib/env.sh"; _venv() {{ echo "$FLYBALL_CACHE/venv/$1-$2/bin/python"; }}; {asked_for}'
        asked = subprocess.run(["bash", "-c", ask], env=self.environment, capture_output=True, text=True, check=True)
        python = Path(asked.stdout.strip())
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="fly-") as cluster:  # a cluster's path must be short
        yield Machine(tmp_path, Path(cluster))


def test_removing_the_demo_from_a_cluster_that_is_not_named_touches_none(machine: Machine) -> None:
    machine.tool("kubectl")
    machine.tool("helm")
    ended = machine.run("demo", "--down", FLYBALL_CLUSTER="external")
    assert ended.returncode == 1
    assert "FLYBALL_CONTEXT" in ended.stderr
    assert machine.calls == ""


def test_removing_the_demo_from_a_context_there_is_none_of_touches_none(machine: Machine) -> None:
    machine.tool("kubectl", 'case "$1" in config) exit 1 ;; esac')
    machine.tool("helm")
    ended = machine.run("demo", "--down", FLYBALL_CLUSTER="external", FLYBALL_CONTEXT="nowhere")
    assert ended.returncode == 1
    assert "there is no context 'nowhere'" in ended.stderr
    assert "delete" not in machine.calls
    assert "helm" not in machine.calls


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_what_the_tests_build_in_the_background_ends_with_them(machine: Machine, how: signal.Signals) -> None:
    machine.has_environment("dev", "exit 0")
    building = machine.folder / "building"
    machine.tool(
        "go", f'case "$1" in build) echo $$ >"{building}.new"; mv "{building}.new" "{building}"; exec sleep 100 ;; esac'
    )
    # Whoever runs us in the background ignores interrupts, and that is inherited.
    command = ["env", "--default-signal=INT", str(HACK / "test"), "pure"]
    with subprocess.Popen(command, env=machine.environment, stderr=subprocess.DEVNULL, process_group=0) as tests:
        eventually(building.exists, expecting="a build began")
        # To the whole group, as a terminal does; a kill meets the script alone.
        (os.killpg if how is signal.SIGINT else os.kill)(tests.pid, how)
        assert tests.wait(60) == (130 if how is signal.SIGINT else -signal.SIGKILL)
    eventually(lambda: is_gone(int(building.read_text())), expecting="the build ended")


def test_arguments_that_choose_no_test_are_not_a_failure_of_the_level_but_of_the_run(machine: Machine) -> None:
    machine.tool("dpkg-query", "echo ii")
    machine.tool("go")
    # As pytest does then, but not who looks for vLLM's own tests.
    machine.has_environment("dev", 'case "$*" in *vllm_tests*) ;; *) exit 5 ;; esac')
    machine.has_environment("vllm", "")
    ended = machine.run("test", "engine", "--", "-k", "nothing")
    assert ended.returncode == 1
    assert "no test of engine is chosen by: -k nothing" in ended.stderr
    assert "failed" not in ended.stderr
    assert "go " not in machine.calls, "vLLM's tests need none of the cluster's binaries"


@pytest.mark.parametrize("version", ["0.26", "0.26.0"])
def test_the_version_that_is_named_is_tested_and_nothing_else_runs(machine: Machine, version: str) -> None:
    machine.tool("dpkg-query", "echo ii")
    machine.tool("go")
    machine.has_environment("dev", 'echo "$FLYBALL_VLLM_PYTHON: $*"')
    machine.has_environment("vllm", "", "0.26")
    ended = machine.run("test", "--vllm", version)
    assert ended.returncode == 0, ended.stderr
    (session,) = ended.stdout.splitlines()
    assert "/venv/vllm-0.26-" in session
    assert "-m pytest " in session
    assert session.endswith(" tests/engine")


@pytest.mark.parametrize(("version", "serves"), [("newest", "no"), ("0.33", "no"), ("0.32", "yes")])
def test_a_vllm_without_a_build_for_cpus_serves_nothing(machine: Machine, version: str, serves: str) -> None:
    machine.tool("dpkg-query", "echo ii")
    machine.has_environment("dev", 'echo "$FLYBALL_VLLM_PYTHON $FLYBALL_VLLM_SERVES"')
    machine.has_environment("vllm", "", version)
    ended = machine.run("test", "--vllm", version)
    assert ended.returncode == 0, ended.stderr
    python, served = ended.stdout.splitlines()[0].split()
    assert ("/venv/vllm-newest-" in python) == (serves == "no")
    assert served == serves


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"FLYBALL_CLUSTER": "extern"}, "FLYBALL_CLUSTER must be external or empty, is 'extern'"),
        ({"FLYBALL_CACHE": "cache"}, "FLYBALL_CACHE must be an absolute path, is 'cache'"),
        ({"FLYBALL_CLUSTER_INDEX": "12"}, "FLYBALL_CLUSTER_INDEX must be one digit, is '12'"),
        ({"FLYBALL_CLUSTER_DIR": "relative"}, "FLYBALL_CLUSTER_DIR must be an absolute path"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(f"{k}={v}" for k, v in value.items()),
)
def test_an_odd_variable_is_refused_in_words(machine: Machine, variables: dict[str, str], said: str) -> None:
    ended = machine.run("cluster", "status", **variables)
    assert ended.returncode == 1
    assert said in ended.stderr


@pytest.mark.parametrize(("arguments", "code", "said"), [pytest.param(*case, id=case[0]) for case in SCRIPTS])
def test_a_wrong_argument_is_answered_with_what_is_accepted(
    machine: Machine, arguments: str, code: int, said: str
) -> None:
    ended = machine.run(*arguments.split())
    assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_a_cluster_in_another_folder_with_the_same_addresses_is_left_alone(machine: Machine) -> None:
    ready = machine.folder / "ready"
    script = f'ip link add flyball9b type veth peer name other && touch "{ready}" && read -r _'
    command = ["unshare", "--net", "sh", "-c", script, "flyball-cluster=/var/lib/the-other"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        try:
            eventually(ready.exists, expecting="another cluster")
            ended = machine.run("cluster", "down", FLYBALL_CLUSTER_INDEX="9")
            assert ended.returncode == 1
            assert "the cluster in /var/lib/the-other has index 9 too" in ended.stderr
        finally:
            other.kill()


def test_a_cluster_that_answers_late_is_not_taken_for_a_dead_one(machine: Machine) -> None:
    # The second question is answered: on a busy machine the first may time out.
    machine.tool(
        "kubectl", f'case "$*" in *readyz) [ $(grep -c readyz "{machine.folder}/calls") -gt 1 ] ;; *) echo True ;; esac'
    )
    script = f'source "{HACK}/lib/env.sh"; source "{HACK}/lib/cluster/up.sh"; node=node-1; cluster_answers'
    asked = subprocess.run(
        ["bash", "-euc", script], env=machine.environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (asked.returncode, machine.calls.count("readyz")) == (0, 2), asked.stderr


@pytest.mark.parametrize("failing", ["venv", "pip"])
def test_an_environment_whose_install_failed_is_none_and_the_next_run_tries_again(
    machine: Machine, failing: str
) -> None:
    make = 'for last; do :; done; mkdir -p "$last/bin"; ln -sf /bin/true "$last/bin/python"'
    machine.tool("uv", f'case "$1" in {failing}) exit 1 ;; venv) {make} ;; esac')
    ask = f'set -euo pipefail; source "{HACK}/lib/env.sh"; python=$(build_venv); echo "$python"'
    for tried in (1, 2):
        ended = subprocess.run(
            ["bash", "-c", ask], env=machine.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stdout) == (1, "")
        assert all(left.suffix == ".partial" for left in machine.folder.glob("cache/venv/*"))
        assert machine.calls.count("uv venv") == tried


@pytest.mark.parametrize(
    ("said", "tries"), [("Close_Fd sealing memfd copy: Device or resource busy", 3), ("no space left on device", 1)]
)
def test_a_build_that_the_kernel_did_not_let_start_is_tried_again_and_no_other(
    machine: Machine, said: str, tries: int
) -> None:
    machine.tool("buildah", f'case "$*" in *" bud "*) echo "{said}" >&2; exit 125 ;; esac')
    ask = f'source "{HACK}/lib/env.sh"; source "{HACK}/lib/images/build.sh"; image_build plugin plugin:1 Dockerfile .'
    ended = subprocess.run(
        ["bash", "-c", ask], env=machine.environment | {"FLYBALL_BASE": "base"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert machine.calls.count(" bud ") == tries
