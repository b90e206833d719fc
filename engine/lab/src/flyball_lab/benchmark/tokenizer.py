"""Which tokenizer makes the prompts, where none is told: that of the endpoint's model, if it is to be had here. Pure.

A name that is neither a folder here nor one on the Hub would be looked for there, for minutes, before the first point.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from flyball_lab.benchmark.errors import OptionError

ACCEPTED: Final = "a folder, or a name on the Hub"
#: Owner and name. What begins with a dot, a slash or a tilde is a path.
_ON_THE_HUB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def of_model(root: str | None, model: str, *, is_folder: Callable[[str], bool]) -> str:
    """Folder or name: `root` is what the endpoint's model was loaded from, `model` what it is served as.

    Raises OptionError.
    """
    for found in (root, model):
        if found and (is_folder(found) or _ON_THE_HUB.fullmatch(found)):
            return found
    problem = "the endpoint does not say what its model was loaded from"
    if root:
        problem = f"the endpoint's model was loaded from {root!r}, which is no folder here"
    raise OptionError("--tokenizer", problem, ACCEPTED)
