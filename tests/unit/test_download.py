"""The parts of a download that need no hub: manifests, checksums, what an error comes to."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from flyball_engine.contract import Env
from flyball_engine.download.__main__ import Wanted, download
from flyball_engine.download.failure import DownloadError, explain, in_words
from flyball_engine.download.files import (
    MANIFEST,
    Content,
    Manifest,
    content,
    damaged,
    locked,
    opened_at_end,
    part_of,
    read_manifest,
    remove_others,
    size_of,
    write_manifest,
)
from flyball_engine.download.source import RemoteFile, needed
from flyball_engine.model_cache import DownloadExit
from flyball_engine.termination import TERMINATION_BYTES, write_termination_message


def filled(folder: Path) -> Manifest:
    (folder / "sub").mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "sub/weights").write_text("123")
    files = {name: content(folder / name) for name in ("config.json", "sub/weights")}
    return Manifest("org/m", "main", "c0ffee", files)


def test_git_knows_the_content_by_this_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello\n")
    found = content(tmp_path / "file")
    assert found.blob == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert found.sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = filled(tmp_path)
    write_manifest(tmp_path, manifest)
    found = read_manifest(tmp_path)
    assert found is not None
    assert (found.model, found.commit, found.size) == ("org/m", "c0ffee", 5)
    assert damaged(tmp_path, found) == []
    assert size_of(tmp_path) == 5 + (tmp_path / MANIFEST).stat().st_size


def test_what_is_missing_shorter_or_other_is_damaged(tmp_path: Path) -> None:
    manifest = filled(tmp_path)
    (tmp_path / "sub/weights").write_text("124")
    assert damaged(tmp_path, manifest) == ["sub/weights"]
    (tmp_path / "sub/weights").write_text("12")
    (tmp_path / "config.json").unlink()
    assert damaged(tmp_path, manifest) == ["config.json", "sub/weights"]


def test_what_is_no_file_of_the_commit_is_removed(tmp_path: Path) -> None:
    write_manifest(tmp_path, filled(tmp_path))
    with locked(tmp_path, 0):
        for commit in ("c0ffee", "decade"):
            part = part_of(tmp_path, commit, "sub/weights")
            part.parent.mkdir(exist_ok=True)
            part.touch()
        # What was a folder is a file now.
        assert set(remove_others(tmp_path, "c0ffee", ["config.json", "sub"])) == {
            MANIFEST,
            "sub/weights",
            *(str(part_of(tmp_path, commit, "sub/weights").relative_to(tmp_path)) for commit in ("c0ffee", "decade")),
        }
        assert {path.name for path in tmp_path.iterdir()} == {".flyball-lock", "config.json"}
        part = part_of(tmp_path, "c0ffee", "sub")
        part.parent.mkdir()
        part.touch()
        assert remove_others(tmp_path, "c0ffee", ["config.json", "sub"]) == []
        assert part.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"a": 1}}', '{"files": {}, "model": "m"}'])
def test_a_manifest_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert read_manifest(tmp_path) is None


def test_a_hub_that_tells_less_is_compared_with_less() -> None:
    found = Content(3, "sha", "blob")
    assert RemoteFile(name="f", size=None).is_like(found)
    assert RemoteFile(name="f", size=3, blob="blob").is_like(found)
    assert not RemoteFile(name="f", size=3, blob="other").is_like(found)
    assert not RemoteFile(name="f", size=4, sha256="sha").is_like(found)
    assert not RemoteFile(name="f", size=3, sha256="other", blob="blob").is_like(found)
    assert not RemoteFile(name="f", size=3, etag="other").is_like(found)


@pytest.mark.parametrize("part_bytes", [0, 4_000_000, 3_100_000, 3_000_000, (1 << 20) + 1, 1 << 19])
def test_s3_knows_the_content_by_this_name(tmp_path: Path, part_bytes: int) -> None:
    """As the user guide has it: of parts the MD5 of their MD5s, however blocks of reading lie in them."""
    body = random.Random(1).randbytes(3_100_000)
    (tmp_path / "file").write_bytes(body)
    found = content(tmp_path / "file", part_bytes=part_bytes).etag
    if not part_bytes:
        assert found == hashlib.md5(body, usedforsecurity=False).hexdigest()
        return
    parts = [body[at : at + part_bytes] for at in range(0, len(body), part_bytes)]
    digests = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
    assert found == f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../other/config.json", ".flyball-lock", "./.flyball-lock", "a//b", "a/./b", ".flyball-parts/a"],
)
def test_a_name_outside_the_folder_is_refused(name: str) -> None:
    with pytest.raises(DownloadError, match="outside the model's folder"):
        needed([RemoteFile(name=name, size=1)])


@dataclass
class Told:
    """A source that tells of its files no more than their sizes; it stops before those that it `holds`."""

    files: dict[str, bytes]
    version: str
    holds: tuple[str, ...] = ()
    name: ClassVar[str] = "the bucket"
    at: ClassVar[str] = "with content"

    def list_files(self) -> tuple[str, list[RemoteFile]]:
        return self.version, [RemoteFile(name=name, size=len(body)) for name, body in self.files.items()]

    def fetch(self, commit: str, file: RemoteFile, part: Path) -> None:
        if file.name in self.holds:
            raise DownloadError(DownloadExit.HUB_UNREACHABLE, "away")
        with opened_at_end(part, file.size) as (target, have):
            target.write(self.files[file.name][have:])


def test_files_of_two_uploads_are_not_mixed_where_the_source_tells_sizes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of objects that are encrypted with a key of KMS. Shards of a fine-tuned model are as large as before."""
    source = Told({"1": b"old", "2": b"old"}, "v1", holds=("2",))
    monkeypatch.setattr(Wanted, "source", property(lambda _: source))
    wanted = Wanted("s3://models/llm", "main", tmp_path, 0)
    with pytest.raises(DownloadError):
        download(wanted, {})
    source.files, source.version, source.holds = {"1": b"new", "2": b"new"}, "v2", ()
    download(wanted, {})
    assert [(tmp_path / name).read_bytes() for name in source.files] == [b"new", b"new"]
    (tmp_path / "1").write_bytes(b"bad")
    source.files, source.version = {"1": b"3rd", "2": b"3rd"}, "v3"
    download(wanted, {})
    assert [(tmp_path / name).read_bytes() for name in source.files] == [b"3rd", b"3rd"]


