"""What a step costs at least: bytes over bandwidth, or operations over peak, whichever is longer.

A floor: no launch overhead, no communication between devices, and kernels that reach the published peaks. Public
profiles of dense 7-8B models lie 1.3 to 1.6 times above it (Vidur, github.com/microsoft/vidur). Per part of a step:

    linear      max(weights read ÷ bandwidth, 2 · parameters · tokens ÷ peak)
    attention   per decode max(its cache ÷ bandwidth, operations ÷ peak); per prefill likewise over all its pairs

Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball_engine.model import StepModel
from flyball_lab.sizing.devices import Compute
from flyball_lab.sizing.memory import layer_numbers
from flyball_lab.sizing.shape import Arithmetic, Heads, ModelShape
from flyball_lab.sizing.weights import Role, bytes_read, parts


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a step's parts. `weights` and `compute` overlap; attention comes on top."""

    weights: float
    compute: float
    attention: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return max(self.weights, self.compute) + self.attention

    @property
    def bound(self) -> str:
        """Which of the two the matrices wait for: `memory` or `compute`."""
        return "memory" if self.weights >= self.compute else "compute"


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """One device of `tensor_parallel` with its part of a model; `kv_bytes` of one cached number."""

    model: ModelShape
    compute: Compute
    tensor_parallel: int
    kv_bytes: int

    def decode(self, *, batch: int, context: int) -> Cost:
        """A step of `batch` requests that each have `context` tokens behind them."""
        linear = self.token_operations * batch + self.head_operations * batch
        return Cost(
            weights=self._weights(batch),
            compute=linear / self.peak,
            attention=batch * self.decode_attention(context),
        )

    def prefill(self, *, tokens: int, context: int = 0) -> Cost:
        """A step of one prompt's `tokens` after `context`: one token is sampled at its end."""
        linear = self.token_operations * tokens + self.head_operations
        pairs = sum(_pairs(layer.window, tokens, context) for layer in self.model.layers)
        reread = sum(min(context + tokens, layer.window or math.inf) for layer in self.model.layers) * self._layer_bytes
        attention = max(pairs * self._prefill_pair / self.compute.half, reread / self.compute.bandwidth)
        return Cost(weights=self._weights(tokens), compute=linear / self.peak, attention=attention)

    def step_model(self, *, context: int) -> StepModel:
        """The same as `flyball_engine.model` has it, decodes at `context`.

        t0 is the reading of all weights, c2 a token's operations, so that κ = t0 ÷ c2 and c1 = 0, and d a decode's
        attention by token of its context. A mixture of experts reads fewer weights in small steps; the head's
        operations and a window's prefill attention are left out.
        """
        reading = self._weights(math.inf)
        token = self.token_operations / self.peak
        full = sum(layer.window is None for layer in self.model.layers)
        return StepModel(
            t0=reading,
            h=0.0,
            c1=0.0,
            c2=token,
            beta=0.0,
            g=full * self._prefill_pair / self.compute.half,
            kappa=math.ceil(reading / token),
            d=self.decode_attention(context) / context,
        )

    def decode_attention(self, context: int) -> float:
        """Seconds for one decode to attend to `context` tokens, of a window no more than it holds."""
        seen = sum(min(context, layer.window or context) for layer in self.model.layers)
        return seen * max(self._layer_bytes / self.compute.bandwidth, self._decode_pair / self.compute.half)

    @property
    def token_operations(self) -> float:
        """Multiplications and additions of one token with the matrices of this device, its chosen experts included."""
        counted = (part for part in parts(self.model) if part.role not in (Role.LOOKUP, Role.HEAD))
        return 2 * sum(part.per_device(self.tensor_parallel) * part.share for part in counted)

    @property
    def head_operations(self) -> float:
        """Of one sampled token with the output head."""
        return 2 * self.model.hidden * self.model.vocabulary / self.tensor_parallel

    @property
    def peak(self) -> float:
        """Operations per second in the numbers that the packing multiplies."""
        fp8 = self.compute.fp8 if self.model.packing.arithmetic is Arithmetic.FP8 else None
        return fp8 or self.compute.half

    @property
    def _layer_bytes(self) -> int:
        return layer_numbers(self.model, self.tensor_parallel) * self.kv_bytes

    @property
    def _prefill_pair(self) -> float:
        """Operations of one layer for one query token and one key token: products with key and value of every head."""
        kind = self.model.attention
        dims = 2 * kind.dim if isinstance(kind, Heads) else kind.nope + kind.rope + kind.value
        return 2 * kind.query * dims / self.tensor_parallel

    @property
    def _decode_pair(self) -> float:
        """The same in a decode, where a latent is not unpacked: every head multiplies all of it."""
        kind = self.model.attention
        if isinstance(kind, Heads):
            return self._prefill_pair
        return 2 * kind.query * (2 * kind.rank + kind.rope) / self.tensor_parallel

    def _weights(self, tokens: float) -> float:
        return bytes_read(self.model, self.tensor_parallel, tokens) / self.compute.bandwidth


def _pairs(window: int | None, tokens: int, context: int) -> float:
    """Pairs of query and key that `tokens` after `context` form: p·(L + p/2), until the window is full."""
    growing = tokens if window is None else max(0, min(tokens, window - context))
    return growing * (context + growing / 2) + (tokens - growing) * (window or 0)
