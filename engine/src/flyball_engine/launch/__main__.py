"""The command `python3 -m flyball_engine.launch --owned=<JSON list> -- <vLLM arguments>`; see `--help`.

Effects are here: it asks, writes the refusal, and becomes vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shlex
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, NoReturn

from flyball_engine.contract import Env
from flyball_engine.launch.environment import OUR_PLUGINS, Changes, Place, changes
from flyball_engine.launch.probe import ProbeError, ask
from flyball_engine.launch.report import Question
from flyball_engine.launch.state import SHARED_MEMORY, fresh_folder
from flyball_engine.launching import EXIT_REFUSED
from flyball_engine.termination import TERMINATION_LOG, write_termination_message

#: The server of one process, and of several.
SERVER: Final = "vllm.entrypoints.openai.api_server"
SERVERS: Final = "flyball_engine.vllm.serve"
#: Groups whose plugins vLLM loads unless VLLM_PLUGINS leaves them out.
_LOADED_GROUPS: Final = ("general_plugins", "platform_plugins", "io_processor_plugins", "stat_logger_plugins")

_HELP: Final = f"""Starts vLLM's API server under Flyball.

Arguments behind `--` are the user's and come first; those in --owned come last, so they win. The installed vLLM's own
parser is asked what the user's mean: one that sets what Flyball owns is refused under any spelling, and so is one this
vLLM does not have. Owned arguments that this vLLM does not have are dropped, with a word on stderr. If the plugin
cannot be loaded, plain vLLM is started with the same arguments, and stderr says why.

Exit code {EXIT_REFUSED}: refused; the reason is on stderr and in {TERMINATION_LOG} (or ${Env.TERMINATION_LOG})."""


class StartRefused(Exception):  # noqa: N818  an outcome, not a fault
    """The engine must not be started; the message says why."""


@dataclass(frozen=True)
class Start:
    """What to become: the arguments of vLLM's server, the changes to the environment, with the plugin or without.

    `api_servers`: how many processes take requests.
    """

    arguments: Sequence[str]
    environment: Changes
    governed: bool
    api_servers: int = 1

    def command(self) -> list[str]:
        """The command line to become."""
        server = SERVER if self.api_servers == 1 else SERVERS
        return [sys.executable, "-m", server, *self.arguments]


def say(message: str) -> None:
    """One line for whoever reads the container's log."""
    print(f"flyball: {message}", file=sys.stderr, flush=True)  # noqa: T201  there is no logging before vLLM's


def decide(question: Question, variables: Mapping[str, str]) -> Start:
    """How to start the engine. Raises StartRefused if the arguments must not be used."""
    place = _place(variables)
    plain = changes(place, governed=False)
    try:
        answer = ask(question, _prepared(plain.applied(variables)))
    except ProbeError as error:
        say(f"starting plain vLLM, without Flyball's plugin: {error}")
        return Start(arguments=[*question.user, *question.owned], environment=plain, governed=False)
    if answer.refused:
        raise StartRefused("; ".join(answer.refused))
    for token in answer.dropped:
        say(f"vLLM {answer.engine_version} has no {token.partition('=')[0]}: dropped")
    governed = answer.plugin is None
    if not governed:
        say(f"starting plain vLLM, without Flyball's plugin: {answer.plugin}")
    return Start(
        arguments=answer.arguments,
        environment=changes(place, governed=governed),
        governed=governed,
        api_servers=answer.api_servers,
    )


def _prepared(environment: dict[str, str]) -> dict[str, str]:
    """The environment, with its home made."""
    Path(environment["HOME"]).mkdir(parents=True, exist_ok=True)
    return environment


def _place(variables: Mapping[str, str]) -> Place:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = None
    installed = [point.name for group in _LOADED_GROUPS for point in entry_points(group=f"vllm.{group}")]
    return Place(
        variables=variables,
        scratch=tempfile.gettempdir(),
        user=user,
        writable=_writable,
        plugins=[name for name in installed if name not in OUR_PLUGINS],
    )


def _writable(path: str) -> bool:
    return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)


def _shared_memory() -> str:
    return SHARED_MEMORY if _writable(SHARED_MEMORY) else tempfile.gettempdir()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartRefused(f"the launcher's own arguments: {message}")


def _options(argv: Sequence[str]) -> tuple[Question, bool]:
    """The question to ask, and whether only to check. Raises StartRefused on arguments that are not understood."""
    split = list(argv).index("--") if "--" in argv else len(argv)
    parser = _Parser(
        prog="python3 -m flyball_engine.launch",
        usage="%(prog)s [--check] --owned=JSON -- [VLLM-ARGUMENT ...]",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--owned", type=_owned, default=[], metavar="JSON", help='list such as ["--port=8000", "--model=/m"]'
    )
    parser.add_argument("--check", action="store_true", help="print what would be started, and start nothing")
    given = parser.parse_args(argv[:split])
    return Question(user=tuple(argv[split + 1 :]), owned=tuple(given.owned)), given.check


def _owned(text: str) -> list[str]:
    try:
        tokens: Any = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if not (isinstance(tokens, list) and all(isinstance(token, str) and token.startswith("--") for token in tokens)):
        raise argparse.ArgumentTypeError("must be a list of strings that start with --, each with its value behind =")
    return tokens


def _refuse(reason: str, variables: Mapping[str, str]) -> NoReturn:
    """Says why and ends; the termination log is what the operator reads."""
    say(f"refused: {reason}")
    if (why := write_termination_message(reason, variables)) is not None:
        say(why)
    sys.exit(EXIT_REFUSED)


def main(argv: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Becomes vLLM, or ends with `EXIT_REFUSED`."""
    # As process 1 we would otherwise not hear a SIGTERM while the child runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        question, check = _options(argv)
        start = decide(question, variables)
    except StartRefused as refusal:
        _refuse(str(refusal), variables)
    for notice in start.environment.notices:
        say(notice)
    environment = start.environment.applied(variables)
    if check:
        added = [f"{name}={value}" for name, value in sorted(start.environment.set.items())]
        print(shlex.join(["env", *added, *start.command()]))  # noqa: T201  this is the answer
        sys.exit(0)
    if start.governed and not environment.get(Env.STATE_DIR):
        environment[Env.STATE_DIR] = fresh_folder(_shared_memory())
    os.execve(sys.executable, start.command(), _prepared(environment))  # noqa: S606  becoming vLLM is the purpose


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
