"""Requests for vLLM's scheduler, and what a model would have made of its steps, where no model is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm import SamplingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request


def request_of(name: str, prompt: list[int], *, output: int, arrival: float, **fields: Any) -> Request:
    """A request for so many tokens, neither more nor fewer."""
    params = SamplingParams(max_tokens=output, ignore_eos=True)
    params.update_from_generation_config({}, 1)
    return Request(name, prompt, params, None, arrival_time=arrival, **fields)


def output_of(names: list[str], sampled: Sequence[list[int]]) -> ModelRunnerOutput:
    """The tokens of each request of a step, in the step's order."""
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=list(sampled),
    )
