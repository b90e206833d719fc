"""vLLM arguments and environment variables that Flyball sets itself, or no pod is Ready with: refused at once.

vLLM's parser takes abbreviations and underscores, and the last spelling wins: a list in CEL cannot guard, it is a
courtesy that answers before a pod starts. The guard is the launcher, which asks the installed parser. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flyball_engine.launching import IMPOSSIBLE_ARGUMENTS, OWNED_ARGUMENTS
from flyball_operator.api.rules import Constraint, Rule, matches

#: Letters after which an abbreviation can only mean this flag (vLLM 0.32's parser; shorter ones it refuses itself).
_SURELY_MEANT: Final = {
    "served_model_name": "--ser",
    "host": "--ho",
    "port": "--por",
    "uds": "--ud",
    "tensor_parallel_size": "--te",
    "pipeline_parallel_size": "--pi",
    "max_num_seqs": "--max-num-s",
    "max_num_batched_tokens": "--max-num-b",
    "max_num_active_seqs": "--max-num-a",
    "max_num_scheduled_tokens": "--max-num-sc",
    "enable_prefix_caching": "--enable-prefix",
    "shutdown_timeout": "--shu",
    "scheduler_cls": "--scheduler-c",
    "disable_log_stats": "--disable-log-st",
}
#: Spellings of their own that vLLM gives some flags, as patterns. The one without prefix caching is new in 0.33.
_SHORT: Final = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "enable_prefix_caching": "--disable[-_]prefix[-_]caching",
    "nnodes": "-n",
    "data_parallel_rank": "-dpn",
    "data_parallel_start_rank": "-dpr",
    "data_parallel_size_local": "-dpl",
    "data_parallel_external_lb": "-dpe",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_multi_port_external_lb": "-dpm",
}
#: The positional model is refused as the first item that is no flag (`Engine.checks`).
_POSITIONAL: Final = "model_tag"

OWNED_ENVIRONMENT: Final = r"FLYBALL_.*|VLLM_PLUGINS|PYTHONPATH"


@dataclass(frozen=True)
class ForbiddenArgument:
    """A spelling that an item of `spec.engine.args` may not have."""

    pattern: str
    message: str

    @property
    def rule(self) -> Rule:
        """The refusal as CEL."""
        return Rule("!" + matches("self", self.pattern), self.message)


def _flag(destination: str) -> str:
    return "--" + destination.replace("_", "-")


def _spellings(destination: str) -> str:
    """Matches the flag in any abbreviation that is surely meant, with `-` or `_`, with or without `=value`."""
    flag = _flag(destination)
    shortest = _SURELY_MEANT.get(destination, flag)
    tail = ""
    for letter in reversed(flag[len(shortest) :]):
        tail = f"({_letter(letter)}{tail})?"
    long = "--(no[-_])?" + "".join(map(_letter, shortest[2:])) + tail
    either = f"({long}|{_SHORT[destination]})" if destination in _SHORT else long
    return either + r"(=[\s\S]*)?"


def _letter(letter: str) -> str:
    return "[-_]" if letter == "-" else letter


def _refused() -> Iterator[ForbiddenArgument]:
    # One token `--flag value` would reach vLLM as one unknown flag, and pass every rule below.
    yield ForbiddenArgument(
        r"--?[A-Za-z0-9._-]+\s[\s\S]*", "holds a flag and its value: write --flag=value, or two items"
    )
    for destination, setter in OWNED_ARGUMENTS.items():
        if destination != _POSITIONAL:
            yield ForbiddenArgument(_spellings(destination), f"{_flag(destination)} is set by {setter}")
    for destination, reason in IMPOSSIBLE_ARGUMENTS.items():
        yield ForbiddenArgument(_spellings(destination), f"{_flag(destination)} cannot be used: {reason}")


REFUSED_ARGUMENTS: Final = tuple(_refused())


@dataclass(frozen=True)
class NotOwned(Constraint):
    """One item of `spec.engine.args`: what Flyball sets itself, and what no pod is Ready with, is refused."""

    def objection(self, value: str) -> str | None:
        """Names the flag that was meant, and what to use instead."""
        return next((refused.message for refused in REFUSED_ARGUMENTS if re.fullmatch(refused.pattern, value)), None)

    def rules(self) -> Sequence[Rule]:
        """One rule per argument, so that the message names what was meant."""
        return [refused.rule for refused in REFUSED_ARGUMENTS]
