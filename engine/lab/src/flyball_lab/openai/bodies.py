"""The fields of OpenAI's request bodies that every engine understands; each engine says what becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, Field

#: Answers to one prompt at most.
MOST_ANSWERS: Final = 64
#: Output tokens of a completion that names none: OpenAI's and vLLM's own.
COMPLETION_TOKENS: Final = 16

Prompt = str | list[int]


class Body(BaseModel):
    """What both routes have."""

    model: str | None = None
    n: int = Field(1, ge=1, le=MOST_ANSWERS)
    stream: bool = False
    stream_options: Mapping[str, Any] | None = None
    max_tokens: int | None = Field(None, ge=1)
    priority: int = 0

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionFields(Body):
    """Of POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]

    @property
    def output_tokens(self) -> int:
        """Output tokens of each answer at most."""
        return self.max_tokens or COMPLETION_TOKENS

    def prompts(self) -> list[Prompt]:
        """One prompt, or several."""
        several = isinstance(self.prompt, list) and not (self.prompt and isinstance(self.prompt[0], int))
        # By its first member all of a list are of one type, which pydantic has checked.
        return list(self.prompt) if several else [self.prompt]  # type: ignore[arg-type, list-item]


class ChatFields(Body):
    """Of POST /v1/chat/completions."""

    messages: list[Mapping[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @property
    def output_tokens(self) -> int | None:
        """Output tokens of each answer at most, None if the client names none."""
        return self.max_completion_tokens or self.max_tokens


def text_of(content: object) -> str:
    """A message's text: whole, or in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
