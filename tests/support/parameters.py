"""What a client of the OpenAI API may say: for each parameter of a request, what to send with it.

The names are those of the served /openapi.json; a test compares, so that a new one is not forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

Body = dict[str, Any]

_SCHEMA: Final[Body] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_TOOL: Final[Body] = {"type": "function", "function": {"name": "weather", "parameters": _SCHEMA}}
_NAMED: Final[Body] = {"type": "function", "function": {"name": "weather"}}
_TAG: Final[Body] = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": _SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
_FORMATS: Final = (
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "place", "schema": _SCHEMA}},
    _TAG,
)
_STRUCTURES: Final = (
    {"json": _SCHEMA},
    {"regex": "[a-z]{3}"},
    {"choice": ["yes", "no"]},
    {"grammar": 'root ::= "yes" | "no"'},
    {"json_object": True},
)
_STREAM: Final[Body] = {"stream": True}

#: Of both endpoints: what else a body says, several bodies for a parameter where its values take different ways.
SHARED: Final[dict[str, tuple[Body, ...]]] = {
    "model": ({},),
    "add_special_tokens": ({"add_special_tokens": True},),
    "allowed_token_ids": ({"allowed_token_ids": [300, 301, 302]},),
    "bad_words": ({"bad_words": ["import", " self"]},),
    "cache_salt": ({"cache_salt": "salt"},),
    "echo": ({"echo": True},),
    "ec_transfer_params": ({"ec_transfer_params": {}},),
    "frequency_penalty": ({"frequency_penalty": 0.5},),
    "ignore_eos": ({"ignore_eos": True},),
    "include_stop_str_in_output": ({"include_stop_str_in_output": True, "stop": "e"},),
    "kv_transfer_params": ({"kv_transfer_params": {}},),
    "length_penalty": ({"length_penalty": 0.5, "use_beam_search": True, "n": 2},),
    "logit_bias": ({"logit_bias": {"300": 5.0, "301": -5.0}},),
    "max_tokens": ({"max_tokens": 1},),
    "min_p": ({"min_p": 0.05, "temperature": 1.0},),
    "min_tokens": ({"min_tokens": 2},),
    "mm_payload": ({"mm_payload": "none"},),
    "n": ({"n": 3, "temperature": 1.0},),
    "presence_penalty": ({"presence_penalty": 0.5},),
    "priority": ({"priority": 0},),
    "prompt_logprobs": ({"prompt_logprobs": 0}, {"prompt_logprobs": 3}),
    "repetition_detection": ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}},),
    "repetition_penalty": ({"repetition_penalty": 1.2},),
    "request_id": ({"request_id": "mine"},),
    "response_format": tuple({"response_format": each} for each in _FORMATS),
    "return_mm_kwargs": ({"return_mm_kwargs": True},),
    "return_token_ids": ({"return_token_ids": True}, {"return_token_ids": True} | _STREAM),
    "return_token_offsets": ({"return_token_offsets": True},),
    "return_tokens_as_token_ids": ({"return_tokens_as_token_ids": True},),
    "routed_experts_prompt_start": ({"routed_experts_prompt_start": 1},),
    "seed": ({"seed": 7, "temperature": 1.0}, {"seed": -7, "temperature": 1.0, "n": 2}),
    "session_id": ({"session_id": "mine"},),
    "skip_special_tokens": ({"skip_special_tokens": False},),
    "spaces_between_special_tokens": ({"spaces_between_special_tokens": False},),
    "stop": ({"stop": "e"}, {"stop": ["e", "\n"]}),
    "stop_token_ids": ({"stop_token_ids": [300]},),
    "stream": (_STREAM,),
    "stream_interval": ({"stream_interval": 2} | _STREAM,),
    "stream_options": ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}} | _STREAM,),
    "structured_outputs": tuple({"structured_outputs": each} for each in _STRUCTURES),
    "temperature": ({"temperature": 0.0}, {"temperature": 1.3}),
    "thinking_token_budget": ({"thinking_token_budget": 5},),
    "top_k": ({"top_k": 5, "temperature": 1.0}, {"top_k": 5, "top_p": 0.9, "temperature": 1.0, "seed": 1}),
    "top_p": ({"top_p": 0.5, "temperature": 1.0},),
    "truncate_prompt_tokens": ({"truncate_prompt_tokens": 2},),
    "truncation_side": ({"truncation_side": "right", "truncate_prompt_tokens": 2},),
    "use_beam_search": ({"use_beam_search": True, "n": 2},),
    "user": ({"user": "me"},),
    "vllm_xargs": ({"vllm_xargs": {"mine": 1}},),
    "watermarking": ({"watermarking": False},),
}
COMPLETIONS: Final[dict[str, tuple[Body, ...]]] = SHARED | {
    "logprob_token_ids": ({"logprob_token_ids": [300, 301], "logprobs": 2},),
    "logprobs": ({"logprobs": 0}, {"logprobs": 5}, {"logprobs": 2, "temperature": 1.0, "n": 2} | _STREAM),
    "prompt": ({"prompt": ["hello", "world"]}, {"prompt": [300, 301]}, {"prompt": [[300], [301, 302]]}),
    "prompt_embeds": ({"prompt_embeds": "AAAA"},),
    "suffix": ({"suffix": "the end"},),
}
CHAT: Final[dict[str, tuple[Body, ...]]] = SHARED | {
    "add_generation_prompt": ({"add_generation_prompt": False},),
    "chat_template": ({"chat_template": "{{ messages[0].content }}"},),
    "chat_template_kwargs": ({"chat_template_kwargs": {"mine": 1}},),
    "continue_final_message": ({"continue_final_message": True, "add_generation_prompt": False},),
    "documents": ({"documents": [{"title": "t", "text": "x"}]},),
    "include_reasoning": ({"include_reasoning": False},),
    "logprob_token_ids": ({"logprob_token_ids": [300, 301], "logprobs": True},),
    "logprobs": ({"logprobs": True}, {"logprobs": True} | _STREAM),
    "max_completion_tokens": ({"max_completion_tokens": 2},),
    "media_io_kwargs": ({"media_io_kwargs": {}},),
    "messages": ({"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "brief"}]},),
    "mm_processor_kwargs": ({"mm_processor_kwargs": {}},),
    "parallel_tool_calls": ({"parallel_tool_calls": False, "tools": [_TOOL], "tool_choice": "required"},),
    "reasoning_effort": ({"reasoning_effort": "low"},),
    "return_prompt_text": ({"return_prompt_text": True},),
    "tool_choice": tuple({"tools": [_TOOL], "tool_choice": each} for each in ("none", "auto", "required", _NAMED)),
    "tools": ({"tools": [_TOOL]},),
    "top_logprobs": ({"top_logprobs": 4, "logprobs": True}, {"top_logprobs": 0, "logprobs": True, "n": 2}),
}
#: Of each endpoint: the schema of its requests, its parameters, and a body that says nothing else.
ENDPOINTS: Final[Mapping[str, tuple[str, dict[str, tuple[Body, ...]], Body]]] = {
    "/v1/completions": ("CompletionRequest", COMPLETIONS, {"prompt": "hello, world"}),
    "/v1/chat/completions": ("ChatCompletionRequest", CHAT, {"messages": [{"role": "user", "content": "hello"}]}),
}
#: What this server answers with 400, since it is not set up for it.
REFUSED: Final = frozenset({"chat_template", "prompt_embeds", "suffix", "thinking_token_budget"})


def bodies(path: str) -> Iterator[tuple[str, Body]]:
    """Each parameter of an endpoint with a body that sends it, whole but for the model's name."""
    _, parameters, plain = ENDPOINTS[path]
    for name, sent in parameters.items():
        for each in sent:
            yield name, {"max_tokens": 4} | plain | each
