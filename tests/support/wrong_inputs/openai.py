"""What a client may send to the OpenAI API that cannot be served."""

from __future__ import annotations

from typing import Final

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
#: Route, body, status, and words of the answer. The simulated engine samples nothing: it has fewer fields to get wrong.
SIMULATED: Final[list[tuple[str, str, int, tuple[str, ...]]]] = [
    (COMPLETIONS, "{not json", 400, ("JSON",)),
    (COMPLETIONS, "[]", 400, ("an object",)),
    (COMPLETIONS, '{"prompt": 7}', 400, ("prompt", "a valid string")),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": 0}', 400, ("max_tokens", "greater than or equal to 1")),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": "many"}', 400, ("max_tokens", "a valid integer")),
    (COMPLETIONS, '{"prompt": "x", "n": 0}', 400, ("n", "greater than or equal to 1")),
    (COMPLETIONS, '{"prompt": "x", "n": 65}', 400, ("n", "less than or equal to 64")),
    (COMPLETIONS, '{"prompt": "x", "stream": "perhaps"}', 400, ("stream", "a valid boolean")),
    (COMPLETIONS, '{"prompt": [], "max_tokens": 1}', 400, ("prompt", "is empty")),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": 5000}', 400, ("longer than the 4096 tokens",)),
    (
        COMPLETIONS,
        '{"prompt": "x", "model": "another"}',
        404,
        ("'another' is not served here", "accepted: 'simulated'"),
    ),
    (CHAT, "{}", 400, ("messages", "required")),
    (CHAT, '{"messages": []}', 400, ("messages", "at least 1 item")),
    (CHAT, '{"messages": ["hello"]}', 400, ("messages", "an object")),
    (
        CHAT,
        '{"messages": [{"content": "x"}], "max_completion_tokens": 0}',
        400,
        ("max_completion_tokens", "equal to 1"),
    ),
]
#: What does not fit on a page.
TOO_LARGE: Final = ("a body of more than 16 MiB", 413, "at most 16777216 bytes")
#: As vLLM has it, for every version that is tested.
VLLM: Final[list[tuple[str, str, int, tuple[str, ...]]]] = [
    (COMPLETIONS, "{not json", 400, ("JSON",)),
    (COMPLETIONS, '{"prompt": "x", "model": "no-such-model"}', 404, ("no-such-model",)),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": -4}', 400, ("max_tokens",)),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": "many"}', 400, ("max_tokens",)),
    (COMPLETIONS, '{"prompt": "x", "temperature": -1}', 400, ("temperature",)),
    (COMPLETIONS, '{"prompt": "x", "top_p": 2}', 400, ("top_p",)),
    (COMPLETIONS, '{"prompt": "x", "n": 0}', 400, ("n",)),
    (COMPLETIONS, '{"prompt": [99999999], "max_tokens": 1}', 400, ("vocabulary",)),
    (COMPLETIONS, '{"prompt": "x", "max_tokens": 100000}', 400, ("max_tokens",)),
    (CHAT, '{"messages": "hello"}', 400, ("messages",)),
    (CHAT, '{"messages": [{"content": "x"}]}', 400, ("role",)),
    ("/v1/nowhere", "{}", 404, ("Not Found",)),
]
