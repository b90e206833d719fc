"""What a client may send to the OpenAI API that cannot be served."""

from __future__ import annotations

from typing import Final

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
#: Route, body, status, and words of the answer. The simulated engine samples nothing: it has fewer fields to get wrong.
SIMULATED: Final[list[tuple[str, str, int, tuple[str, ...]]]] = [
    (COMPLETIONS, "{not json", 400, ("JSON",)),
    (COMPLETIONS, "[]", 400, ("an object",)),
    (COMPLETIONS, "{}", 400, ("prompt", "required")),
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
#: Likewise of the padded engine, before a model of 1000 tokens with a context of 512.
PADDED: Final[list[tuple[str, str, int, tuple[str, ...]]]] = [
    (COMPLETIONS, "{not json", 400, ("JSON",)),
    (COMPLETIONS, "[]", 400, ("an object",)),
    (COMPLETIONS, "{}", 400, ("prompt", "required")),
    (COMPLETIONS, '{"prompt": {"text": "1"}}', 400, ("prompt", "a valid string")),
    (COMPLETIONS, '{"prompt": [1, "x"]}', 400, ("prompt", "a valid integer")),
    (COMPLETIONS, '{"prompt": []}', 400, ("prompt: is empty",)),
    (COMPLETIONS, '{"prompt": ""}', 400, ("prompt: is empty",)),
    (COMPLETIONS, '{"prompt": [[1], []]}', 400, ("prompt: is empty",)),
    (COMPLETIONS, '{"prompt": [1, 1000]}', 400, ("prompt", "accepted as tokens: 0 to 999")),
    (COMPLETIONS, '{"prompt": [-1]}', 400, ("prompt", "accepted as tokens: 0 to 999")),
    (COMPLETIONS, '{"prompt": "1", "max_tokens": 0}', 400, ("max_tokens", "greater than or equal to 1")),
    (COMPLETIONS, '{"prompt": "1", "max_tokens": "many"}', 400, ("max_tokens", "a valid integer")),
    (
        COMPLETIONS,
        '{"prompt": "1", "max_tokens": 512}',
        400,
        ("1 tokens, and 512 of the answer (max_tokens)", "the 512 tokens of the model's context"),
    ),
    (COMPLETIONS, '{"prompt": "1", "n": 0}', 400, ("n", "greater than or equal to 1")),
    (COMPLETIONS, '{"prompt": "1", "n": 65}', 400, ("n", "less than or equal to 64")),
    (COMPLETIONS, '{"prompt": "1", "n": 5}', 400, ("5 sequences", "accepted: at most 4 at once")),
    (COMPLETIONS, '{"prompt": "1", "temperature": -0.1}', 400, ("temperature", "greater than or equal to 0")),
    (COMPLETIONS, '{"prompt": "1", "temperature": 2.1}', 400, ("temperature", "less than or equal to 2")),
    (COMPLETIONS, '{"prompt": "1", "temperature": "hot"}', 400, ("temperature", "a valid number")),
    (COMPLETIONS, '{"prompt": "1", "top_p": 0}', 400, ("top_p", "greater than 0")),
    (COMPLETIONS, '{"prompt": "1", "top_p": 1.5}', 400, ("top_p", "less than or equal to 1")),
    (COMPLETIONS, '{"prompt": "1", "seed": 9223372036854775808}', 400, ("seed", "less than 9223372036854775808")),
    (COMPLETIONS, '{"prompt": "1", "stop": ["end"]}', 400, ("stop: not supported by this engine", "accepted: ")),
    (COMPLETIONS, '{"prompt": "1", "logprobs": 0}', 400, ("logprobs: not supported",)),
    (COMPLETIONS, '{"prompt": "1", "top_k": 20, "min_p": 0.1}', 400, ("min_p, top_k: not supported",)),
    (COMPLETIONS, '{"prompt": "1", "presence_penalty": 0.5}', 400, ("presence_penalty: not supported",)),
    (COMPLETIONS, '{"prompt": "1", "logit_bias": {"5": 1}}', 400, ("logit_bias: not supported",)),
    (COMPLETIONS, '{"prompt": "1", "echo": true}', 400, ("echo: not supported",)),
    (
        COMPLETIONS,
        '{"prompt": "1", "response_format": {"type": "json_object"}}',
        400,
        ("response_format: not supported",),
    ),
    (COMPLETIONS, '{"prompt": "1", "warp": 9}', 400, ("warp: not supported",)),
    (
        COMPLETIONS,
        '{"prompt": "1", "stream": true, "return_token_ids": true}',
        400,
        ("return_token_ids: accepted without stream",),
    ),
    (COMPLETIONS, '{"prompt": "1", "model": "another"}', 404, ("'another' is not served here", "accepted: 'chat'")),
    (CHAT, "{}", 400, ("messages", "required")),
    (CHAT, '{"messages": []}', 400, ("messages", "at least 1 item")),
    (CHAT, '{"messages": "hello"}', 400, ("messages", "a valid array")),
    (CHAT, '{"messages": [{"role": "user", "content": 5}]}', 400, ("messages", "a text, or parts of type text")),
    (
        CHAT,
        '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
        400,
        ("messages", "a text, or parts of type text"),
    ),
    (CHAT, '{"messages": [{"content": "1"}], "prompt": "1"}', 400, ("prompt: not supported",)),
    (CHAT, '{"messages": [{"content": "1"}], "tools": [{"type": "function"}]}', 400, ("tools: not supported",)),
    (
        CHAT,
        '{"messages": [{"content": "1"}], "max_completion_tokens": 0}',
        400,
        ("max_completion_tokens", "equal to 1"),
    ),
    ("/v1/embeddings", "{}", 404, ("Not Found",)),
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
