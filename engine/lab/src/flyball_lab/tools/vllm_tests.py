"""vLLM's own tests of its scheduler, from its source distribution: `-m flyball_lab.tools.vllm_tests VERSION FOLDER`.

Prints a folder below FOLDER that holds them as the package `tests`; nothing where no distribution of this version is
pinned. It is downloaded once, from the index that pip and uv are told of or from PyPI, and checked against the hash in
`requirements/vllm-tests.txt`. No client of the index is asked: all of them would build it, to learn what it needs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

from flyball_lab.repository import ROOT

PINS: Final = ROOT / "requirements/vllm-tests.txt"
#: The tests themselves, and what they import of each other.
_WANTED: Final = re.compile(
    r"tests/(__init__|v1/__init__|v1/core/(__init__|utils|test_scheduler|test_async_scheduler|test_prefix_caching)"
    r"|v1/kv_connector/__init__|v1/kv_connector/unit/(__init__|utils))\.py"
)
_SECONDS: Final = 300


class DownloadError(Exception):
    """The distribution could not be had; the message says what to do."""


def pinned(version: str) -> str | None:
    """The hash of the distribution of this version; None if there is none."""
    found = re.search(rf"^vllm=={re.escape(version)} --hash=sha256:(\w{{64}})$", PINS.read_text(), re.MULTILINE)
    return found[1] if found else None


def index() -> str:
    """Where packages are looked for: what uv and pip go by."""
    names = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
    return next((os.environ[name] for name in names if os.environ.get(name)), "https://pypi.org/simple").rstrip("/")


def unpacked(version: str, digest: str, folder: Path) -> Path:
    """The folder with the tests, downloaded if it is not there; raises DownloadError."""
    target = folder / f"{version}-{digest[:16]}"
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / f"{target.name}.tar.gz"
        download(f"vllm-{version}.tar.gz", digest, archive)
        partial = folder / f"{target.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with tarfile.open(archive) as distribution:
            for member in distribution:
                name = member.name.partition("/")[2]
                if not member.isfile() or not _WANTED.fullmatch(name):
                    continue
                if (content := distribution.extractfile(member)) is not None:
                    # Not by `extract`: Debian's Python 3.11.2 has no filters for it.
                    (partial / name).parent.mkdir(parents=True, exist_ok=True)
                    (partial / name).write_bytes(content.read())
        archive.unlink()
        partial.rename(target)
    return target


def download(name: str, digest: str, to: Path) -> None:
    """Raises DownloadError."""
    project = f"{index()}/vllm/"
    try:
        page = _read(project).decode()
        link = re.search(rf"[\"']([^\"'#]*/{re.escape(name)})[\"'#]", page)
        if link is None:
            raise DownloadError(f"{project} has no {name}: set UV_DEFAULT_INDEX to an index that does")
        data = _read(urljoin(project, link[1]))
    except OSError as error:
        raise DownloadError(
            f"{name} cannot be downloaded from {project}: {error}. The engine level needs it once, for vLLM's own "
            "tests; set UV_DEFAULT_INDEX to an index that can be reached"
        ) from error
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise DownloadError(f"{name} from {project} has sha256 {found}, {PINS.name} has {digest}: it is not used")
    to.write_bytes(data)


def _read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
        read: bytes = answer.read()
        return read


def main(version: str, folder: str) -> int:
    """Print the folder."""
    digest = pinned(version)
    try:
        print(unpacked(version, digest, Path(folder)) if digest else "")
    except DownloadError as error:
        print(f"vllm-tests: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
