"""The launcher where there is no vLLM: its own arguments, refusals, and what it does when it can ask nobody."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from flyball_engine.launch import group
from flyball_engine.launching import EXIT_REFUSED, GROUP_PORT, launch_command
from flyball_lab.harness.launcher import SOURCE, environment, launch
from support.wrong_inputs.command_lines import LAUNCHER


def test_the_command_keeps_the_users_arguments_verbatim_behind_the_first_separator() -> None:
    command = launch_command(owned=["--port=8000"], user=["--", "--owned=[]", "--x y"])
    assert command == [
        "python3",
        "-m",
        "flyball_engine.launch",
        '--owned=["--port=8000"]',
        "--",
        "--",
        "--owned=[]",
        "--x y",
    ]


@pytest.mark.parametrize(("owned", "complaint"), LAUNCHER)
def test_arguments_of_its_own_that_make_no_sense_are_refused(tmp_path: Path, owned: str, complaint: str) -> None:
    ended = launch(owned, "--", variables=environment(tmp_path))
    assert ended.code == EXIT_REFUSED
    assert complaint in ended.log
    assert ended.termination is not None
    assert complaint in ended.termination


def test_help_explains_the_command(tmp_path: Path) -> None:
    ended = launch("--help", variables=environment(tmp_path))
    assert ended.code == 0
    assert "refused under any" in ended.out
    assert "--owned" in ended.out


def test_where_vllm_cannot_be_asked_the_arguments_go_to_plain_vllm_as_they_are(tmp_path: Path) -> None:
    ended = launch("--check", '--owned=["--port=8000"]', "--", "--dtype", "half", variables=environment(tmp_path))
    assert ended.code == 0
    assert "starting plain vLLM, without Flyball's plugin: vLLM cannot be asked: ImportError" in ended.log
    assert "no FlexibleArgumentParser in vllm" in ended.log
    assert ended.out.rstrip().endswith("-m vllm.entrypoints.openai.api_server --dtype half --port=8000")
    assert "VLLM_PLUGINS=" in ended.out
    assert ended.termination is None


def install(folder: Path, modules: Mapping[str, str]) -> None:
    """A package `vllm` of these modules."""
    for name, source in modules.items():
        path = folder / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + "\n")


def vllm_that_tells(folder: Path) -> Path:
    """In vLLM's place: a parser, and a server that says in which process it runs, and with which arguments.

    Each load of it writes the process id into the file that is returned.
    """
    loads = folder / "loads"
    modules = {
        "__init__": f"import os; __version__ = '0.32.0'; open({str(loads)!r}, 'a').write(f'{{os.getpid()}}\\n')",
        "utils/__init__": "",
        "utils/argparse_utils": "from argparse import ArgumentParser as FlexibleArgumentParser",
        "entrypoints/__init__": "",
        "entrypoints/openai/__init__": "",
        "entrypoints/openai/cli_args": (
            "def make_arg_parser(parser):\n"
            "    print('loading')\n"
            "    parser.add_argument('--port', type=int)\n"
            "    return parser"
        ),
        "entrypoints/openai/api_server": (
            "import os, signal, sys\n"
            "print(__name__, os.getpid(), sys.argv[1:], signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,"
            " os.path.isdir(os.environ['FLYBALL_STATE_DIR']))"
        ),
    }
    install(folder, modules)
    metadata = folder / "flyball_engine-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flyball-engine\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nflyball = flyball_engine.launching:launch_command\n"
        "[vllm.endpoint_plugins]\nflyball_control = flyball_engine.launching:launch_command\n"
    )
    return loads


def test_vllm_is_loaded_once_and_serves_in_the_process_that_asked_its_parser(tmp_path: Path) -> None:
    loads = vllm_that_tells(tmp_path)
    ended = launch('--owned=["--port=8000"]', "--", variables=environment(tmp_path, python_path=[tmp_path, SOURCE]))
    assert ended.code == 0, ended.log
    (process,) = loads.read_text().split()
    (served,) = ended.out.splitlines()
    # The last: the folder that the engine core and the API server share is there.
    assert served == f"__main__ {process} ['--port=8000'] True True", ended.out


def test_a_pod_of_several_nodes_runs_its_share_of_the_ranks(tmp_path: Path) -> None:
    place = environment(tmp_path) | {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "chat-0.chat-0.team"}
    ended = launch("--check", "--ranks=2", '--owned=["--data-parallel-size=4"]', "--", variables=place)
    assert ended.code == 0, ended.log
    assert ended.out.rstrip().endswith(
        "--data-parallel-size=4 --data-parallel-size-local=2 --data-parallel-start-rank=2 --data-parallel-hybrid-lb"
        " --data-parallel-address=chat-0.chat-0.team --data-parallel-rpc-port=29550"
    )


def test_a_pod_with_one_rank_is_told_its_number_alone(tmp_path: Path) -> None:
    place = environment(tmp_path) | {"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "chat-0.chat-0.team"}
    ended = launch("--check", "--ranks=1", '--owned=["--data-parallel-size=2"]', "--", variables=place)
    assert "--data-parallel-size=2 --data-parallel-rank=1 --data-parallel-address=" in ended.out


LWS = {"LWS_LEADER_ADDRESS": "chat-0.chat-0.team"}


def test_of_an_engine_core_over_nodes_the_leader_serves(tmp_path: Path) -> None:
    place = environment(tmp_path) | LWS | {"LWS_WORKER_INDEX": "0"}
    ended = launch("--check", "--nodes=2", '--owned=["--tensor-parallel-size=4"]', "--", variables=place)
    assert ended.code == 0, ended.log
    assert ended.out.rstrip().endswith(
        "vllm.entrypoints.openai.api_server --tensor-parallel-size=4"
        " --nnodes=2 --node-rank=0 --master-addr=chat-0.chat-0.team --master-port=29550"
    )


def test_of_an_engine_core_over_nodes_a_worker_is_headless(tmp_path: Path) -> None:
    vllm_that_cannot_be_asked(tmp_path)
    place = environment(tmp_path, python_path=[tmp_path, SOURCE]) | LWS | {"LWS_WORKER_INDEX": "1"}
    ended = launch("--check", "--nodes=2", "--owned=[]", "--", "--api-server-count=2", variables=place)
    assert ended.code == 0, ended.log
    assert ended.out.rstrip().endswith(
        "-m vllm.entrypoints.cli.main serve --api-server-count=2 --nnodes=2 --node-rank=1"
        " --master-addr=chat-0.chat-0.team --master-port=29550 --headless --api-server-count=0"
    )


#: An address of this machine where no other test listens.
LEADER = "127.0.0.77"


def vllm_that_cannot_be_asked(folder: Path) -> None:
    """In vLLM's place: its own command, which says with which arguments it runs, and no parser."""
    main = "import sys; print(sys.argv[1:]) if __name__ == '__main__' else None"
    packages = dict.fromkeys(("__init__", "entrypoints/__init__", "entrypoints/cli/__init__"), "")
    install(folder, packages | {"entrypoints/cli/main": main})
    metadata = folder / "vllm-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0\n")


