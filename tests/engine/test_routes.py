"""The routes of the installed vLLM: which of them generate, and where the gate is asked about Harmony's prompts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.vllm.routes import GENERATING_PATHS, UNASKED_PATHS, unasked
from flyball_lab.harness.launcher import environment

pytestmark = pytest.mark.engine

#: Routes that take a POST or a socket and make no tokens, by the word that says so.
MAKING_NONE = (
    "abort", "adapter", "cancel", "count_tokens", "derender", "detokenize", "elastic_ep", "ping", "render",
    "tokenize", "metrics",
)  # fmt: skip

#: The application that vLLM serves for a model that chats and hears, without a model: routes, and Harmony's prompts.
_ASK = """
import asyncio, importlib, json, logging, sys
from flyball_engine.vllm.arguments import build_parser
from flyball_engine.vllm.harmony import install_harmony
logging.disable(logging.WARNING)

def first(modules, name):
    for module in modules:
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            continue
        if found is not None:
            return found

build = first(("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server"), "build_app")
app = build(build_parser().parse_args(["--model=/m"]), ("generate", "transcription", "realtime"))
routes = {}
for route in app.routes:
    routes.setdefault(route.path, []).extend(sorted(getattr(route, "methods", None) or ["SOCKET"]))

class Keeper:
    lengths = []
    def ask(self, engine_input, cached=None):
        self.lengths.append(len(engine_input["prompt_token_ids"]))

def harmony():
    lack = install_harmony(Keeper())
    if lack is not None:
        return lack
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses import serving
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.renderers import online_renderer
    # The vocabulary is a file that it would fetch.
    for module in (online_renderer, serving):
        module.render_for_completion = lambda messages: [7] * (10 * len(messages))
    renderer = object.__new__(online_renderer.OnlineRenderer)
    renderer.__dict__.update(
        renderer=None, supports_browsing=False, supports_code_interpreter=False, reasoning_effort_map={}
    )
    chat = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hello"}])
    _, (first,) = renderer._make_request_with_harmony(chat)
    if hasattr(renderer, "render_responses_harmony_messages"):
        second = renderer.render_responses_harmony_messages([1, 2, 3, 4], cache_salt=None)
    else:
        route = object.__new__(serving.OpenAIServingResponses)
        route.parser, route._construct_input_messages_with_harmony = None, lambda *_: [1, 2, 3, 4]
        _, (second,) = route._make_request_with_harmony(ResponsesRequest(model="m", input="hello"), None)
    return Keeper.lengths, [len(each["prompt_token_ids"]) for each in (first, second)]

def below_the_root(root):
    from flyball_engine.vllm.requests import _route
    app, seen, answered = build(build_parser().parse_args(["--model=/m", f"--root-path={root}"]), ("generate",)), [], []

    async def send(message):
        answered.append(message.get("status"))
    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}
    for path in ("/version", f"{root}/version", f"{root}/no"):
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [], "http_version": "1.1", "scheme": "http"}
        asyncio.run(app(scope, receive, send))
        # FastAPI notes the root path in it before it asks any middleware.
        seen.append(_route(scope))
    return seen, [status for status in answered if status is not None]

said = {"routes": routes, "harmony": harmony(), "rooted": below_the_root("/models/chat")}
sys.stderr.write("\\n" + json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(vllm_python: str, plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    asked = subprocess.run(
        [vllm_python, "-c", _ASK],
        env=environment(tmp_path_factory.mktemp("home"), python_path=[plugin]),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answer: Mapping[str, Any] = json.loads(asked.stderr.splitlines()[-1])
    return answer


def test_every_route_that_generates_is_asked_about_or_named(said: Mapping[str, Any]) -> None:
    takes = {path for path, methods in said["routes"].items() if {"POST", "SOCKET"}.intersection(methods)}
    known = GENERATING_PATHS | UNASKED_PATHS
    new = {path for path in takes - known if not any(word in path for word in MAKING_NONE)}
    assert new == set(), "whoever knows what they make adds them to routes.py, or to MAKING_NONE"
    assert takes >= {"/v1/completions", "/v1/chat/completions"}


def test_the_routes_that_are_not_asked_about_are_named(said: Mapping[str, Any]) -> None:
    named = unasked(said["routes"])
    assert named is not None
    assert "/v1/audio/transcriptions, /v1/audio/translations" in named


def test_a_root_path_is_taken_off_as_vllm_s_own_routes_take_it(said: Mapping[str, Any]) -> None:
    seen, answered = said["rooted"]
    assert seen == ["/version", "/version", "/no"]
    assert answered == [200, 200, 404]


def test_the_gate_is_asked_about_harmony_s_prompts(said: Mapping[str, Any]) -> None:
    assert not isinstance(said["harmony"], str), said["harmony"]
    asked, rendered = said["harmony"]
    assert asked == rendered
    assert all(rendered)
