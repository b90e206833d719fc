"""docs/wrong-inputs.md, from the lists beside this file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.wrong_inputs import command_lines, control, openai, sizing


@dataclass(frozen=True)
class Door:
    """A way in: what it is, how it refuses, the test that goes through its rows; a row is input, status and words."""

    title: str
    answers: str
    test: str
    rows: Sequence[tuple[str, int, Sequence[str]]]


def doors() -> Iterator[Door]:
    """Every way in."""
    yield Door(
        "Control port: `PUT /v1/setpoint`",
        "An HTTP status and `{error, message, applied}`; nothing is changed. Of each body what is wrong is shown.",
        "tests/contract/test_control_port_strangers.py",
        [(control.shown(given), 422, says) for given, says in control.BODIES]
        + [(given, status, [refusal.value]) for given, status, refusal in control.OTHERS],
    )
    yield Door(
        "OpenAI API of vLLM, behind Flyball's gate and hooks",
        "vLLM's own answers, unchanged by the plugin; what is wrong is never taken for overload (503).",
        "tests/engine/test_gate.py",
        [(f"{path} {given}", status, says) for path, given, status, says in openai.VLLM],
    )
    yield Door(
        "OpenAI API of the simulated engine",
        "An HTTP status and an error of OpenAI's form.",
        "tests/contract/test_simulated_engine.py",
        [(f"{path} {given}", status, says) for path, given, status, says in openai.SIMULATED]
        + [(given, status, [says]) for given, status, says in [openai.TOO_LARGE]],
    )
    yield Door(
        "OpenAI API of the padded engine",
        "As above.",
        "tests/contract/test_padded_server.py",
        [(f"{path} {given}", status, says) for path, given, status, says in openai.PADDED],
    )
    yield Door(
        "Launcher: the user's vLLM arguments",
        "Exit code 64, before anything loads; the reason is in the log and in the pod's termination message.",
        "tests/engine/test_arguments.py",
        [(" ".join(given), 64, [says]) for given, says in command_lines.VLLM_ARGUMENTS],
    )
    yield Door(
        "Launcher: its own arguments",
        "As above.",
        "tests/unit/test_launch.py",
        [(given, 64, [says]) for given, says in command_lines.LAUNCHER],
    )
    yield Door(
        "`flyball size`",
        "Exit code 2 and one line, which ends with what is accepted.",
        "tests/unit/test_cli_size.py",
        [(" ".join([f"({case})", *options]), 2, says) for case, (_, options, says) in sizing.WRONG.items()],
    )
    yield Door(
        "`python -m flyball_lab.simulator`",
        "Exit code 2, the usage, and what is accepted.",
        "tests/unit/test_commands.py",
        [(given, 2, says) for given, says in command_lines.SIMULATOR],
    )
    yield Door(
        "`python -m flyball_lab.padded`",
        "As above.",
        "tests/unit/test_commands.py",
        [(given, 2, says) for given, says in command_lines.PADDED],
    )
    yield Door(
        "`flyball`",
        "As above.",
        "tests/unit/test_commands.py",
        [(f"flyball {given}".strip(), 2, says) for given, says in command_lines.FLYBALL],
    )
    yield Door(
        "`python -m flyball_operator`",
        "As above; nothing is started.",
        "tests/unit/test_commands.py",
        [(given, 2, says) for given, says in command_lines.OPERATOR],
    )
    yield Door(
        "`python -m flyball_operator`: variables `FLYBALL_…`",
        "Exit code 2 and a line for each, which never has what is in a file; nothing is started.",
        "tests/unit/test_settings.py",
        [(given, 2, says) for given, says in command_lines.SETTINGS],
    )
    yield Door(
        "Variable `FLYBALL_NETWORK_POLICY` of the operator",
        "Exit code 2 and a line per fault, which begins with the variable; nothing is touched.",
        "tests/unit/test_network_policy.py",
        [(given, 2, says) for given, says in command_lines.NETWORK_POLICY],
    )
    yield Door(
        "`flyball-bench`",
        "As above.",
        "tests/unit/test_bench.py",
        [(f"flyball-bench {given}".strip(), 2, says) for given, says in command_lines.EXERCISE],
    )
    yield Door(
        "`hack/bench`",
        "As above.",
        "tests/unit/test_commands.py",
        [(f"hack/bench {given}".strip(), 2, says) for given, says in command_lines.BENCH],
    )
    yield Door(
        "`hack/…`",
        "An exit code and a line that says what is accepted; nothing is started.",
        "tests/unit/test_hack.py",
        [(f"hack/{given}", code, [says]) for given, code, says in command_lines.SCRIPTS],
    )


def page() -> str:
    """The page."""
    parts = [_HEAD.format(count=sum(len(door.rows) for door in doors()))]
    for door in doors():
        rows = [f"| `{_cell(given)}` | {code} | {_words(says)} |" for given, code, says in door.rows]
        parts.append("\n".join([f"## {door.title}\n", f"{door.answers} Shown by `{door.test}`.\n", *_TABLE, *rows, ""]))
    return "\n".join(parts)


_HEAD = """\
# Wrong inputs, and what is answered

Generated by `hack/gen` from `tests/support/wrong_inputs`, which the tests named below go through; do not edit. Of each
answer the words that matter are shown: the field or option, and what is accepted. {count} in all. Wrong manifests,
which the API server refuses, are in `tests/support/wrong_manifests.py`.
"""
_TABLE = ["| input | status | the answer says |", "|---|---|---|"]
_LONGEST = 150


def _cell(given: str) -> str:
    short = given if len(given) <= _LONGEST else given[: _LONGEST - 1] + "…"
    return short.replace("|", "\\|").replace("\n", " ") or "(nothing)"


def _words(says: Sequence[str]) -> str:
    return ", ".join(f"“{words.replace('|', chr(92) + '|')}”" for words in says)
