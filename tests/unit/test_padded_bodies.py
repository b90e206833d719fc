"""What the padded engine accepts of OpenAI's bodies; what it refuses is in `support.wrong_inputs`."""

from __future__ import annotations

import json
from typing import Any

from flyball_lab.harness.padded import Counter
from flyball_lab.padded.bodies import PaddedChat, PaddedCompletion

HELLO = [{"role": "user", "content": "1 2"}]


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
