"""Whether a KV connector may bring what an engine would process otherwise: nobody knows then how long prompts take."""

from __future__ import annotations

from typing import Any, Final

#: Connectors whose producers load a prompt only where its own request says from where. All others look for what any
#: engine has left, whatever their role is.
_LOAD_IF_TOLD: Final = frozenset(
    {"NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MoRIIOConnector"}
)
#: By which a request says so: vLLM's `kv_transfer_params`.
_SAYS_WHERE: Final = ("do_remote_prefill", "remote_block_ids")


def loads_prompts(vllm_config: Any) -> bool:
    """Whether prompts of an engine with this configuration may be loaded, as of a consumer or an offloaded cache."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    connector = getattr(transfer, "kv_connector", None)
    if transfer is None or connector is None:
        return False
    return bool(getattr(transfer, "is_kv_consumer", True)) or connector not in _LOAD_IF_TOLD


def is_loaded(request: Any) -> bool:
    """Whether a request says where its prompt is to be loaded from, as a router may tell a producer, too."""
    told = getattr(request, "kv_transfer_params", None) or {}
    return any(told.get(name) for name in _SAYS_WHERE)
