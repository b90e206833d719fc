"""Which routes the gate is asked about, and what is said of the others."""

from __future__ import annotations

from flyball_engine.vllm.harmony import unread
from flyball_engine.vllm.routes import GENERATING_PATHS, UNASKED_PATHS, unasked


def test_of_routes_that_are_all_asked_about_nothing_is_said() -> None:
    assert unasked([*GENERATING_PATHS, "/tokenize", "/v1/models"]) is None


def test_routes_that_generate_and_are_not_asked_about_are_named_where_they_are() -> None:
    assert unasked(["/v1/completions", "/v1/realtime", "/generative_scoring"]) == (
        "requests to /generative_scoring, /v1/realtime are never refused, however late"
    )


def test_no_route_is_both() -> None:
    assert GENERATING_PATHS.isdisjoint(UNASKED_PATHS)


def test_a_model_whose_prompts_pass_no_place_that_can_ask_has_no_gate() -> None:
    lack = "OnlineRenderer has no such method"
    assert unread("gpt_oss", lack) == f"this model's prompts are in the Harmony format, and {lack}"
    assert unread("gpt_oss", None) is None
    assert unread("llama", lack) is None
    assert unread(None, lack) is None
