"""Asks the installed vLLM's own parser what a command line means.

No spelling is understood here. Abbreviations, underscores, `--no-` forms, short names, dotted JSON and positionals are
all resolved by the parser that will read the command line later. So whatever it would take, this sees.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import logging
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Final, NoReturn

from flyball_engine.launching import IMPOSSIBLE_ARGUMENTS, OWNED_ARGUMENTS

#: Where vLLM keeps its server's arguments and its parser class, newest first (0.33; 0.32; 0.26 and later).
_ARGUMENT_MODULES: Final = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
_PARSER_MODULES: Final = ("vllm.utils.argparse_utils", "vllm.utils")

#: Flyball's entry points: what vLLM loads in every process, and in the API server.
PLUGINS: Final = (("vllm.general_plugins", "flyball"), ("vllm.endpoint_plugins", "flyball_control"))

#: What is refused, and what is said of it.
_REFUSED: Final = {name: f"is set by {setter}" for name, setter in OWNED_ARGUMENTS.items()} | {
    name: f"cannot be used: {reason}" for name, reason in IMPOSSIBLE_ARGUMENTS.items()
}

#: What says how many API servers there shall be. Without it we start one, `vllm serve` one for each data-parallel rank.
_SERVERS: Final = "api_server_count"
#: What says that there shall be none. Among the user's arguments it is refused.
_HEADLESS: Final = "headless"

#: The parser lists every option there is for some errors; this much of them helps.
MESSAGE_LENGTH: Final = 400


@dataclass(frozen=True)
class Question:
    """`user`: the tokens of `spec.engine.args`; `owned`: Flyball's arguments, one token each.

    `needed`: those of them without which the engine would not be what was asked for: a vLLM that lacks one is refused.
    """

    user: Sequence[str] = ()
    owned: Sequence[str] = ()
    needed: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """What the installed vLLM makes of a `Question`.

    `refused`: why it must not be started with these arguments, one sentence each; empty if it may.
    `arguments`: all arguments to start it with, the user's first. `dropped`: owned arguments this version lacks.
    `plugin`: why Flyball's plugin cannot be loaded; None if it can. `api_servers`: how many these arguments ask for,
    none of a pod that has workers alone.
    """

    engine_version: str
    refused: Sequence[str] = ()
    arguments: Sequence[str] = ()
    dropped: Sequence[str] = ()
    plugin: str | None = None
    api_servers: int = 1


class ArgumentsError(Exception):
    """The parser does not take these arguments; the message is its own."""


class Recorder(argparse.Namespace):
    """A namespace that knows which destinations arguments have set, as opposed to defaults.

    An optional positional is set to None when it is absent; that is not counted.
    """

    def __init__(self, *, options: Sequence[str], positionals: Sequence[str]) -> None:
        # Known destinations are present from the start, so that the parser sets no default: what is set was given.
        super().__init__(**dict.fromkeys([*options, *positionals]))
        object.__setattr__(self, "_positionals", frozenset(positionals))
        object.__setattr__(self, "_set", [])

    def __setattr__(self, name: str, value: Any) -> None:
        absent = value is None and name in self.__dict__.get("_positionals", ())
        if "_set" in self.__dict__ and name not in self._set and not absent:
            self._set.append(name)
        super().__setattr__(name, value)

    def destinations(self) -> list[str]:
        """Destinations set by arguments, in order."""
        return list(self._set)


class Arguments:
    """The installed parser, asked without its side effects (exits, messages)."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self._parser.error = self._raise
        self._parser.print_help = lambda *_: None
        self._actions = list(parser._actions)  # noqa: SLF001  argparse names them nowhere else

    def _recorder(self) -> Recorder:
        named = {action.dest: bool(action.option_strings) for action in self._actions}
        return Recorder(
            options=[dest for dest, option in named.items() if option],
            positionals=[dest for dest, option in named.items() if not option],
        )

    @staticmethod
    def _raise(message: str) -> NoReturn:
        raise ArgumentsError(message)

    def parse(self, tokens: Sequence[str]) -> Recorder:
        """What these arguments set. Raises ArgumentsError, whatever way the parser fails in."""
        namespace = self._recorder()
        try:
            self._parser.parse_args(list(tokens), namespace)
        except ArgumentsError:
            raise
        except SystemExit:
            raise ArgumentsError("one of them makes vLLM print something and exit") from None
        except IndexError:  # how the parser fails on a dotted argument at the end
            raise ArgumentsError("the last one lacks its value") from None
        except Exception as error:
            raise ArgumentsError(f"{type(error).__name__}: {error}") from error
        return namespace

    def knows(self, token: str) -> bool:
        """True if the parser has an option for this one token."""
        try:
            _, rest = self._parser.parse_known_args([token], self._recorder())
        except ArgumentsError:
            return True  # known, with a value it does not take: the whole command line will say so
        return not rest

    def names(self) -> frozenset[str]:
        """Every argument there is, by the parser's own name (`dest`)."""
        return frozenset(action.dest for action in self._actions)

    def destination(self, option: str) -> str | None:
        """Destination of an option as the parser names it in its messages (`-tp` or `--tensor-parallel-size/-tp`)."""
        names = set(option.split("/"))
        return next((action.dest for action in self._actions if names & set(action.option_strings)), None)

    def closest(self, token: str) -> str | None:
        """The option a mistyped one most likely means."""
        options = [option for action in self._actions for option in action.option_strings]
        name = token.partition("=")[0].replace("_", "-")
        found = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
        return found[0] if found else None