def test_what_a_variable_holds_is_told_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter2\n")
    said = in_words(ValueError("Invalid header value b'hunter2\\n' for https://bucket/x"))
    assert "hunter2" not in said
    assert "Invalid header value" in said


class _AnsweredError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answer {status}")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DownloadExit.DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DownloadExit.DISK_FULL),
        (_AnsweredError(401), DownloadExit.NO_ACCESS),
        (_AnsweredError(403), DownloadExit.NO_ACCESS),
        (_AnsweredError(404), DownloadExit.MODEL_MISSING),
        (_AnsweredError(429), DownloadExit.HUB_UNREACHABLE),
        (ConnectionResetError(errno.ECONNRESET, "reset"), DownloadExit.HUB_UNREACHABLE),
        (json.JSONDecodeError("no JSON", "<html>", 0), DownloadExit.HUB_UNREACHABLE),
    ],
    ids=str,
)
def test_an_error_comes_to_an_exit_code(error: Exception, code: DownloadExit) -> None:
    # The cause below counts, too.
    outer = RuntimeError("the client's own")
    outer.__cause__ = error
    for one in (error, outer):
        found = explain(one)
        assert found is not None
        assert found.code == code


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("for url 'http://user:hunter2@hub/api/models/m'", "for url 'http://hub/api/models/m'"),
        ("http://hunter2@hub:80/m: 500", "http://hub:80/m: 500"),
        ("http://user:hun@ter2@hub/m", "http://hub/m"),
        ("https://cdn/f?X-Amz-Signature=hunter2&e=1 failed", "https://cdn/f?… failed"),
        ("(host='cdn', port=80): exceeded with url: /f?sig=hunter2 (caused)", "url: /f?… (caused)"),
        (
            "Redirect from 'https://a:hunter2@x/' to 'https://y/?t=hunter2'",
            "Redirect from 'https://x/' to 'https://y/?…'",
        ),
        ("is it there? see https://hub/m@v1", "is it there? see https://hub/m@v1"),
    ],
)
def test_no_credential_of_an_address_is_told(said: str, told: str) -> None:
    message = str(explain(ConnectionError(said)))
    assert "hunter2" not in message
    assert "ter2" not in message
    assert message.endswith(told)


def test_what_is_no_known_failure_is_none() -> None:
    assert explain(OSError(errno.EIO, "Input/output error")) is None


def started(folder: Path, log: Path) -> subprocess.Popen[str]:
    """A download from a hub that is not there, by a client that may not be."""
    command = [sys.executable, "-m", "flyball_engine.download", "--model=org/m", f"--folder={folder}"]
    variables = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", Env.TERMINATION_LOG.value: str(log)}
    return subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)


def test_a_failure_that_nobody_knows_is_told_as_well(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = started(tmp_path / "file/model", tmp_path / "log")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "NotADirectoryError" in (tmp_path / "log").read_text()
    assert "Traceback" in said


def test_the_folder_is_locked_until_the_process_has_ended(tmp_path: Path) -> None:
    # The process ends once somebody reads its message.
    os.mkfifo(tmp_path / "log")
    process = started(tmp_path / "model", tmp_path / "log")
    assert process.stderr is not None
    assert any("bytes are kept" in line for line in process.stderr)
    with (tmp_path / "model/.flyball-lock").open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "bytes are kept" in (tmp_path / "log").read_text()
        process.communicate(timeout=60)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_termination_message_is_cut_to_what_kubernetes_keeps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert write_termination_message("x" * 5000, {"FLYBALL_TERMINATION_LOG": str(log)}) is None
    assert log.stat().st_size == TERMINATION_BYTES
    why = write_termination_message("x", {"FLYBALL_TERMINATION_LOG": str(tmp_path / "no/log")})
    assert why is not None
    assert "cannot write" in why
