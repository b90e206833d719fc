"""What the CPU engine image's Dockerfile says: tests run vLLM as the image does, and its words stand there alone."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Final

from flyball_lab.repository import ROOT

_DOCKERFILE: Final = (ROOT / "engine/cpu/Dockerfile").read_text()
#: Whose values are a test's own: where its files are, how many processors it has.
_OWN: Final = frozenset({"PATH", "HOME", "OMP_NUM_THREADS", "VLLM_CACHE_ROOT"})
#: What the image lacks and a machine that builds may have.
_COMPILER: Final = re.compile(r"(^|-)(cc|c\+\+|c89|c99|cpp|gcc|g\+\+|clang|clang\+\+|tcc|as|ld)(-[0-9.]+|\.[a-z]+)?$")


def variables() -> dict[str, str]:
    """Its environment, but for what is a test's own."""
    (block,) = re.findall(r"^ENV (PATH=(?:.*\\\n)*.*)", _DOCKERFILE, re.MULTILINE)
    pairs = (word.partition("=") for word in shlex.split(block.replace("\\\n", " ")))
    return {name: value for name, _, value in pairs if name not in _OWN}


def arguments() -> tuple[str, ...]:
    """How it runs the small model, but for where that is and what it is called."""
    (command,) = re.findall(r"^CMD (\[.*\])$", _DOCKERFILE, re.MULTILINE)
    return tuple(each for each in json.loads(command) if not each.startswith(("--model=", "--served-model-name=")))


def without_compilers(folder: Path) -> str:
    """A value for PATH: all the commands that there are here but compilers and linkers, linked to in `folder`."""
    folder.mkdir(exist_ok=True)
    for place in filter(os.path.isdir, reversed(os.environ["PATH"].split(os.pathsep))):
        for command in os.scandir(place):
            link = folder / command.name
            if not _COMPILER.search(command.name):
                link.unlink(missing_ok=True)
                link.symlink_to(command.path)
    return str(folder)
