"""Which of vLLM's routes generate tokens, and which of these the gate is asked about. Pure.

`tests/engine/test_routes.py` holds both lists against the routes of the installed vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: The route of Anthropic's form; that of Cohere's has an error of its own, and all others are of OpenAI's.
MESSAGES_PATH: Final = "/v1/messages"
COHERE_PATH: Final = "/cohere/v2/chat"
#: Routes that the gate is asked about, and whose refusals and early departures are counted.
GENERATING_PATHS: Final = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/responses",
        MESSAGES_PATH,
        COHERE_PATH,
        "/inference/v1/generate",
        "/invocations",
    }
)
#: Routes that generate, too, and that it is not asked about. Scores and decisions are prompts for one token each, many
#: of a request, which mostly pass no place where it could be asked. Of speech it would not know the work: most of it is
#: an encoder's, or it comes over a socket in pieces.
UNASKED_PATHS: Final = frozenset(
    {
        "/generative_scoring",
        "/v1/systemone",
        "/v1/decisions",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/realtime",
    }
)


def unasked(paths: Iterable[str]) -> str | None:
    """What is to be said of an application with these routes; None if the gate is asked about all that generate."""
    found = sorted(UNASKED_PATHS.intersection(paths))
    return f"requests to {', '.join(found)} are never refused, however late" if found else None
