"""What the launcher asks of the installed vLLM, and what it hears back. Pure.

The launcher and the probing child share these two messages; they travel as JSON over the child's pipes.
"""

from __future__ import annotations

from pydantic import Field

from flyball_engine.contract import Frozen


class Question(Frozen):
    """`user`: the tokens of `spec.engine.args`; `owned`: Flyball's arguments, one token each."""

    user: tuple[str, ...] = Field(default=(), strict=False)
    owned: tuple[str, ...] = Field(default=(), strict=False)


class ProbeAnswer(Frozen):
    """What the installed vLLM makes of a `Question`.

    `refused`: why it must not be started with these arguments, one sentence each; empty if it may.
    `arguments`: all arguments to start it with, the user's first. `dropped`: owned arguments this version lacks.
    `plugin`: why Flyball's plugin cannot be loaded; None if it can. `api_servers`: how many these arguments ask for.
    """

    engine_version: str
    refused: tuple[str, ...] = Field(default=(), strict=False)
    arguments: tuple[str, ...] = Field(default=(), strict=False)
    dropped: tuple[str, ...] = Field(default=(), strict=False)
    plugin: str | None = None
    api_servers: int = 1
