"""The tools that `hack/lib/binaries` builds, as tests use them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from flyball_lab.repository import ROOT


@cache
def binary(tool: str) -> str:
    """Path of a tool: that of the environment, else the one that hack/lib/binaries builds."""
    found = shutil.which(tool)
    if found:
        return found
    command = [str(ROOT / "hack/lib/binaries"), "path", tool]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=3600).stdout.strip()


def imported(*tools: str) -> dict[str, str]:
    """References of images of these tools, by their names; they are in the cluster."""
    command = [str(ROOT / "hack/cluster"), "import", *tools]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=3600).stdout
    return dict(line.split("=", 1) for line in printed.split())
