"""What of the OpenAI API a simulated engine understands: how many tokens come in, and how many go out.

There is no tokeniser: four characters are a token, and a prompt given as token ids has as many as there are. Answers
have the length that was asked for (`max_tokens`), without one that of a conversation. A chat's system message is a
prefix that requests share. Pure but for randomness, which is a parameter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from random import Random
from typing import Final

from pydantic import ConfigDict

from flyball_lab.openai.bodies import ChatFields, CompletionFields, text_of
from flyball_lab.simulator.lengths import SHAPES
from flyball_lab.simulator.requests import Prefix, Request

CHARACTERS_PER_TOKEN: Final = 4
TOKEN: Final = " tok"


class CompletionBody(CompletionFields):
    """Other fields are accepted and do nothing, as sampling has nothing to sample here."""

    model_config = ConfigDict(extra="ignore")

    def sequences(self, random: Random) -> list[Request]:  # noqa: ARG002 – as a chat's
        """What is to be generated: `n` for each prompt."""
        return [
            Request(0.0, _tokens(prompt), self.output_tokens, priority=self.priority, named=self.max_tokens)
            for prompt in self.prompts()
            for _ in range(self.n)
        ]


class ChatBody(ChatFields):
    """As above."""

    model_config = ConfigDict(extra="ignore")

    def sequences(self, random: Random) -> list[Request]:
        """What is to be generated: `n` answers to the messages."""
        texts = [text_of(message.get("content")) for message in self.messages]
        prompt = _tokens("".join(texts))
        prefix = None
        if self.messages[0].get("role") == "system" and texts[0]:
            name = hashlib.sha256(texts[0].encode()).hexdigest()[:16]
            prefix = Prefix(name, _tokens(texts[0]))
        output = self.output_tokens or SHAPES["conversation"].output.draw(random)
        named = self.output_tokens
        return [Request(0.0, prompt, output, prefix=prefix, priority=self.priority, named=named) for _ in range(self.n)]


def _tokens(prompt: str | Sequence[int]) -> int:
    return max(1, -(-len(prompt) // CHARACTERS_PER_TOKEN) if isinstance(prompt, str) else len(prompt))