def examine(arguments: Arguments, question: Question) -> tuple[list[str], list[str], list[str]]:
    """Reasons to refuse, arguments to start with, and owned arguments dropped because this version lacks them."""
    every = [*question.owned, *question.needed]
    owned = [token for token in every if arguments.knows(token)]
    dropped = [token for token in every if token not in owned]
    lacking = [token.partition("=")[0] for token in question.needed if token in dropped]
    refused = [f"this vLLM has no {option}, which engines over several nodes need" for option in lacking]
    refused += _refuse_user(arguments, question.user)
    command = [*question.user, *owned]
    if not refused:
        refused = _refuse_whole(arguments, command, owned)
    return refused, command, dropped


def _refuse_user(arguments: Arguments, user: Sequence[str]) -> list[str]:
    """Why the user's arguments alone must not be given to vLLM."""
    if "--" in user:
        return ["argument -- would turn the arguments behind it into positional ones"]
    if "--config" in user:  # the parser would read the file first
        return [_refusal("--config", "config")]
    try:
        given = arguments.parse(user).destinations()
    except ArgumentsError as error:
        return [_explain(arguments, str(error))]
    return [_refusal(_spelling(arguments, user, dest), dest) for dest in given if dest in _REFUSED]


def _refusal(spelling: str, destination: str) -> str:
    """Why an argument is refused: as it was written, what it means, and what sets it instead or why it cannot work."""
    name = "--" + destination.replace("_", "-")
    meaning = "is the model, which" if destination == "model_tag" else f"means {name}, which"
    meant = "" if spelling.partition("=")[0] == name else f" {meaning}"
    return f"argument {spelling}{meant} {_REFUSED[destination]}"


def _spelling(arguments: Arguments, user: Sequence[str], destination: str) -> str:
    """The token that sets a destination, as the user wrote it: the end of the shortest prefix that sets it."""
    for end in range(1, len(user) + 1):
        try:
            given = arguments.parse(user[:end]).destinations()
        except ArgumentsError:
            continue  # ends between an option and its value
        if destination in given:
            options = [token for token in user[:end] if token.startswith("-")]
            return user[end - 1] if destination == "model_tag" or not options else options[-1]
    return destination


def _explain(arguments: Arguments, message: str) -> str:
    """The parser's error, with the argument it most likely meant or the owner it has."""
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        closest = arguments.closest(unknown[1])
        return f"this vLLM has no argument {unknown[1]}" + (f"; did you mean {closest}?" if closest else "")
    if known := re.match(r"argument ([^:\s]+): ", message):
        destination = arguments.destination(known[1])
        if destination is not None and destination in _REFUSED:
            return _refusal(known[1].split("/")[0], destination)
    return f"vLLM does not take the arguments: {textwrap.shorten(message, MESSAGE_LENGTH)}"


