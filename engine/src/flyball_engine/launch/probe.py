"""Asks a child process what the installed vLLM makes of the arguments.

A child, because importing vLLM changes the environment of the process (torch settings, thread counts) and takes
hundreds of MiB. The engine that replaces the launcher may inherit neither.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from flyball_engine.launch.report import ProbeAnswer, Question

#: Importing torch and vLLM from a cold disk takes up to minutes; longer than this is a fault.
PROBE_SECONDS: Final = 600.0


class ProbeError(Exception):
    """The installed vLLM could not be asked; the message says why."""


def ask(question: Question, variables: Mapping[str, str]) -> ProbeAnswer:
    """The answer of the installed vLLM. Raises ProbeError if there is none."""
    command = [sys.executable, "-m", "flyball_engine.vllm.arguments"]
    try:
        child = subprocess.run(  # noqa: S603  our own module, no shell
            command,
            input=question.model_dump_json(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=dict(variables),
            timeout=PROBE_SECONDS,
        )
        return ProbeAnswer.model_validate_json(child.stdout)
    except subprocess.TimeoutExpired:
        raise ProbeError(f"vLLM did not load within {PROBE_SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        raise ProbeError(f"the probe of vLLM ended with code {error.returncode}; its error is above") from None
    except ValidationError as error:
        raise ProbeError(f"the probe of vLLM answered with something else: {error}") from None
