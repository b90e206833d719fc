"""No request kills the engine: every parameter of the OpenAI API, under the CPU engine image's environment."""

from __future__ import annotations

import httpx
import pytest

from flyball_lab.harness.vllm_server import MODEL_NAME
from support.installed import NEWEST, Installed
from support.parameters import ENDPOINTS, REFUSED, bodies
from support.served import Served

pytestmark = pytest.mark.engine

PATHS = tuple(ENDPOINTS)


def answered(served: Served, path: str, body: dict[str, object]) -> httpx.Response:
    """What the server answers, all of it."""
    return httpx.post(f"{served.server.url}{path}", json={"model": MODEL_NAME} | body, timeout=120, trust_env=False)


@pytest.mark.parametrize("path", PATHS)
def test_every_parameter_that_is_served_is_sent(path: str, served: Served, installed: Installed) -> None:
    if installed.support.vllm != NEWEST:
        pytest.skip(f"the parameters are those of vLLM {NEWEST}, this is {installed.support.vllm}")
    schema, sent, _ = ENDPOINTS[path]
    said = httpx.get(f"{served.server.url}/openapi.json", timeout=60, trust_env=False).json()
    known = said["components"]["schemas"][schema]["properties"]
    assert sorted(set(known) - set(sent)) == [], "a parameter is new: send it, in tests/support/parameters.py"
    assert sorted(set(sent) - set(known)) == []


@pytest.mark.parametrize("path", PATHS)
def test_an_engine_without_a_compiler_serves_on_whatever_is_asked(
    path: str, served: Served, installed: Installed
) -> None:
    core, refused = served.server.engine_core(), []
    for name, body in bodies(path):
        answer = answered(served, path, body)
        assert answer.status_code < 500, f"{name}: {body} → {answer.text}\n{served.server.tail(80)}"
        if answer.status_code != 200:
            refused.append((name, answer.text[:200]))
        plain = answered(served, "/v1/completions", {"prompt": "hello", "max_tokens": 1})
        assert plain.status_code == 200, f"after {name}: {body} → {plain.text}\n{served.server.tail(80)}"
    assert served.server.engine_core() == core
    if installed.support.vllm == NEWEST:
        assert {name for name, _ in refused} == REFUSED & set(ENDPOINTS[path][1]), refused
