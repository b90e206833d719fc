"""A hub of models, by the client that the engine image has: which files a model has, and their content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flyball_engine.download.failure import DownloadError
from flyball_engine.download.files import Content
from flyball_engine.model_cache import DownloadExit

#: Weights in formats that vLLM does not read where there are safetensors: they would double the download.
_OTHER_WEIGHTS: Final = re.compile(r".*\.(bin|pt|pth|h5|msgpack|onnx|onnx_data|ot|tflite|gguf)|original/.*")
#: Seconds that the hub may take to list a model.
_LIST_SECONDS: Final = 60.0


@dataclass(frozen=True)
class HubFile:
    """A file as the hub tells of it; what it does not tell is None."""

    name: str
    size: int | None
    sha256: str | None
    blob: str | None

    def is_like(self, found: Content) -> bool:
        """Whether that is its content, as far as the hub tells."""
        if self.size is not None and self.size != found.size:
            return False
        if self.sha256 is not None:
            return self.sha256 == found.sha256
        return self.blob in (None, found.blob)


def list_files(model: str, revision: str) -> tuple[str, list[HubFile]]:
    """The commit that the revision is, and its files that an engine may need."""
    from huggingface_hub import HfApi  # noqa: PLC0415 - of the engine image

    info: Any = HfApi().model_info(model, revision=revision, files_metadata=True, timeout=_LIST_SECONDS)
    found = [_file(sibling) for sibling in info.siblings or ()]
    if any(file.name.endswith(".safetensors") for file in found):
        found = [file for file in found if not _OTHER_WEIGHTS.fullmatch(file.name)]
    if not found:
        raise DownloadError(DownloadExit.MODEL_MISSING, f"{model} has no file at revision {revision}")
    return str(info.sha or revision), found


def _file(sibling: Any) -> HubFile:
    name, lfs = str(sibling.rfilename), sibling.lfs
    path = PurePosixPath(name)
    # A mirror may be anybody's.
    if path.is_absolute() or ".." in path.parts or name.startswith(".flyball"):
        raise DownloadError(DownloadExit.MODEL_MISSING, f"the hub lists a file outside the model's folder: {name!r}")
    return HubFile(
        name=name,
        size=sibling.size if lfs is None else lfs["size"],
        sha256=None if lfs is None else lfs["sha256"],
        blob=sibling.blob_id if lfs is None else None,
    )


def fetch(model: str, commit: str, file: HubFile, part: Path) -> None:
    """Append to `part` what it lacks of the file."""
    from huggingface_hub import hf_hub_url  # noqa: PLC0415
    from huggingface_hub.file_download import http_get  # noqa: PLC0415
    from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

    part.parent.mkdir(parents=True, exist_ok=True)
    part.touch()
    # The client's own way to a folder begins a file anew in each process; a shard may have 50 GB.
    with part.open("r+b") as target:
        have = target.seek(0, 2)
        if file.size is not None and have > file.size:
            have = 0
            target.truncate(target.seek(0))
        if have == file.size:
            return
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        url = hf_hub_url(model, file.name, revision=commit)
        try:
            # Its progress shows the name that it is given, else the address.
            http_get(
                url,
                target,
                resume_size=have,
                headers=headers,
                # With a size beyond 50 GB it would not even ask. What arrives is compared by the caller.
                expected_size=None,
                displayed_filename=file.name,
            )
        except OSError as error:
            # The client's word on a wrong size, which the caller sees by itself. All else has a type or a number.
            if type(error) is not OSError or error.errno is not None:
                raise
