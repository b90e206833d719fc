"""NIXL, by which engines hand on KV cache: a package that no engine image of ours has."""

from __future__ import annotations

import subprocess
from pathlib import Path

from flyball_lab.repository import ROOT


def nixl_packages() -> Path:
    """A folder of Python packages with NIXL in it, which is installed if it is not there yet."""
    script = "source hack/lib/env.sh && nixl_packages"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)
    return Path(done.stdout.strip())