def _refuse_whole(arguments: Arguments, command: Sequence[str], owned: Sequence[str]) -> list[str]:
    """Why the whole command line must not be used: owned values that do not hold in it, or contradict each other."""
    try:
        alone, whole = arguments.parse(owned), arguments.parse(command)
    except ArgumentsError as error:
        return [f"vLLM does not take the arguments: {error}"]
    # The last word on ownership, in case the parser of some version can be talked into something not thought of here.
    changed = [dest for dest in alone.destinations() if getattr(alone, dest) != getattr(whole, dest)]
    if changed:
        again = arguments.parse(owned)
        changed = [
            dest
            for dest in changed
            if not _says_the_same(getattr(alone, dest), getattr(whole, dest), again=getattr(again, dest))
        ]
    reasons = [f"the arguments change --{dest.replace('_', '-')}, which is Flyball's to set" for dest in changed]
    servers = getattr(whole, _SERVERS, None)
    if servers is not None and servers < 1 and not getattr(alone, _HEADLESS, None):
        reasons.append(
            f"--api-server-count must be at least 1, is {servers}: without an API server no probe is answered"
        )
    return reasons or _contradictions(alone)


def _says_the_same(one: Any, other: Any, *, again: Any) -> bool:
    """Whether two values that differ are of one argument.

    `again`: what the argument of `one` was parsed to once more. Some fields differ then: vLLM draws the id of an engine
    that transfers KV cache at random.
    """
    if not dataclasses.is_dataclass(one) or type(one) is not type(other):
        return False
    first, second, third = map(dataclasses.asdict, (one, again, other))
    return all(value != second[name] or value == third[name] for name, value in first.items())


def _contradictions(given: argparse.Namespace) -> list[str]:
    """Sizes that vLLM would refuse much later, in the engine core."""
    seqs, tokens = getattr(given, "max_num_seqs", None), getattr(given, "max_num_batched_tokens", None)
    active = getattr(given, "max_num_active_seqs", None)
    reasons = []
    if seqs and tokens and tokens < seqs:
        why = "every running request needs a token of each step"
        reasons.append(f"maxNumBatchedTokens ({tokens}) is below maxNumSeqs ({seqs}): {why}")
    if seqs and active and active > seqs:
        reasons.append(f"maxNumActiveSeqs ({active}) is above maxNumSeqs ({seqs})")
    return reasons


def build_parser() -> Any:
    """The parser of the installed vLLM's API server. Raises ImportError if it is not where any known version has it."""
    parser_class = _first(_PARSER_MODULES, "FlexibleArgumentParser")
    return _first(_ARGUMENT_MODULES, "make_arg_parser")(parser_class(prog="vllm"))


def _first(modules: Sequence[str], name: str) -> Any:
    for module in modules:
        if _exists(module) and (found := getattr(importlib.import_module(module), name, None)) is not None:
            return found
    raise ImportError(f"no {name} in {' or '.join(modules)}")


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package of it is missing
        return False


def plugin_problem() -> str | None:
    """Why Flyball's plugin cannot be loaded here; None if it can."""
    for group, name in PLUGINS:
        found = list(entry_points(group=group, name=name))
        if not found:
            return f"entry point {name} of {group} is not on PYTHONPATH"
        try:
            found[0].load()
        except Exception as error:  # noqa: BLE001  whatever a foreign version raises is a reason, not a crash
            return f"{found[0].value} does not load: {type(error).__name__}: {error}"
    return None


def _api_servers(given: argparse.Namespace) -> int:
    return 0 if getattr(given, _HEADLESS, None) else getattr(given, _SERVERS, None) or 1


def answer(question: Question) -> Answer:
    """The whole answer. Raises ImportError if no parser is where we know one, and what else loading vLLM raises."""
    parser = Arguments(build_parser())
    logging.disable(logging.WARNING)  # the parser's remarks come again when vLLM itself reads the arguments
    try:
        refused, arguments, dropped = examine(parser, question)
        api_servers = 1 if refused else _api_servers(parser.parse(arguments))
    finally:
        logging.disable(logging.NOTSET)
    return Answer(
        engine_version=str(importlib.import_module("vllm").__version__),
        refused=refused,
        arguments=arguments,
        dropped=dropped,
        plugin=None if refused else plugin_problem(),
        api_servers=api_servers,
    )
