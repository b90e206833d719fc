"""Small LoRA adapters for the small model, and the list of adapters as a pod has it."""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_engine.adapters import Adapter, AdapterList

#: Of the model that `engine/cpu/make_model.py` writes.
_HIDDEN, _LAYERS = 512, 8


def adapter_files(seed: int, *, rank: int = 8) -> dict[str, bytes]:
    """An adapter of the small model, by file name: strong enough to answer otherwise; each seed is another one."""
    drawn = random.Random(seed)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.o_proj.lora_{part}.weight": shape
        for layer in range(_LAYERS)
        for part, shape in (("A", (rank, _HIDDEN)), ("B", (_HIDDEN, rank)))
    }
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (rows, columns) in tensors.items():
        begin = len(data)
        data += array("f", (drawn.gauss(0.0, 0.2) for _ in range(rows * columns))).tobytes()
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, len(data)]}
    encoded = json.dumps(header).encode()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["o_proj"], "bias": "none"}
    return {
        "adapter_config.json": json.dumps(config).encode(),
        "adapter_model.safetensors": len(encoded).to_bytes(8, "little") + encoded + bytes(data),
    }


def write_adapter(folder: Path, files: Mapping[str, bytes]) -> str:
    """The adapter in a folder; its uri."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return f"file://{folder}"


@dataclass(frozen=True)
class PodList:
    """The list of adapters in a pod, which the kubelet writes."""

    path: Path

    def say(self, **uris: str) -> None:
        """From now on the list has these adapters, by name; of `hf://org/name@revision` the revision is told apart."""
        adapters = tuple(
            Adapter(name=name.replace("_", "-"), uri=uri.partition("@")[0], revision=uri.partition("@")[2])
            for name, uri in uris.items()
        )
        # As a kubelet does: whole, in one step.
        partial = self.path.with_suffix(".partial")
        partial.write_text(AdapterList(adapters=adapters).model_dump_json())
        partial.replace(self.path)
