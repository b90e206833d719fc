"""The bodies that the padded engine accepts. What would change an answer and is not here is refused by name.

Fields with the value that changes nothing are accepted, as many clients send all they know. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from pydantic import Field, model_validator

from flyball_lab.openai.bodies import Body, ChatFields, CompletionFields, Prompt
from flyball_lab.padded.requests import Sampling

_ANY: Final = object()
#: Values that ask for nothing; so does null, of any field. `_ANY`: the field says nothing of the answer at all.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": (_ANY,),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop": ("", []),
    "store": (_ANY,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_k": (0, -1),
    "user": (_ANY,),
}
_SEEDS: Final = 2**63


class Tokens(Protocol):
    """Turns what clients write into tokens; both raise ValueError with the reason."""

    def of_text(self, text: str) -> list[int]:
        """Of a prompt."""

    def of_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Of a conversation, by the model's template."""


class PaddedBody(Body):
    """What both routes have here."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-_SEEDS, lt=_SEEDS)
    ignore_eos: bool = False
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_ignored(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        unknown = {name: value for name, value in values.items() if name not in cls.model_fields}
        refused = [name for name, value in unknown.items() if not _is_neutral(name, value)]
        if refused:
            accepted = ", ".join(sorted(cls.model_fields))
            raise ValueError(f"{', '.join(sorted(refused))[:200]}: not supported by this engine, accepted: {accepted}")
        return {name: value for name, value in values.items() if name not in unknown}

    @model_validator(mode="after")
    def _tokens_are_told_whole(self) -> PaddedBody:
        if self.return_token_ids and self.stream:
            raise ValueError("return_token_ids: accepted without stream")
        return self

    def sampling(self, index: int) -> Sampling:
        """Of the answer number `index`: each has a seed of its own, that the others do not depend on."""
        seed = None if self.seed is None else (self.seed + index) % _SEEDS
        return Sampling(temperature=self.temperature, top_p=self.top_p, seed=seed, ignore_eos=self.ignore_eos)


class PaddedCompletion(PaddedBody, CompletionFields):
    """Of POST /v1/completions."""

    @property
    def sequences(self) -> int:
        """How many are to be generated."""
        return len(self.prompts()) * self.n

    def most(self, room: int) -> int:  # noqa: ARG002 – as a chat's
        """Output tokens at most."""
        return self.output_tokens

    def encoded(self, tokens: Tokens) -> list[list[int]]:
        """The tokens of each prompt; raises ValueError."""
        return [_encoded(prompt, tokens) for prompt in self.prompts()]


class PaddedChat(PaddedBody, ChatFields):
    """Of POST /v1/chat/completions."""

    @property
    def sequences(self) -> int:
        """How many are to be generated."""
        return self.n

    def most(self, room: int) -> int:
        """Output tokens at most; as in vLLM what the context leaves where the client names none."""
        return self.output_tokens or max(1, room)

    def encoded(self, tokens: Tokens) -> list[list[int]]:
        """The tokens of the conversation; raises ValueError."""
        return [tokens.of_messages([_plain(message) for message in self.messages])]


AnyBody = PaddedCompletion | PaddedChat


def _is_neutral(name: str, value: object) -> bool:
    # False and 0 are equal in Python, and not in JSON.
    return value is None or any(
        neutral is _ANY or (neutral == value and isinstance(neutral, bool) is isinstance(value, bool))
        for neutral in _NEUTRAL.get(name, ())
    )


def _encoded(prompt: Prompt, tokens: Tokens) -> list[int]:
    return tokens.of_text(prompt) if isinstance(prompt, str) else list(prompt)


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose parts, if it is in parts, are all text."""
    content = message.get("content")
    if isinstance(content, str):
        return message
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError("messages: accepted as content: a text, or parts of type text")
    return {**message, "content": "".join(str(text) for text in texts)}
