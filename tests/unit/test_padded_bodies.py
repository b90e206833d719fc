"""What the padded engine accepts of OpenAI's bodies, and what it says of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from flyball_engine.openai.app import told
from flyball_engine.padded.bodies import PaddedChat, PaddedCompletion
from support.padded import Counter

HELLO = [{"role": "user", "content": "1 2"}]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": "1", "max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"prompt": "1", "max_tokens": "many"}, "max_tokens: Input should be a valid integer"),
        ({"prompt": "1", "n": 0}, "n: Input should be greater than or equal to 1"),
        ({"prompt": "1", "n": 65}, "n: Input should be less than or equal to 64"),
        ({"prompt": {"text": "1"}}, "prompt.str: Input should be a valid string"),
        ({"prompt": [1, "x"]}, "prompt.list[int].1: Input should be a valid integer"),
        ({"prompt": "1", "temperature": -0.1}, "temperature: Input should be greater than or equal to 0"),
        ({"prompt": "1", "temperature": 2.1}, "temperature: Input should be less than or equal to 2"),
        ({"prompt": "1", "temperature": "hot"}, "temperature: Input should be a valid number"),
        ({"prompt": "1", "top_p": 0}, "top_p: Input should be greater than 0"),
        ({"prompt": "1", "top_p": 1.5}, "top_p: Input should be less than or equal to 1"),
        ({"prompt": "1", "seed": 2**63}, "seed: Input should be less than"),
        ({"prompt": "1", "stop": ["\n"]}, "stop: not supported by this engine, accepted: "),
        ({"prompt": "1", "logprobs": 0}, "logprobs: not supported"),
        ({"prompt": "1", "top_k": 20, "min_p": 0.1}, "min_p, top_k: not supported"),
        ({"prompt": "1", "presence_penalty": 0.5}, "presence_penalty: not supported"),
        ({"prompt": "1", "logit_bias": {"5": 1}}, "logit_bias: not supported"),
        ({"prompt": "1", "echo": True}, "echo: not supported"),
        ({"prompt": "1", "response_format": {"type": "json_object"}}, "response_format: not supported"),
        ({"prompt": "1", "warp": 9}, "warp: not supported"),
        ({"prompt": "1", "stream": True, "return_token_ids": True}, "return_token_ids: accepted without stream"),
        ([], "body: Input should be"),
    ],
)
def test_a_wrong_completion_is_told_what_is_wrong(body: Any, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PaddedCompletion.model_validate_json(json.dumps(body))
    assert says in told(caught.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "messages: Field required"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": "hello"}, "messages: Input should be a valid array"),
        ({"messages": HELLO, "prompt": "1"}, "prompt: not supported"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools: not supported"),
        ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens: Input should be greater"),
    ],
)
def test_a_wrong_chat_is_told_what_is_wrong(body: Any, says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PaddedChat.model_validate_json(json.dumps(body))
    assert says in told(caught.value)


@pytest.mark.parametrize("content", [None, 5, [], [{"type": "image_url", "image_url": {}}], ["text"]])
def test_messages_are_text(content: object) -> None:
    chat = PaddedChat.model_validate({"messages": [{"role": "user", "content": content}]})
    with pytest.raises(ValueError, match="accepted as content: a text, or parts of type text"):
        chat.encoded(Counter())


def test_messages_may_be_in_parts() -> None:
    parts = [{"type": "text", "text": "1 2"}, {"type": "text", "text": " 3"}]
    chat = PaddedChat.model_validate({"messages": [{"role": "user", "content": parts}]})
    assert chat.encoded(Counter()) == [[1, 2, 3]]


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    body: dict[str, Any] = {
        "prompt": "1",
        "stop": None,
        "frequency_penalty": 0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "top_k": -1,
        "echo": False,
        "user": "somebody",
    }
    assert PaddedCompletion.model_validate_json(json.dumps(body)).output_tokens == 16


def test_answers_to_one_prompt_have_seeds_of_their_own() -> None:
    body = PaddedCompletion(prompt="1", seed=7, n=2, temperature=0.5, top_p=0.9)
    assert [body.sampling(index).seed for index in range(2)] == [7, 8]
    assert not body.sampling(0).is_greedy
    assert PaddedCompletion(prompt="1", temperature=0).sampling(0).is_greedy


def test_a_chat_without_a_length_gets_what_the_context_leaves() -> None:
    chat = PaddedChat.model_validate({"messages": HELLO})
    assert chat.most(100) == 100
    assert chat.model_copy(update={"max_tokens": 5}).most(100) == 5
