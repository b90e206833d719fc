"""vLLM's own tests are had once, by their hash; what stands in the way is told."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from flyball_lab.tools import vllm_tests
from flyball_lab.tools.vllm_tests import DownloadError, main, unpacked

TESTS = "tests/v1/core/test_scheduler.py"


@pytest.fixture
def an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with a distribution of version 1."""
    folder = tmp_path / "index" / "vllm"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "vllm-1.tar.gz", "w:gz") as made:
        for name in (TESTS, "setup.py", "tests/v1/core/other.py"):
            member = tarfile.TarInfo(f"vllm-1/{name}")
            member.size = len(name)
            made.addfile(member, io.BytesIO(name.encode()))
    page = f'<a href="{(folder / "vllm-1.tar.gz").as_uri()}#sha256=0">vllm-1.tar.gz</a>'
    (folder / "index.html").write_text(page)
    read = vllm_tests._read
    monkeypatch.setattr(vllm_tests, "_read", lambda url: read(url + "index.html" if url.endswith("/") else url))
    monkeypatch.setenv("UV_DEFAULT_INDEX", folder.parent.as_uri())
    return folder


def test_they_are_downloaded_once_and_alone(an_index: Path, tmp_path: Path) -> None:
    archive = an_index / "vllm-1.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    kept = unpacked("1", digest, tmp_path / "kept")
    assert [str(each.relative_to(kept)) for each in kept.rglob("*.py")] == [TESTS]
    archive.unlink()
    assert unpacked("1", digest, tmp_path / "kept") == kept
    assert [each.name for each in (tmp_path / "kept").iterdir()] == [kept.name]


def test_what_is_not_as_it_was_pinned_is_not_used(an_index: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"vllm-tests\.txt has 0000"):
        unpacked("1", 64 * "0", tmp_path / "kept")
    with pytest.raises(DownloadError, match=r"has no vllm-2\.tar\.gz"):
        unpacked("2", 64 * "0", tmp_path / "kept")


def test_an_index_that_cannot_be_reached_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    assert main("0.32.0", str(tmp_path)) == 1
    assert "set UV_DEFAULT_INDEX to an index that can be reached" in capsys.readouterr().err


def test_of_a_version_that_is_not_pinned_there_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("0.1.0", str(tmp_path)) == 0
    assert capsys.readouterr().out == "\n"
