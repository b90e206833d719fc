"""The forms of OpenAI's answers: whole, as the chunks of a stream, and as errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class GeneratedSequence(Protocol):
    """One sequence as it is written."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""

    @property
    def cached_tokens(self) -> int:
        """Those of them that a prefix cache held."""

    @property
    def made(self) -> int:
        """Output tokens so far."""

    @property
    def token_ids(self) -> Sequence[int] | None:
        """These tokens, where the client asked for them."""

    @property
    def finish_reason(self) -> str | None:
        """`stop` or `length`; None while it is being written."""

    @property
    def failure(self) -> str | None:
        """Why it ended without an answer; None if it did not."""

    def pieces(self, start: int) -> Sequence[str]:
        """The text that each token from number `start` on added, maybe none."""


def ended(answer: GeneratedSequence) -> bool:
    """Whether nothing more is to come."""
    return answer.finish_reason is not None or answer.failure is not None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Forms the answer to one HTTP request, of `each` sequences for a prompt."""

    identity: str
    model: str
    created: int
    chat: bool
    each: int

    def chunk(self, index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
        """One token of a sequence in a stream; the last one says why it is the last."""
        said: dict[str, Any] = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        choice = {"index": index, **said, "finish_reason": finish_reason}
        return self._envelope("chat.completion.chunk" if self.chat else "text_completion", [choice])

    def role_chunk(self, index: int) -> dict[str, Any]:
        """Who speaks, which a sequence of a streamed chat begins with."""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._envelope("chat.completion.chunk", [choice])

    def usage_chunk(self, answers: Sequence[GeneratedSequence]) -> dict[str, Any]:
        """The last of a stream that was asked for its numbers of tokens."""
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._envelope(kind, []), "usage": _usage(answers, self.each)}

    def whole(self, answers: Sequence[GeneratedSequence]) -> dict[str, Any]:
        """An answer that is no stream."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._envelope(kind, choices), "usage": _usage(answers, self.each)}

    def _choice(self, index: int, answer: GeneratedSequence) -> dict[str, Any]:
        text = "".join(answer.pieces(0))
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        tokens = {} if answer.token_ids is None else {"token_ids": list(answer.token_ids)}
        return {"index": index, **said, "finish_reason": answer.finish_reason, **tokens}

    def _envelope(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.identity,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


def _usage(answers: Sequence[GeneratedSequence], each: int) -> dict[str, Any]:
    """Numbers of tokens of one HTTP request, with `each` sequences for a prompt, which counts once."""
    prompts = answers[::each]
    prompt, output = sum(answer.prompt_tokens for answer in prompts), sum(answer.made for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(answer.cached_tokens for answer in prompts)},
    }


def error(message: str, *, kind: str, status: int) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
