"""vLLM's side of adapters: brings one into a folder of the pod, and has this API server answer its name.

vLLM's own routes for it (`VLLM_ALLOW_RUNTIME_LORA_UPDATING`) stay closed: whoever reaches port 8000 could use them. Nor
are its methods behind them used. They number adapters in each API server by itself, so that two servers may mean
different weights by one number, and vLLM answers with the wrong ones. What they write is written here, with a number
that is made of the adapter's address.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from flyball_engine.adapters import Adapter
from flyball_engine.contract import Env
from flyball_engine.control.adapters import AdapterError
from flyball_engine.model_cache import DOWNLOAD_MODULE
from flyball_engine.vllm.attributes import first_lack
from flyball_engine.vllm.compat import ADAPTERS

_HUB: Final = "hf://"
#: What each adapter's folder has; vLLM's own error names no file.
_CONFIG: Final = "adapter_config.json"
#: Of a downloaded adapter that no API server of the pod has needed for so many seconds, the files are removed: daily
#: fine-tunes would fill the pod's disk. vLLM reads them again for a request that waits while others take the adapter's
#: room in memory, and its engine ends where they are gone. No request waits for an hour.
KEEP_SECONDS: Final = 3600.0


class VllmAdapters:
    """The adapters of one API server. `models`: vLLM's `OpenAIServingModels`."""

    def __init__(self, models: Any, engine_client: Any) -> None:
        self._models = models
        self._client = engine_client
        self._answered: set[str] = set()
        self._paths: dict[str, str] = {}

    async def load(self, adapter: Adapter) -> None:
        """Have its name answered with it, in place of an earlier one. Raises AdapterError."""
        self._expect_possible(adapter)
        path = await self._folder_of(adapter)
        if not (path / _CONFIG).is_file():
            raise AdapterError(f"{path} has no {_CONFIG}: it is no folder of a LoRA adapter in this pod")
        if self._paths.get(adapter.name, str(path)) != str(path) and self._cached_by_name():
            raise AdapterError(
                "this vLLM's prefix cache knows adapters by name alone, and would mix the earlier one's prompts with"
                " this one's: give the adapter another name, or restart the pod"
            )
        from vllm.lora.request import LoRARequest  # noqa: PLC0415 – this module is imported without vLLM, too

        request = LoRARequest(lora_name=adapter.name, lora_int_id=adapter.lora_id, lora_path=str(path))
        try:
            await self._client.add_lora(request)
        except Exception as error:
            raise AdapterError(f"vLLM refuses it: {error}") from error
        self._paths[adapter.name] = str(path)
        self._answered.add(adapter.name)
        self._models.lora_requests[adapter.name] = request

    def unload(self, name: str) -> None:
        """Have its name not found from now on. Its weights stay in memory until others need the room."""
        self._answered.discard(name)
        self._models.lora_requests.pop(name, None)

    async def tidy(self, listed: tuple[Adapter, ...]) -> None:
        """Remove downloaded files that neither this list nor another API server has needed for `KEEP_SECONDS`."""
        needed = {_kept(adapter) for adapter in listed if adapter.uri.startswith(_HUB)}
        # What answers until another of its name is loaded, too.
        needed |= {Path(self._paths[name]) for name in self._answered}
        await asyncio.to_thread(_remove_others, needed)

    def _expect_possible(self, adapter: Adapter) -> None:
        if (lack := first_lack(ADAPTERS)) is not None:
            raise AdapterError(f"this vLLM cannot load adapters while it runs: {lack}")
        if not hasattr(self._models, "lora_requests"):
            raise AdapterError("this API server has no adapters: it generates nothing")
        if getattr(self._client.vllm_config, "lora_config", None) is None:
            raise AdapterError("this engine was started without --enable-lora: restart the pod")
        if self._models.is_base_model(adapter.name):
            raise AdapterError("this is the name of the model itself: give the adapter another one")
        if adapter.name in self._models.lora_requests and adapter.name not in self._answered:
            raise AdapterError("--lora-modules in spec.engine.args has this name, too: remove one of the two")

    async def _folder_of(self, adapter: Adapter) -> Path:
        scheme, _, rest = adapter.uri.partition("://")
        if scheme == "file":
            return Path(rest)
        if not adapter.uri.startswith(_HUB):
            raise AdapterError(f"{adapter.uri}: accepted are hf://<organisation>/<name> and file:///<path in the pod>")
        folder = _kept(adapter)
        await _download(rest, adapter.revision, folder)
        os.utime(folder)
        return folder

    def _cached_by_name(self) -> bool:
        """Whether prefixes are cached, and two adapters of one name have the same ones."""
        if not getattr(self._client.vllm_config.cache_config, "enable_prefix_caching", True):
            return False
        try:
            from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys  # noqa: PLC0415 – as above
        except ImportError:
            return True

        def keys(path: str) -> Any:
            adapter = SimpleNamespace(lora_name="a", lora_path=path)
            request = SimpleNamespace(mm_features=[], lora_request=adapter, cache_salt=None, prompt_embeds=None)
            return generate_block_hash_extra_keys(request, 0, 1, 0)[0]

        return bool(keys("/a") == keys("/b"))


def _downloaded() -> Path:
    return Path(tempfile.gettempdir()) / "flyball-adapters"


def _kept(adapter: Adapter) -> Path:
    """The folder that an adapter of a hub is downloaded to."""
    # As the hub's client names folders. No name or revision has "--" in it.
    model = adapter.uri.removeprefix(_HUB)
    return _downloaded() / model.replace("/", "--") / adapter.revision.replace("/", "--")


def _remove_others(needed: Set[Path]) -> None:
    """Touch what is needed; remove what no API server has touched for long. None touches a folder that is not ours."""
    for folder in [found for found in _downloaded().glob("*/*") if found.is_dir()]:
        # Another API server may have removed it, or the disk refuses: the next look tries again.
        with suppress(OSError):
            if folder in needed:
                os.utime(folder)
            elif time.time() - folder.stat().st_mtime > KEEP_SECONDS:
                # At once gone for who downloads it again.
                removed = folder.rename(folder.with_name(f".{folder.name}.{os.getpid()}.removed"))
                shutil.rmtree(removed)


async def _download(model: str, revision: str, folder: Path) -> None:
    """Fill the folder, in a process of its own; another API server of the pod waits for it. Raises AdapterError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    told = folder.with_name(f"{folder.name}.{os.getpid()}.message")
    # That of an earlier try is none of this one's.
    told.unlink(missing_ok=True)
    # The model may be read without a network. The message of a container that ends is not the adapter's.
    variables = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    variables[Env.TERMINATION_LOG.value] = str(told)
    options = (f"--model={model}", f"--revision={revision}", f"--folder={folder}")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", DOWNLOAD_MODULE, *options, env=variables)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        raise
    if code:
        why = told.read_text(errors="replace") if told.exists() else f"the download ended with exit code {code}"
        raise AdapterError(why)
