"""One HTTP request, bounded in time and size. The only importer of urllib in this package."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

#: Answers are models, setpoints and metrics; a scrape of vLLM's has some 100 KB.
MOST_BYTES: Final = 8 * 2**20


class NoAnswerError(Exception):
    """No connection, no answer in time, or none that is HTTP."""


def ask(
    url: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float,
) -> tuple[int, bytes]:
    """Status and body; a refusal is an answer, too. `seconds` bounds each wait. Raises NoAnswerError."""
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return response.status, response.read(MOST_BYTES)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read(MOST_BYTES)
    except urllib.error.URLError as error:
        raise NoAnswerError(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(str(error) or type(error).__name__) from error
