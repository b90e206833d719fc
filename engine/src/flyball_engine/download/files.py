"""The folder of a model: its files, their checksums, and the manifest that is written last."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from flyball_engine.download.failure import DownloadError
from flyball_engine.model_cache import DownloadExit

#: A folder with this file holds the whole model.
MANIFEST: Final = ".flyball-model.json"
#: Folder of files that are not whole yet.
PARTS: Final = ".flyball-parts"
_LOCK: Final = ".flyball-lock"
_BLOCK: Final = 1 << 20
#: Seconds between two looks at a lock that another process holds.
_LOCK_LOOK: Final = 1.0


@dataclass(frozen=True)
class Content:
    """What a file holds: size in bytes, SHA-256, git's name of it, by which a hub knows small files, and S3's ETag."""

    size: int
    sha256: str
    blob: str = ""
    etag: str = ""


@dataclass(frozen=True)
class Manifest:
    """A whole model: its name, the revision asked for, the commit that was found, and its files."""

    model: str
    revision: str
    commit: str
    files: Mapping[str, Content]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(content.size for content in self.files.values())


def content(path: Path, *, part_bytes: int | None = None) -> Content:
    """Read the file. `part_bytes`: of the parts in which it was uploaded to S3, 0 in one piece, None where of no S3."""
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    etag = None if part_bytes is None else _Etag(part_bytes)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
            blob.update(block)
            if etag is not None:
                etag.update(block)
    return Content(size, sha256.hexdigest(), blob.hexdigest(), "" if etag is None else etag.text())


class _Etag:
    """The MD5 of an object that came in one piece, else that of its parts' MD5s, with their number.

    AWS, S3 user guide, "Checking object integrity".
    """

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self._left = part_bytes
        self._parts = [hashlib.md5(usedforsecurity=False)]

    def update(self, block: bytes) -> None:
        view = memoryview(block)
        while self._part_bytes and len(view) > self._left:
            self._parts[-1].update(view[: self._left])
            view, self._left = view[self._left :], self._part_bytes
            self._parts.append(hashlib.md5(usedforsecurity=False))
        self._parts[-1].update(view)
        self._left -= len(view)

    def text(self) -> str:
        if not self._part_bytes:
            return self._parts[0].hexdigest()
        whole = hashlib.md5(b"".join(part.digest() for part in self._parts), usedforsecurity=False)
        return f"{whole.hexdigest()}-{len(self._parts)}"


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where there is none, or one that cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): Content(int(one["size"]), str(one["sha256"])) for name, one in found["files"].items()}
        return Manifest(str(found["model"]), str(found["revision"]), str(found["commit"]), files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write it whole or not at all, after everything that it lists is on the disk."""
    files = {name: {"size": one.size, "sha256": one.sha256} for name, one in sorted(manifest.files.items())}
    text = json.dumps({**asdict(manifest), "files": files}, indent=1)
    partial = folder / f"{MANIFEST}.part"
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / MANIFEST)
    _sync(folder)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damaged(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are missing, or hold something else than the manifest says."""
    return [name for name, wanted in manifest.files.items() if not _holds(folder / name, wanted)]


def _holds(path: Path, wanted: Content) -> bool:
    # The size first: it takes no reading.
    if not path.is_file() or path.stat().st_size != wanted.size:
        return False
    return content(path).sha256 == wanted.sha256


def part_of(folder: Path, commit: str, name: str) -> Path:
    """Where a file of this commit grows until it is whole."""
    return folder / PARTS / f"{commit}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


@contextmanager
def opened_at_end(part: Path, size: int | None) -> Iterator[tuple[BinaryIO, int]]:
    """The file to append to, made where it is not there, and how many bytes it has: none, if it had over `size`."""
    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    with part.open("r+b") as target:
        have = target.seek(0, 2)
        if size is not None and have > size:
            have = 0
            target.truncate(target.seek(0))
        yield target, have


def remove_others(folder: Path, commit: str, names: Collection[str]) -> list[str]:
    """Remove what is no file of this commit, whole or in part, and tell which: the revision meant another one before.

    A loader takes all that it finds, such as the index of shards that are none any more.
    """
    kept = {folder / _LOCK, *(folder / name for name in names), *(part_of(folder, commit, name) for name in names)}
    removed = []
    for parent, folders, files in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in files):
            if path not in kept:
                path.unlink()
                removed.append(str(path.relative_to(folder)))
        for name in folders:
            with suppress(OSError):  # it holds something
                Path(parent, name).rmdir()
    return removed


def size_of(folder: Path) -> int:
    """Bytes of all files in the folder, whole or not."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:
                # Moved to its place meanwhile.
                continue
    return total


@contextmanager
def locked(folder: Path, seconds: float) -> Iterator[None]:
    """Hold the folder alone. A process that dies lets go of it. Raises `DownloadError` after so many seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    with (folder / _LOCK).open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    message = f"another download of this model has not ended in {seconds:g} s"
                    raise DownloadError(DownloadExit.NOT_LOCKED, message) from None
                time.sleep(_LOCK_LOOK)
        yield
