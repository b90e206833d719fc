"""Files of downloaded adapters in a pod: those that nobody needs are removed, and no others."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from flyball_engine.adapters import Adapter
from flyball_engine.control.adapters import AdapterError
from flyball_engine.vllm import adapters
from flyball_engine.vllm.adapters import KEEP_SECONDS, VllmAdapters

NEW = Adapter(name="sql", uri="hf://org/sql", revision="v2")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pod's folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def downloaded(disk: Path, revision: str, *, needed_before: float = KEEP_SECONDS + 60) -> Path:
    """An adapter that was downloaded, and last needed so many seconds ago."""
    folder = disk / "flyball-adapters" / "org--sql" / revision
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    then = time.time() - needed_before
    os.utime(folder, (then, then))
    return folder


async def test_what_nobody_has_needed_for_long_is_removed(disk: Path) -> None:
    earlier, listed = downloaded(disk, "v1"), downloaded(disk, "v2")
    await VllmAdapters(None, None).tidy((NEW,))
    assert not earlier.exists()
    assert (listed / "adapter_model.safetensors").exists()
    assert list(listed.parent.iterdir()) == [listed]


async def test_what_another_api_server_needed_a_while_ago_stays(disk: Path) -> None:
    """It may wait for its look, or answer requests with it."""
    earlier = downloaded(disk, "v1", needed_before=KEEP_SECONDS / 2)
    await VllmAdapters(None, None).tidy((NEW,))
    assert earlier.exists()


async def test_what_is_needed_is_told_to_the_other_api_servers(disk: Path) -> None:
    listed = downloaded(disk, "v2")
    await VllmAdapters(None, None).tidy((NEW,))
    await VllmAdapters(None, None).tidy(())
    assert listed.exists()


async def test_the_earlier_one_stays_while_it_answers(disk: Path) -> None:
    earlier = downloaded(disk, "v1")
    server = VllmAdapters(None, None)
    server._answered.add("sql")
    server._paths["sql"] = str(earlier)
    await server.tidy((NEW,))
    assert earlier.exists()


async def test_a_folder_of_the_user_s_is_never_touched(disk: Path) -> None:
    theirs = disk / "theirs" / "sql"
    theirs.mkdir(parents=True)
    os.utime(theirs, (0, 0))
    await VllmAdapters(None, None).tidy(())
    await VllmAdapters(None, None).tidy((Adapter(name="sql", uri=f"file://{theirs}"),))
    assert theirs.stat().st_mtime == 0


async def test_the_words_of_an_earlier_try_are_not_told_of_this_one(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = disk / "v1"
    folder.with_name(f"v1.{os.getpid()}.message").write_text("no such repository")
    monkeypatch.setattr(adapters, "DOWNLOAD_MODULE", "flyball_engine.no_such_module")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with pytest.raises(AdapterError, match="the download ended with exit code 1"):
        await adapters._download("org/sql", "v1", folder)
