"""Asks the gate about prompts in the Harmony format, that of gpt-oss models: vLLM renders them apart from others."""

from __future__ import annotations

import functools
from typing import Any, Final

from flyball_engine.vllm.gate import RequestGate
from flyball_engine.vllm.wrapping import original, wrap

#: The model type, of the model's own configuration, whose chats have this format.
_MODEL_TYPE: Final = "gpt_oss"
#: Gives messages and the prompts they make: of chats in the renderer, of responses in their route (before 0.32).
_MESSAGES: Final = "_make_request_with_harmony"
#: Gives one prompt: of responses in the renderer (since 0.32).
_RESPONSES: Final = "render_responses_harmony_messages"


def install_harmony(request_gate: RequestGate) -> str | None:
    """Ask this gate from now on; returns why that is impossible, or None. Installing again replaces it."""
    try:
        from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses  # noqa: PLC0415 – only an API
        from vllm.renderers.online_renderer import OnlineRenderer  # noqa: PLC0415 – server has them
    except ImportError as error:
        return str(error)
    if not hasattr(OnlineRenderer, _MESSAGES):
        return f"OnlineRenderer has no {_MESSAGES}"
    if hasattr(OnlineRenderer, _RESPONSES):
        _ask_about_one(OnlineRenderer, request_gate)
    elif hasattr(OpenAIServingResponses, _MESSAGES):
        _ask_about_several(OpenAIServingResponses, request_gate)
    else:
        return f"OnlineRenderer has no {_RESPONSES}, and OpenAIServingResponses no {_MESSAGES}"
    _ask_about_several(OnlineRenderer, request_gate)
    return None


def unread(model_type: str | None, lack: str | None) -> str | None:
    """Why the gate cannot be asked about a model's prompts where `install_harmony` lacks something; None if it can."""
    harmony = lack is not None and model_type == _MODEL_TYPE
    return f"this model's prompts are in the Harmony format, and {lack}" if harmony else None


def _ask_about_several(owner: Any, request_gate: RequestGate) -> None:
    render = original(getattr(owner, _MESSAGES))

    @functools.wraps(render)
    def _make_request_with_harmony(self: Any, *args: Any, **kwargs: Any) -> Any:
        messages, engine_inputs = render(self, *args, **kwargs)
        for engine_input in engine_inputs:
            request_gate.ask(engine_input)
        return messages, engine_inputs

    wrap(owner, _MESSAGES, _make_request_with_harmony)


def _ask_about_one(owner: Any, request_gate: RequestGate) -> None:
    render = original(getattr(owner, _RESPONSES))

    @functools.wraps(render)
    def render_responses_harmony_messages(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine_input = render(self, *args, **kwargs)
        request_gate.ask(engine_input)
        return engine_input

    wrap(owner, _RESPONSES, render_responses_harmony_messages)
