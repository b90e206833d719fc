"""Completions of a parser for shells. Pure.

Of its own making: the libraries for it either start Python at each TAB, or know no fish. A script is made once, from
the parser that runs, and needs nothing installed.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

#: Programs that the script is for: the command, and the name by which kubectl finds it.
PROGRAMS: Final = ("flyball", "kubectl-flyball")
#: Metavars of what is a path.
_PATHS: Final = frozenset({"FILE", "CONFIG"})


@dataclass(frozen=True)
class Option:
    """An option, or where it has no flags a positional argument."""

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    metavar: str

    @property
    def is_path(self) -> bool:
        """Whether its value is a path."""
        return self.metavar in _PATHS


@dataclass(frozen=True)
class Command:
    """A subcommand."""

    name: str
    help: str
    options: tuple[Option, ...]

    @property
    def arguments(self) -> tuple[Option, ...]:
        """Its positional arguments."""
        return tuple(option for option in self.options if not option.flags)


def commands_of(parser: argparse.ArgumentParser) -> list[Command]:
    """The subcommands of a parser."""
    (chooser,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))  # noqa: SLF001
    helps = {one.dest: one.help or "" for one in chooser._choices_actions}  # noqa: SLF001
    return [
        Command(name, helps.get(name, ""), tuple(map(_option, below._actions)))  # noqa: SLF001
        for name, below in chooser.choices.items()
    ]


def _option(action: argparse.Action) -> Option:
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    choices = tuple(map(str, action.choices)) if action.choices is not None else ()
    return Option(
        tuple(action.option_strings), action.help or "", action.nargs != 0, choices, metavar or action.dest.upper()
    )


# bash


def bash(commands: Sequence[Command]) -> str:
    """The script for bash."""
    names = " ".join(command.name for command in commands)
    lines = [
        "_flyball() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" command="" word',
        "  COMPREPLY=()",
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        "    if [[ $word != -* ]]; then command=$word; break; fi",
        "  done",
        "  if [[ -z $command ]]; then",
        f"    COMPREPLY=($(compgen -W '{names} --help --version' -- \"$current\"))",
        "    return",
        "  fi",
        '  case "$command $previous" in',
        *_bash_values(commands),
        "  esac",
        "  case $command in",
        *_bash_options(commands),
        "  esac",
        "}",
        f"complete -F _flyball {' '.join(PROGRAMS)}",
    ]
    return "\n".join(lines) + "\n"


def _bash_values(commands: Sequence[Command]) -> Iterator[str]:
    """What follows an option that takes a value."""
    for command in commands:
        for option in command.options:
            if option.flags and option.takes_value:
                pattern = "|".join(f"'{command.name} {flag}'" for flag in option.flags)
                yield f"    {pattern}) {_bash_reply(option)}; return ;;"


def _bash_reply(option: Option) -> str:
    if option.choices:
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(option.choices))} -- "$current"))'
    return 'COMPREPLY=($(compgen -f -- "$current"))' if option.is_path else ":"


def _bash_options(commands: Sequence[Command]) -> Iterator[str]:
    for command in commands:
        flags = [flag for option in command.options for flag in option.flags]
        choices = [choice for argument in command.arguments for choice in argument.choices]
        words = shlex.quote(" ".join([*choices, *flags]))
        path = any(argument.is_path for argument in command.arguments)
        files = ' $([[ $current == -* ]] || compgen -f -- "$current")' if path else ""
        yield f'    {command.name}) COMPREPLY=($(compgen -W {words} -- "$current"){files}) ;;'


# zsh


def zsh(commands: Sequence[Command]) -> str:
    """The script for zsh: sourced, or as a file _flyball in a folder of $fpath."""
    lines = [
        f"#compdef {' '.join(PROGRAMS)}",
        "_flyball() {",
        "  local -a commands",
        "  local context state line",
        "  commands=(",
        *(f"    {shlex.quote(f'{command.name}:{command.help}')}" for command in commands),
        "  )",
        "  _arguments -C '--help[show help]' '--version[show the version]' '1: :->command' '*:: :->rest'",
        "  case $state in",
        "    command) _describe command commands ;;",
        "    rest)",
        "      case $words[1] in",
        *(line for command in commands for line in _zsh_command(command)),
        "      esac ;;",
        "  esac",
        "}",
        # Of a file in $fpath the function is called by its name; of a script that is sourced it is made known.
        'if [ "$funcstack[1]" = "_flyball" ]; then _flyball "$@"; else compdef _flyball ' + " ".join(PROGRAMS) + "; fi",
    ]
    return "\n".join(lines) + "\n"


def _zsh_command(command: Command) -> Iterator[str]:
    yield f"        {command.name}) _arguments \\"
    for option in command.options:
        value = f":{option.metavar.replace(':', ' ')}:{_zsh_action(option)}"
        if not option.flags:
            yield f"          {shlex.quote(f'1{value}')} \\"
        for flag in option.flags:
            others = f"({' '.join(option.flags)})" if len(option.flags) > 1 else ""
            text = f"{others}{flag}[{_zsh_text(option.help)}]{value if option.takes_value else ''}"
            yield f"          {shlex.quote(text)} \\"
    yield "          ;;"


def _zsh_action(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return "_files" if option.is_path else " "


def _zsh_text(text: str) -> str:
    for mark in "\\[]:":
        text = text.replace(mark, f"\\{mark}")
    return text


# fish


def fish(commands: Sequence[Command]) -> str:
    """The script for fish."""
    return "".join(f"{line}\n" for program in PROGRAMS for line in _fish_program(program, commands))


def _fish_program(program: str, commands: Sequence[Command]) -> Iterator[str]:
    yield f"complete -c {program} -f"
    yield f"complete -c {program} -n __fish_use_subcommand -l version -d 'show the version'"
    for command in commands:
        yield f"complete -c {program} -n __fish_use_subcommand -a {command.name} -d {_fish_text(command.help)}"
        seen = f"complete -c {program} -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            if not option.flags and not (option.choices or option.is_path):
                continue
            value = _fish_value(option) if option.takes_value else ""
            yield " ".join(part for part in (seen, flags, value, f"-d {_fish_text(option.help)}") if part)


def _fish_value(option: Option) -> str:
    needs = "-x" if option.flags and not option.is_path else "-r -F" if option.flags else "-F" if option.is_path else ""
    choices = f"-a {_fish_text(' '.join(option.choices))}" if option.choices else ""
    return " ".join(part for part in (needs, choices) if part)


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: Final = {"bash": bash, "zsh": zsh, "fish": fish}
