"""The OpenAI API that is exercised: what it serves, asked before the first point; and how many requests it runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from flyball_lab.benchmark.arguments import COMPLETIONS
from flyball_lab.benchmark.errors import EndpointError, OptionError
from flyball_lab.benchmark.measurements import EngineSample
from flyball_lab.benchmark.web import NoAnswerError, ask

ASK_SECONDS: Final = 10.0
#: A first answer may wait for what runs already.
ANSWER_SECONDS: Final = 120.0
SAMPLE_SECONDS: Final = 2.0
_GAUGE: Final = r"^vllm:num_requests_{}(?:{{[^}}]*}})? ([0-9.eE+-]+)$"


@dataclass(frozen=True)
class Served:
    """What the endpoint said.

    `salted`: it takes vLLM's `cache_salt`, so that no point is answered from another's cache.
    """

    model: str
    root: str | None
    salted: bool


class Endpoint:
    """One endpoint. `api_key` is sent as OpenAI's clients do."""

    def __init__(self, url: str, *, api_key: str | None) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def serving(self, model: str | None) -> Served:
        """The model to exercise, which has answered once. Raises EndpointError; OptionError for a model not served."""
        listed = self._models()
        if model is None:
            if len(listed) != 1:
                raise OptionError("--model", f"is missing, and {self.url} serves {len(listed)} models", _names(listed))
            model = next(iter(listed))
        if model not in listed:
            raise OptionError("--model", f"{model!r} is not served by {self.url}", _names(listed))
        salted = self._answers(model, {"cache_salt": "flyball"}) is None
        if not salted and (refusal := self._answers(model, {})) is not None:
            raise EndpointError(f"--url: {self.url}{COMPLETIONS} does not answer for model {model!r}: {refusal}")
        return Served(model=model, root=listed[model], salted=salted)

    def sample(self) -> EngineSample | None:
        """What vLLM's own metrics say of the load; they do not name the slots. None where there are none."""
        try:
            status, body = ask(f"{self.url}/metrics", headers=self._headers, seconds=SAMPLE_SECONDS)
        except NoAnswerError:
            return None
        running, waiting = (_sum(body.decode(errors="replace"), name) for name in ("running", "waiting"))
        if status != 200 or running is None:
            return None
        return EngineSample(running=running, waiting=waiting or 0, slots=None)

    def _models(self) -> dict[str, str | None]:
        """Served models and where each comes from, if told."""
        try:
            status, body = ask(f"{self.url}/v1/models", headers=self._headers, seconds=ASK_SECONDS)
        except NoAnswerError as error:
            raise EndpointError(f"--url: {self.url} does not answer: {error}") from error
        if status in {401, 403}:
            raise EndpointError(f"--url: {self.url} refuses (HTTP {status}); its key is taken from OPENAI_API_KEY")
        try:
            return {str(one["id"]): one.get("root") for one in json.loads(body)["data"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EndpointError(f"--url: {self.url}/v1/models is no list of models (HTTP {status})") from error

    def _answers(self, model: str, more: dict[str, Any]) -> str | None:
        """None if one token comes back; else why not."""
        body = json.dumps({"model": model, "prompt": "Flyball", "max_tokens": 1, "temperature": 0, **more}).encode()
        headers = self._headers | {"Content-Type": "application/json"}
        try:
            status, answer = ask(
                f"{self.url}{COMPLETIONS}", method="POST", body=body, headers=headers, seconds=ANSWER_SECONDS
            )
        except NoAnswerError as error:
            return str(error)
        return None if status == 200 else f"HTTP {status}: {answer[:300].decode(errors='replace')}"


def _names(models: dict[str, str | None]) -> str:
    return ", ".join(models) or "none, the endpoint serves no model"


def _sum(text: str, name: str) -> int | None:
    """Over engines; None without a sample."""
    found = re.findall(_GAUGE.format(name), text, flags=re.MULTILINE)
    return round(sum(map(float, found))) if found else None
