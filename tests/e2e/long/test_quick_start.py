"""The steps of docs/quick-start.md on a cluster, as they are written there, with the example for the CPU."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flyball_lab.repository import ROOT
from support.cluster import kubectl
from support.live import RESOURCE, Flyball, helm

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs/quick-start.md").read_text(encoding="utf-8")
#: Blocks of the numbered steps, and the one of the last section.
STEPS = [
    re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
    for block in re.findall(r"^ {4}```\n(.*?)^ {4}```$", PAGE, flags=re.MULTILINE | re.DOTALL)
]
(REMOVAL,) = re.findall(r"^## Remove it\n\n```\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the repository, for whoever reads the page."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Before and after, nothing is there of what the page makes."""

    def remove() -> None:
        with suppress(AssertionError):
            kubectl(
                "delete", RESOURCE, "chat-cpu", "-n", "default", "--ignore-not-found", "--timeout=120s", timeout=150
            )
        helm("uninstall", "flyball", "-n", "flyball-system", "--ignore-not-found", "--wait")
        kubectl("delete", "namespace", "flyball-system", "--ignore-not-found", "--timeout=180s", timeout=240)

    remove()
    yield
    remove()


def test_whoever_follows_the_page_has_a_service_that_is_tuned(
    flyball: Flyball, clone: Path, nothing_left: None
) -> None:
    refs = flyball.refs
    example = clone / "docs/examples/cpu.yaml"
    example.write_text(example.read_text().replace("localhost/flyball/engine-cpu:latest", refs["engine-cpu"]))

    def follow(text: str) -> str:
        """Paste it into a shell, with what the page leaves open; what it printed."""
        for written, meant in (
            ("<registry>", refs["operator"].partition("/")[0]),
            ("<operator-tag>", refs["operator"].rpartition(":")[2]),
            ("<plugin-tag>", refs["plugin"].rpartition(":")[2]),
            # Another release on this cluster has the CRD.
            ("--create-namespace", "--create-namespace --set crds.install=false"),
            ("gpu.yaml", "cpu.yaml"),
            ('"model": "chat"', '"model": "tiny"'),
        ):
            text = text.replace(written, meant)
        text = re.sub(r"(?<=[/ ])chat(?= )|(?<=/)chat$", "chat-cpu", text, flags=re.MULTILINE)
        # What it leaves in the background ends with it.
        shell = f"set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{text}"
        ran = subprocess.run(
            ["bash", "-c", shell], cwd=clone, capture_output=True, text=True, timeout=1500, check=False
        )
        assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    # The first builds and pushes images: this cluster has them.
    _, install, serve, ask, look = STEPS
    follow(install)
    follow(serve)
    assert '"text":' in follow(ask)
    assert "default/chat-cpu: mode Auto, 1 of 1 pods Ready" in follow(look)
    follow(REMOVAL)
