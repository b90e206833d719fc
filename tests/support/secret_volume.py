"""Secrets, also as the kubelet mounts them: files behind a link to a folder; an update turns it to another folder."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SecretVolume:
    """The mounted folder; `update` renews its files as the kubelet does."""

    def __init__(self, folder: Path, data: Mapping[str, str]) -> None:
        self.folder = folder
        self._updates = 0
        folder.mkdir()
        self.update(data)

    def update(self, data: Mapping[str, str]) -> None:
        """The files of an updated Secret, all at one moment; those before are gone then."""
        self._updates += 1
        made, link = self.folder / f"..2026_{self._updates}", self.folder / "..data"
        made.mkdir()
        for name, text in data.items():
            (made / name).write_text(text)
        before = link.resolve() if link.is_symlink() else None
        turned = self.folder / "..data_tmp"
        turned.symlink_to(made.name)
        turned.replace(link)
        for name in data:
            file = self.folder / name
            if not file.is_symlink():
                file.symlink_to(f"..data/{name}")
        if before is not None:
            shutil.rmtree(before)


def tls_data(issued: tuple[str, str]) -> dict[str, str]:
    """A certificate and its key, as in a Secret of type kubernetes.io/tls."""
    return dict(zip(("tls.crt", "tls.key"), issued, strict=True))


def secret(name: str, data: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of a Secret."""
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
