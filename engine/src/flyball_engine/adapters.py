"""What operator and engine agree on about LoRA adapters: the list in the pod, and what became of each. Pure.

The list is a file of a ConfigMap that the kubelet keeps current, so that a change of it replaces no pod and a pod that
starts needs no operator. Each API server of a pod reads it by itself.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from flyball_engine.knobs import Frozen

#: Adapters of a service at most. vLLM keeps this many in the pod's memory, so that none is read again from its folder.
MOST_ADAPTERS: Final = 32
#: Adapters that a step may mix, where `spec.engine.args` says nothing of it. vLLM's own default is 1: requests for a
#: second adapter would then wait until none for the first is left. Each costs device memory: 4 of rank 16 are some
#: 0.3 GB beside a model of 8 billion parameters.
DEFAULT_MAX_LORAS: Final = 4
#: Seconds for which an engine that answers is not Ready until each adapter was loaded, or has failed once: a download
#: of some 100 MB. Its clients would be told that there is no such model.
ADAPTERS_WAIT_SECONDS: Final = 120.0
#: Name of the file, and key of the ConfigMap.
ADAPTERS_KEY: Final = "adapters.json"
#: Of what went wrong with an adapter, so many characters are told: a read-back of all of them stays below 32 KiB.
MOST_WORDS: Final = 500
#: Ids below are vLLM's own, which counts from 1 in each API server.
_FIRST_ID: Final = 1 << 30

Text = Annotated[str, Field(min_length=1, max_length=512)]


class Adapter(Frozen):
    """One adapter as it is wanted. `uri`: `hf://org/name` or `file:///path`; `revision`: of a hub, else empty."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    uri: Text
    revision: Annotated[str, Field(max_length=128)] = ""

    @property
    def lora_id(self) -> int:
        """The number that vLLM keeps its weights under.

        Made of the adapter's address: vLLM does not notice that two API servers give one number to two adapters, and
        would answer with the weights of the other one.
        """
        digest = hashlib.sha256(self.model_dump_json().encode()).digest()
        return _FIRST_ID + int.from_bytes(digest[:4]) % _FIRST_ID


class AdapterList(Frozen):
    """The file's content."""

    adapters: Annotated[tuple[Adapter, ...], Field(max_length=MOST_ADAPTERS, strict=False)] = ()


class AdapterState(StrEnum):
    """How far an adapter is."""

    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


class AdapterReport(Frozen):
    """What became of one adapter in a pod, all its API servers together. `message`: why it failed, else empty."""

    adapter: Adapter
    state: AdapterState
    message: Annotated[str, Field(max_length=MOST_WORDS)] = ""


def merged(own: tuple[AdapterReport, ...], others: tuple[tuple[AdapterReport, ...], ...]) -> tuple[AdapterReport, ...]:
    """What all API servers say: loaded is what all have loaded. One that failed comes before one that loads."""
    found = []
    for report in own:
        same = [next((one for one in other if one.adapter == report.adapter), None) for other in others]
        each = [report, *same]
        failed = next((one for one in each if one is not None and one.state is AdapterState.FAILED), None)
        if failed is not None:
            found.append(failed)
        elif any(one is None or one.state is AdapterState.LOADING for one in each):
            found.append(AdapterReport(adapter=report.adapter, state=AdapterState.LOADING))
        else:
            found.append(report)
    return tuple(found)
