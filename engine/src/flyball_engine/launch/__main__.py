"""The command `python3 -m flyball_engine.launch --owned=<JSON list> -- <vLLM arguments>`; see `--help`.

Effects are here: it asks, writes the refusal, and runs vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import runpy
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from flyball_engine.contract import Env
from flyball_engine.launch import group
from flyball_engine.launch.compiled import remove_torn
from flyball_engine.launch.environment import Changes, Place, changes
from flyball_engine.launching import EXIT_REFUSED
from flyball_engine.termination import TERMINATION_LOG, write_termination_message
from flyball_engine.vllm.arguments import Question, answer
from flyball_engine.vllm.entry import installed_plugins
from flyball_engine.vllm.state_dir import ensure_state_dir

#: The server of one process, and what starts several, or none in a worker.
SERVER: Final = "vllm.entrypoints.openai.api_server"
SERVERS: Final = "flyball_engine.vllm.serve"
#: vLLM's own command, which starts a worker where vLLM cannot be asked.
COMMAND: Final = "vllm.entrypoints.cli.main"

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
    """What to run: the module of vLLM's server and its arguments, with the plugin or without."""

    server: str
    arguments: Sequence[str]
    governed: bool

    def command(self) -> list[str]:
        """The command line that does the same."""
        return [sys.executable, "-m", self.server, *self.arguments]


def say(message: str) -> None:
    """One line for whoever reads the container's log."""
    print(f"flyball: {message}", file=sys.stderr, flush=True)  # noqa: T201  there is no logging before vLLM's


def decide(question: Question) -> Start:
    """How to start the engine, by the vLLM of this process. Raises StartRefused if the arguments must not be used."""
    try:
        with _printing_to_stderr():
            found = answer(question)
    except Exception as error:  # whatever a foreign version raises: plain vLLM is better than none
        traceback.print_exc()
        why = f"vLLM cannot be asked: {type(error).__name__}: {error}"
        worker = group.HEADLESS in question.needed
        if worker and not _has_command():
            unnamed = "a worker of this vLLM, whose distribution is not named vllm, is not started"
            raise StartRefused(f"{unnamed}: {why}") from error
        say(f"starting plain vLLM, without Flyball's plugin: {why}")
        arguments = [*question.user, *question.owned, *question.needed]
        # The server's module knows no worker, and `SERVERS` asks the parser that has just failed.
        if worker:
            return Start(COMMAND, ["serve", *arguments], governed=False)
        return Start(SERVER, arguments, governed=False)
    if found.refused:
        raise StartRefused("; ".join(found.refused))
    for token in found.dropped:
        say(f"vLLM {found.engine_version} has no {token.partition('=')[0]}: dropped")
    if found.plugin is not None:
        say(f"starting plain vLLM, without Flyball's plugin: {found.plugin}")
    server = SERVER if found.api_servers == 1 else SERVERS
    return Start(server, found.arguments, governed=found.plugin is None)


def _has_command() -> bool:
    """Whether vLLM's own command starts: it asks for the version of a distribution of that name."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return False
    return True


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What anybody prints meanwhile goes to stderr: stdout is for the answer of `--check`."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(out, 1)
        os.close(out)


def _place(variables: Mapping[str, str]) -> Place:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = None
    return Place(
        variables=variables,
        scratch=tempfile.gettempdir(),
        user=user,
        writable=_writable,
        plugins=installed_plugins(),
    )


def _writable(path: str) -> bool:
    return Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartRefused(f"the launcher's own arguments: {message}")


class _Part(Protocol):
    """What vLLM is told of a pod of a group, by the address of the leader."""

    def __call__(self, found: group.Member, /, *, address: str) -> list[str]: ...


def _options(argv: Sequence[str]) -> tuple[Question, bool, _Part | None]:
    """The question to ask, whether only to check, and the part of a pod of a group, None where it is alone.

    Raises StartRefused on arguments that are not understood.
    """
    split = list(argv).index("--") if "--" in argv else len(argv)
    parser = _Parser(
        prog="python3 -m flyball_engine.launch",
        usage="%(prog)s [--check] [--ranks=N | --nodes=N] --owned=JSON -- [VLLM-ARGUMENT ...]",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--owned", type=_owned, default=[], metavar="JSON", help='list such as ["--port=8000", "--model=/m"]'
    )
    parser.add_argument("--check", action="store_true", help="print what would be started, and start nothing")
    groups = parser.add_mutually_exclusive_group()
    groups.add_argument("--ranks", type=int, metavar="N", help="data-parallel ranks of this pod of a LeaderWorkerSet")
    groups.add_argument("--nodes", type=int, metavar="N", help="pods of a LeaderWorkerSet's group, for one engine core")
    given = parser.parse_args(argv[:split])
    part: _Part | None = None
    if given.ranks is not None:
        part = partial(group.arguments, ranks=given.ranks)
    elif given.nodes is not None:
        part = partial(group.arguments_of_core, nodes=given.nodes)
    return Question(user=tuple(argv[split + 1 :]), owned=tuple(given.owned)), given.check, part


def _in_group(question: Question, part: _Part, variables: Mapping[str, str], *, check: bool) -> Question:
    """The question with the arguments of this pod's part. It waits for the leader, unless only to check."""
    try:
        member = group.member(variables)
    except group.NoGroupError as error:
        raise StartRefused(str(error)) from error
    address = member.leader if check else group.leader_address(member, say)
    needed = tuple(part(member, address=address))
    if group.HEADLESS in needed and not check:
        try:
            group.note(address, Path(tempfile.gettempdir()))
        except OSError as error:
            say(f"told to end, it will not wait for its leader: {error}")
    return replace(question, needed=needed)


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


def main(argv: Sequence[str], variables: MutableMapping[str, str]) -> None:
    """Runs vLLM to its end, or ends with `EXIT_REFUSED`. `variables` is the environment of this process."""
    # As process 1 we would otherwise not hear a SIGTERM while vLLM is loaded.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = dict(variables)
    place = _place(given)
    try:
        question, check, part = _options(argv)
        if part is not None:
            question = _in_group(question, part, given, check=check)
        _enter(variables, changes(place, governed=True), state=not check)
        start = decide(question)
    except StartRefused as refusal:
        _refuse(str(refusal), given)
    made = changes(place, governed=start.governed)
    for notice in made.notices:
        say(notice)
    if check:
        added = [f"{name}={value}" for name, value in sorted(made.set.items())]
        print(shlex.join(["env", *added, *start.command()]))  # noqa: T201  this is the answer
    elif start.governed:
        if root := given.get("VLLM_CACHE_ROOT"):
            for torn in remove_torn(Path(root)):
                say(f"removed {torn}, which is not whole: what it lists is compiled anew")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.argv[1:] = start.arguments
        runpy.run_module(start.server, run_name="__main__", alter_sys=True)
    else:
        # A plugin that failed half-way is in this process: another image of it has none.
        os.execve(sys.executable, start.command(), made.applied(given))  # noqa: S606  becoming vLLM is the purpose


def _enter(variables: MutableMapping[str, str], made: Changes, *, state: bool) -> None:
    """Makes the environment what a governed vLLM shall find, before anything of vLLM is loaded."""
    wanted = made.applied(variables)
    for name in set(variables) - set(wanted):
        del variables[name]
    variables.update(wanted)
    if state:
        ensure_state_dir(variables)
    Path(variables["HOME"]).mkdir(parents=True, exist_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