def test_where_vllm_s_own_command_does_not_start_either_a_worker_is_refused(tmp_path: Path) -> None:
    place = environment(tmp_path) | LWS | {"LWS_WORKER_INDEX": "1"}
    ended = launch("--check", "--nodes=2", "--owned=[]", "--", variables=place)
    assert ended.code == EXIT_REFUSED
    assert ended.termination is not None
    assert "a worker of this vLLM, whose distribution is not named vllm, is not started: vLLM" in ended.termination


def test_where_vllm_cannot_be_asked_its_own_command_starts_a_worker(tmp_path: Path) -> None:
    vllm_that_cannot_be_asked(tmp_path)
    place = environment(tmp_path, python_path=[tmp_path, SOURCE])
    place |= {"LWS_LEADER_ADDRESS": LEADER, "LWS_WORKER_INDEX": "1"}
    with socket.create_server((LEADER, GROUP_PORT)):
        ended = launch("--nodes=2", '--owned=["--tensor-parallel-size=4"]', "--", "--dtype=half", variables=place)
    assert ended.code == 0, ended.log
    assert "starting plain vLLM, without Flyball's plugin: vLLM cannot be asked: ImportError" in ended.log
    group_of = ["--nnodes=2", "--node-rank=1", f"--master-addr={LEADER}", f"--master-port={GROUP_PORT}"]
    worker = ["--headless", "--api-server-count=0"]
    assert ended.out.rstrip() == str(["serve", "--dtype=half", "--tensor-parallel-size=4", *group_of, *worker])
    assert group.noted(tmp_path) == LEADER, "the worker that is to end asks there"


def test_a_pod_is_a_part_of_one_core_or_has_ranks(tmp_path: Path) -> None:
    place = environment(tmp_path) | LWS | {"LWS_WORKER_INDEX": "0"}
    ended = launch("--check", "--nodes=2", "--ranks=1", "--owned=[]", "--", variables=place)
    assert ended.code == EXIT_REFUSED
    assert "not allowed with argument" in ended.log


def test_without_a_leader_worker_set_a_pod_of_several_nodes_is_refused(tmp_path: Path) -> None:
    ended = launch("--check", "--ranks=1", "--owned=[]", "--", variables=environment(tmp_path))
    assert ended.code == EXIT_REFUSED
    assert "needs LWS_WORKER_INDEX and LWS_LEADER_ADDRESS, which a LeaderWorkerSet sets" in ended.log


def test_a_vllm_that_knows_no_several_nodes_is_not_started_for_them(tmp_path: Path) -> None:
    vllm_that_tells(tmp_path)
    place = environment(tmp_path, python_path=[tmp_path, SOURCE])
    place |= LWS | {"LWS_WORKER_INDEX": "1"}
    for part, lacks in (("--ranks=2", "--data-parallel-hybrid-lb"), ("--nodes=2", "--nnodes")):
        ended = launch("--check", part, '--owned=["--port=8000"]', "--", variables=place)
        assert ended.code == EXIT_REFUSED
        assert f"this vLLM has no {lacks}, which engines over several nodes need" in ended.log
