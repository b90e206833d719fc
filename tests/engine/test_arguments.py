"""The launcher against the real parser of the installed vLLM: what each spelling means, and what is started."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from flyball_engine.launching import EXIT_REFUSED
from flyball_lab.harness.launcher import LaunchResult, environment, launch
from support.installed import Installed
from support.wrong_inputs.command_lines import REFUSED, VLLM_ARGUMENTS, WRONG

pytestmark = pytest.mark.engine

OWNED = (
    "--model=/m", "--served-model-name=chat", "--host=0.0.0.0", "--port=8000", "--max-num-seqs=16",
    "--max-num-batched-tokens=2048", "--max-num-active-seqs=16", "--max-num-scheduled-tokens=2048",
    "--tensor-parallel-size=1", "--enable-prefix-caching", "--shutdown-timeout=60",
    # vLLM draws an engine's id anew whenever it reads this.
    '--kv-transfer-config={"kv_connector":"ExampleConnector","kv_role":"kv_producer"}',
)  # fmt: skip

#: What is the user's to say.
TAKEN: tuple[tuple[str, ...], ...] = (
    (),
    ("--max-model-len=1k", "--kv-cache-dtype=fp8", "--no-enable-chunked-prefill"),
    ("--compilation-config.mode", "0", "-O2"),
    ("--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens", "2"),
    ("--lora-modules", "a=b", "c=d", "--middleware=a.b", "--middleware=c.d"),
    ("--max_num_queued_tokens", "9000", "--scheduling-policy", "priority"),
    ("--hf-token",),
    ("--api-server-count=4",),
)
#: Fields of an argument that is Flyball's, which the parser would put into it.
CHANGING = (("--kv-transfer-config.kv_role", "kv_both"), ("--kv-transfer-config.kv_connector_extra_config.a", "b"))
CONTRADICTING = ("--max-num-seqs=32", "--max-num-batched-tokens=16", "--max-num-active-seqs=33")


@dataclass(frozen=True)
class Verdict:
    refused: list[str]
    arguments: list[str]
    dropped: list[str]


_ASK = """
import json, logging, sys
from flyball_engine.vllm.arguments import Arguments, Question, build_parser, examine
logging.disable(logging.WARNING)
arguments = Arguments(build_parser())
answers = [examine(arguments, Question(user=user, owned=owned)) for user, owned in json.load(sys.stdin)]
sys.stderr.write("\\n" + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def verdicts(
    vllm_python: str, plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, ...], Verdict]:
    """What the parser makes of every command line of this file, asked once: it takes seconds to load."""
    lines = [*REFUSED, *WRONG, *TAKEN, *CHANGING]
    questions = json.dumps([*((line, [*OWNED, "--no-such-argument=3"]) for line in lines), ([], CONTRADICTING)])
    variables = environment(tmp_path_factory.mktemp("home"), python_path=[plugin])
    asked = subprocess.run(
        [vllm_python, "-c", _ASK],
        input=questions,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return {
        line: Verdict(*answer)
        for line, answer in zip([*lines, CONTRADICTING], json.loads(asked.stderr.splitlines()[-1]), strict=True)
    }


@pytest.mark.parametrize(("line", "why"), [pytest.param(*case, id=" ".join(case[0])) for case in VLLM_ARGUMENTS])
def test_is_refused(
    verdicts: dict[tuple[str, ...], Verdict], installed: Installed, line: tuple[str, ...], why: str
) -> None:
    if line in REFUSED and installed.absent(line):
        why = f"this vLLM has no argument {line[0]}"
    assert any(why in reason for reason in verdicts[line].refused), verdicts[line].refused


@pytest.mark.parametrize("line", TAKEN, ids=" ".join)
def test_is_taken_with_the_users_first_and_the_owned_ones_last(
    verdicts: dict[tuple[str, ...], Verdict], installed: Installed, line: tuple[str, ...]
) -> None:
    if absent := installed.absent(line):
        pytest.skip(f"this vLLM has no {', '.join(absent)}")
    dropped = [token for token in OWNED if installed.absent([token])]
    assert verdicts[line].refused == []
    assert verdicts[line].arguments == [*line, *(token for token in OWNED if token not in dropped)]
    assert verdicts[line].dropped == [*dropped, "--no-such-argument=3"]


@pytest.mark.parametrize("line", CHANGING, ids=" ".join)
def test_a_field_of_an_argument_that_is_flyballs_is_refused(
    verdicts: dict[tuple[str, ...], Verdict], line: tuple[str, ...]
) -> None:
    assert verdicts[line].refused == ["the arguments change --kv-transfer-config, which is Flyball's to set"]


@pytest.fixture(scope="module")
def launches(vllm_python: str, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, LaunchResult]:
    """The launcher's own runs, beside each other: each takes seconds to load vLLM, on one core."""
    broken = with_broken_plugin(tmp_path_factory.mktemp("broken"))
    owned = json.dumps(["--port=8000", "--no-such-argument=3"])
    runs: dict[str, tuple[list[Path], list[str]]] = {
        "refused": ([plugin], ['--owned=["--max-num-seqs=16"]', "--", "--max_num_s=7"]),
        "governed": ([plugin], ["--check", f"--owned={owned}", "--", "--dtype", "half"]),
        "several": ([plugin], ["--check", '--owned=["--port=8000"]', "--", "-asc", "4"]),
        "broken": ([broken, plugin / "flyball_engine" / ".."], ["--check", "--owned=[]", "--"]),
    }
    homes = {name: tmp_path_factory.mktemp(name) for name in runs}

    def run(name: str) -> LaunchResult:
        python_path, arguments = runs[name]
        return launch(
            *arguments, variables=environment(homes[name], python_path=python_path), python=vllm_python, within=300
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(runs, pool.map(run, runs), strict=True))


def with_broken_plugin(folder: Path) -> Path:
    metadata = folder / "flyball_broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: flyball_broken\nVersion: 1\n")
    points = "[vllm.general_plugins]\nflyball = flyball_engine.vllm.nowhere:register\n"
    (metadata / "entry_points.txt").write_text(points)
    return folder


