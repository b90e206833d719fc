"""Methods of vLLM's classes under wrappers of ours: wrapping again replaces the wrapper, it does not add another."""

from __future__ import annotations

from typing import Any, Final

_WRAPPED: Final = "__flyball__"


def original(method: Any) -> Any:
    """VLLM's own method, under the wrapper if there is one; a wrapper is made with `functools.wraps`."""
    return method.__wrapped__ if hasattr(method, _WRAPPED) else method


def wrap(owner: Any, name: str, wrapper: Any) -> None:
    """Put a wrapper in the place of a class's method."""
    setattr(wrapper, _WRAPPED, True)
    setattr(owner, name, wrapper)
