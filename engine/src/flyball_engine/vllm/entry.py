"""What vLLM's entry point `vllm.general_plugins` calls in each process: registers the plugin where it is asked for.

An image may have the plugin installed and serve without Flyball. So nothing is done, and vLLM stays as it is, unless
the environment says whose engine this is. Without the launcher, the rest that it would set is set here: vLLM reads
these variables later, and child processes inherit them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

from flyball_engine.contract import Env
from flyball_engine.log_events import EngineLogEvent, EventLog

_log = EventLog(__name__)

#: Entry points of the plugin, in every process and in the API server.
OUR_PLUGINS: Final = ("flyball", "flyball_control")
#: Groups whose plugins vLLM loads unless VLLM_PLUGINS leaves them out.
LOADED_GROUPS: Final = ("general_plugins", "platform_plugins", "io_processor_plugins", "stat_logger_plugins")
#: The Rust front end replaces the API server that the plugin lives in.
RUST_FRONTEND: Final = ("VLLM_USE_RUST_FRONTEND", "VLLM_RUST_FRONTEND_PATH")
#: Either asks for the plugin: the service whose engine this is, or the folder that the launcher made.
_ASKS: Final = (Env.SERVICE_UID, Env.STATE_DIR)


def load() -> None:
    """Entry point `vllm.general_plugins`: idempotent, never raises."""
    if not asked_for(os.environ):
        return
    from flyball_engine.vllm import plugin  # noqa: PLC0415 – where it is not asked for, none of it is imported

    prepare(os.environ)
    plugin.register()


def asked_for(environment: MutableMapping[str, str]) -> bool:
    """Whether this engine is to be governed."""
    return any(environment.get(name) for name in _ASKS)


@dataclass(frozen=True)
class PluginVariables:
    """What vLLM's variables must be for the plugins to be loaded: the value of VLLM_PLUGINS, and variables to drop.

    `notice`: what to tell whoever reads the log.
    """

    plugins: str
    drop: tuple[str, ...] = ()
    notice: str | None = None


def plugin_variables(
    environment: Mapping[str, str], installed: Sequence[str], *, governed: bool = True
) -> PluginVariables:
    """The user's plugins and, if governed, ours. `installed`: those that vLLM loads where none are named. Pure.

    vLLM loads the control port only where `VLLM_PLUGINS` names it, and then no plugin that is not named: so all that
    it would have loaded are named, too. The Rust front end is dropped, governed or not: `vllm serve`, which starts
    several API servers, would start it in their place.
    """
    named = environment.get("VLLM_PLUGINS")
    found = installed if named is None else [name for name in named.split(",") if name]
    theirs = [name for name in dict.fromkeys(found) if name not in OUR_PLUGINS]
    plugins = ",".join([*theirs, *(OUR_PLUGINS if governed else ())])
    if environment.get(RUST_FRONTEND[0], "0") in ("", "0"):
        return PluginVariables(plugins)
    drop = tuple(name for name in RUST_FRONTEND if name in environment)
    return PluginVariables(plugins, drop, f"{RUST_FRONTEND[0]} is dropped: the plugin lives in the Python API server")


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set what the launcher sets; after the launcher, nothing is left to do."""
    wanted = plugin_variables(environment, installed_plugins())
    environment["VLLM_PLUGINS"] = wanted.plugins
    for name in wanted.drop:
        del environment[name]
    if wanted.notice is not None:
        _log.warning(EngineLogEvent.RUST_FRONTEND_DISABLED, "%s", wanted.notice)


def installed_plugins() -> list[str]:
    """Names of the plugins that vLLM loads where none are named."""
    return [found.name for group in LOADED_GROUPS for found in entry_points(group=f"vllm.{group}")]
