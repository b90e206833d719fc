"""What a source of models tells of their files, and which of these an engine needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final, Protocol

from flyball_engine.download.failure import DownloadError
from flyball_engine.download.files import Content
from flyball_engine.model_cache import DownloadExit

#: Weights in formats that vLLM does not read where there are safetensors: they would double the download.
_OTHER_WEIGHTS: Final = re.compile(r".*\.(bin|pt|pth|h5|msgpack|onnx|onnx_data|ot|tflite|gguf)|original/.*")
#: Files that are downloaded at once: one connection of a hub brings some 50-100 MB/s.
PARALLEL: Final = 4


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file as its source tells of it; what it does not tell is None.

    `etag`: S3's name of the content, where it is made of the content; `part_bytes` as of `files.content`. `version`:
    what names this content in a request.
    """

    name: str
    size: int | None
    sha256: str | None = None
    blob: str | None = None
    etag: str | None = None
    part_bytes: int | None = None
    version: str = ""

    @property
    def named(self) -> bool:
        """Whether the source tells what its content is, and not its size alone."""
        return (self.sha256, self.blob, self.etag) != (None, None, None)

    @property
    def surely_named(self) -> bool:
        """Whether that is the name of one content. Parts of an upload may differ in size, which nobody tells."""
        return self.named and "-" not in (self.etag or "")

    def is_like(self, found: Content) -> bool:
        """Whether that is its content, as far as the source tells."""
        if self.size is not None and self.size != found.size:
            return False
        told = ((self.sha256, found.sha256), (self.blob, found.blob), (self.etag, found.etag))
        return next((wanted == has for wanted, has in told if wanted is not None), True)


class Source(Protocol):
    """A model of a hub, or in a bucket. `name`: as messages call it; `at`: their words before its content's name."""

    name: ClassVar[str]
    at: ClassVar[str]

    def list_files(self) -> tuple[str, list[RemoteFile]]:
        """What names its content now, such as a commit, and the files that an engine may need."""

    def fetch(self, commit: str, file: RemoteFile, part: Path) -> None:
        """Append to `part` what it lacks of the file."""


def needed(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Those that an engine may need. Raises DownloadError for a name outside the folder: a source may be anybody's."""
    found = list(files)
    for file in found:
        path = PurePosixPath(file.name)
        outside = path.is_absolute() or ".." in path.parts or str(path) != file.name
        if outside or path.parts[0].startswith(".flyball"):
            message = f"the source lists a file outside the model's folder: {file.name!r}"
            raise DownloadError(DownloadExit.MODEL_MISSING, message)
    if any(file.name.endswith(".safetensors") for file in found):
        found = [file for file in found if not _OTHER_WEIGHTS.fullmatch(file.name)]
    return found
