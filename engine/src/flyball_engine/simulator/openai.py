"""What of the OpenAI API a simulated engine understands: how many tokens come in, how many go out, and in what form.

There is no tokeniser: four characters are a token, and a prompt given as token ids has as many as there are. Answers
have the length that was asked for (`max_tokens`), without one that of a conversation. A chat's system message is a
prefix that requests share. Pure but for randomness, which is a parameter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from flyball_engine.simulator.lengths import SHAPES
from flyball_engine.simulator.requests import Prefix, Request

CHARACTERS_PER_TOKEN: Final = 4
#: OpenAI's and vLLM's own.
_COMPLETION_TOKENS: Final = 16
TOKEN: Final = " tok"


class _Body(BaseModel):
    """Fields beyond these are accepted and do nothing, as sampling has nothing to sample here."""

    model_config = ConfigDict(extra="ignore")

    n: int = Field(1, ge=1, le=64)
    stream: bool = False
    stream_options: Mapping[str, Any] | None = None
    max_tokens: int | None = Field(None, ge=1)
    priority: int = 0

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))


class CompletionBody(_Body):
    """Of POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]] = ""

    def sequences(self, random: Random) -> list[Request]:  # noqa: ARG002 – as a chat's
        """What is to be generated: `n` for each prompt."""
        several = isinstance(self.prompt, list) and not (self.prompt and isinstance(self.prompt[0], int))
        prompts: Sequence[Any] = self.prompt if several else [self.prompt]
        output = self.max_tokens or _COMPLETION_TOKENS
        return [
            Request(0.0, _tokens(prompt), output, priority=self.priority) for prompt in prompts for _ in range(self.n)
        ]


class ChatBody(_Body):
    """Of POST /v1/chat/completions."""

    messages: list[Mapping[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    def sequences(self, random: Random) -> list[Request]:
        """What is to be generated: `n` answers to the messages."""
        texts = [_text(message.get("content")) for message in self.messages]
        prompt = _tokens("".join(texts))
        prefix = None
        if self.messages[0].get("role") == "system" and texts[0]:
            name = hashlib.sha256(texts[0].encode()).hexdigest()[:16]
            prefix = Prefix(name, _tokens(texts[0]))
        output = self.max_completion_tokens or self.max_tokens or SHAPES["conversation"].output.draw(random)
        return [Request(0.0, prompt, output, prefix=prefix, priority=self.priority) for _ in range(self.n)]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Forms answers to one HTTP request, of `each` sequences for a prompt."""

    identity: str
    model: str
    created: int
    chat: bool
    each: int

    def chunk(self, index: int, *, finished: bool = False) -> dict[str, Any]:
        """One token of a sequence in a stream, or its end."""
        text = "" if finished else TOKEN
        said: dict[str, Any] = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        choice = {"index": index, **said, "finish_reason": "length" if finished else None}
        return self._envelope("chat.completion.chunk" if self.chat else "text_completion", [choice])

    def usage_chunk(self, requests: Sequence[Request]) -> dict[str, Any]:
        """The last of a stream that was asked for its numbers of tokens."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._envelope(kind, []), "usage": _usage(requests, self.each)}

    def whole(self, requests: Sequence[Request]) -> dict[str, Any]:
        """An answer that is no stream."""
        choices = []
        for index, request in enumerate(requests):
            text = TOKEN * request.made
            said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            choices.append({"index": index, **said, "finish_reason": "length"})
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._envelope(kind, choices), "usage": _usage(requests, self.each)}

    def _envelope(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


def _usage(requests: Sequence[Request], each: int) -> dict[str, Any]:
    """Numbers of tokens of one HTTP request, with `each` sequences for a prompt, which counts once."""
    prompts = requests[::each]
    prompt, output = sum(request.prompt for request in prompts), sum(request.made for request in requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(request.cached or 0 for request in prompts)},
    }


def error(message: str, *, kind: str, status: int) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _tokens(prompt: str | Sequence[int]) -> int:
    return max(1, -(-len(prompt) // CHARACTERS_PER_TOKEN) if isinstance(prompt, str) else len(prompt))


def _text(content: object) -> str:
    """A message's text: whole, or in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
