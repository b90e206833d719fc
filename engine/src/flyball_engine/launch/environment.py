"""What the engine's environment variables must be for it to run as any user on a read-only root. Pure.

Only what is missing is added: a variable the image or the user has set is kept. The notices name two exceptions:
`VLLM_PLUGINS`, which is merged, and a HOME that cannot be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flyball_engine.vllm.entry import plugin_variables


@dataclass(frozen=True)
class Place:
    """Where we start: the environment, the scratch folder, whether this user has a name, and what can be written.

    `plugins`: names of the vLLM plugins installed, which vLLM loads when `VLLM_PLUGINS` is not set.
    """

    variables: Mapping[str, str]
    scratch: str
    user: str | None
    writable: Callable[[str], bool]
    plugins: Sequence[str] = ()


@dataclass
class Changes:
    """Variables to set, variables to drop, and what to tell whoever reads the log."""

    set: dict[str, str] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def applied(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment after these changes."""
        return {name: value for name, value in {**variables, **self.set}.items() if name not in self.drop}


def changes(place: Place, *, governed: bool) -> Changes:
    """What to change in the environment, with the plugin or without."""
    made = Changes()
    _home(place, made)
    wanted = plugin_variables(place.variables, place.plugins, governed=governed)
    made.set["VLLM_PLUGINS"] = wanted.plugins
    made.drop.extend(wanted.drop)
    made.notices.extend([] if wanted.notice is None else [wanted.notice])
    return made


def _home(place: Place, made: Changes) -> None:
    """A home that can be written to: caches (vLLM, Hugging Face, Triton, compilers) have their defaults below it."""
    home = place.variables.get("HOME", "")
    if not (home and place.writable(home)):
        made.set["HOME"] = f"{place.scratch}/flyball-home"
        if home not in ("", "/"):
            made.notices.append(f"HOME={home} is not writable; using {made.set['HOME']}")
    if place.user is None and not place.variables.get("USER"):
        # getpass.getuser() fails for a user id without a name, and vLLM and torch name folders after it.
        made.set["USER"] = made.set["LOGNAME"] = "flyball"
    below = made.set.get("HOME", home)
    for name, path in (("XDG_CACHE_HOME", ".cache"), ("XDG_CONFIG_HOME", ".config"), ("HF_HOME", ".cache/huggingface")):
        if "HOME" in made.set and not place.variables.get(name):
            made.set[name] = f"{below}/{path}"