def test_a_refusal_is_on_stderr_and_in_the_termination_log(launches: Mapping[str, LaunchResult]) -> None:
    ended = launches["refused"]
    assert ended.code == EXIT_REFUSED
    assert "refused: " in ended.log
    assert ended.termination is not None
    assert "--max-num-seqs" in ended.termination


def test_sizes_that_contradict_each_other_are_refused_before_anything_loads(
    verdicts: dict[tuple[str, ...], Verdict], installed: Installed
) -> None:
    batched, *active = verdicts[CONTRADICTING].refused
    assert "maxNumBatchedTokens (16) is below maxNumSeqs (32)" in batched
    if not installed.absent(["--max-num-active-seqs"]):  # else it is dropped, and contradicts nothing
        assert [reason.partition(":")[0] for reason in active] == ["maxNumActiveSeqs (33) is above maxNumSeqs (32)"]


def test_a_governed_start_names_the_plugins_and_has_a_folder_for_state(launches: Mapping[str, LaunchResult]) -> None:
    ended = launches["governed"]
    assert ended.code == 0, ended.log
    assert "has no --no-such-argument: dropped" in ended.log
    assert "VLLM_PLUGINS=lora_filesystem_resolver,lora_hf_hub_resolver,flyball,flyball_control" in ended.out
    assert ended.out.rstrip().endswith("vllm.entrypoints.openai.api_server --dtype half --port=8000")


def test_several_api_servers_are_started_by_vllms_own_command(launches: Mapping[str, LaunchResult]) -> None:
    ended = launches["several"]
    assert ended.code == 0, ended.log
    assert ended.out.rstrip().endswith("flyball_engine.vllm.serve -asc 4 --port=8000")


def test_a_plugin_that_does_not_load_leaves_plain_vllm_and_a_reason(launches: Mapping[str, LaunchResult]) -> None:
    ended = launches["broken"]
    assert ended.code == 0, ended.log
    assert (
        "starting plain vLLM, without Flyball's plugin: flyball_engine.vllm.nowhere:register does not load" in ended.log
    )
    assert "VLLM_PLUGINS=lora_filesystem_resolver,lora_hf_hub_resolver " in ended.out
