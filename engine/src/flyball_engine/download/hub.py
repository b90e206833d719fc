"""A hub of models, by the client that the engine image has: which files a model has, and their content."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from flyball_engine.download.failure import DownloadError
from flyball_engine.download.files import opened_at_end
from flyball_engine.download.source import RemoteFile, needed
from flyball_engine.model_cache import DownloadExit

#: Seconds that the hub may take to list a model.
_LIST_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Hub:
    """A model of a hub, at a revision. HF_ENDPOINT and HF_TOKEN are read by the client."""

    name: ClassVar[str] = "the hub"
    at: ClassVar[str] = "at commit"
    model: str
    revision: str

    def list_files(self) -> tuple[str, list[RemoteFile]]:
        """The commit that the revision is, and its files that an engine may need."""
        from huggingface_hub import HfApi  # noqa: PLC0415 - of the engine image

        info: Any = HfApi().model_info(self.model, revision=self.revision, files_metadata=True, timeout=_LIST_SECONDS)
        found = needed(_file(sibling) for sibling in info.siblings or ())
        if not found:
            raise DownloadError(DownloadExit.MODEL_MISSING, f"{self.model} has no file at revision {self.revision}")
        return str(info.sha or self.revision), found

    def fetch(self, commit: str, file: RemoteFile, part: Path) -> None:
        """Append to `part` what it lacks of the file."""
        from huggingface_hub import hf_hub_url  # noqa: PLC0415
        from huggingface_hub.file_download import http_get  # noqa: PLC0415
        from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415

        # The client's own way to a folder begins a file anew in each process; a shard may have 50 GB.
        with opened_at_end(part, file.size) as (target, have):
            if have == file.size:
                return
            headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
            url = hf_hub_url(self.model, file.name, revision=commit)
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


def _file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(
        name=str(sibling.rfilename),
        size=sibling.size if lfs is None else lfs["size"],
        sha256=None if lfs is None else lfs["sha256"],
        blob=sibling.blob_id if lfs is None else None,
    )
