"""An encoder under vLLM's pooling runner: one of the engines of `hack/bench padded`.

`python -m flyball_lab.tools.vllm_encoder MODEL --budget TOKENS --model-impl vllm|transformers`, in vLLM's environment.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from itertools import count

from vllm import PoolingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM

from flyball_lab.benches.padded.encoder import Vector, own_output, serve


class VllmEncoder:
    """vLLM without its API server. It pads nothing: what it computes are the prompts."""

    def __init__(self, arguments: AsyncEngineArgs) -> None:
        self.computed = 0
        self._engine = AsyncLLM.from_engine_args(arguments)
        self._numbers = count()

    async def embed(self, prompt: Sequence[int]) -> Vector:
        """The normalised state of the prompt's first token."""
        inputs, params = tokens_input(list(prompt)), PoolingParams(task="embed")
        async for output in self._engine.encode(inputs, params, str(next(self._numbers))):
            vector: list[float] = output.outputs.data.tolist()
        self.computed += len(prompt)
        return vector


def arguments_of(model: str, *, budget: int, model_impl: str) -> AsyncEngineArgs:
    """As the CPU engine image runs its model, but for the runner."""
    return AsyncEngineArgs(
        model=model,
        model_impl=model_impl,
        runner="pooling",
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_num_batched_tokens=budget,
        kv_cache_memory_bytes=512 * 2**20,
        disable_log_stats=True,
    )


async def main(arguments: AsyncEngineArgs) -> None:
    """Serve until there is no more input."""
    output = own_output()
    await serve(VllmEncoder(arguments), output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--budget", type=int, required=True)
    parser.add_argument("--model-impl", required=True)
    parsed = parser.parse_args()
    asyncio.run(main(arguments_of(parsed.model, budget=parsed.budget, model_impl=parsed.model_impl)))
