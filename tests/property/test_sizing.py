"""For any model of sensible shape: sums add up, more memory never holds less, and the two step models agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_lab.sizing.config import read
from flyball_lab.sizing.devices import GIB, GPUS, plain
from flyball_lab.sizing.errors import SizingError
from flyball_lab.sizing.families import FAMILIES
from flyball_lab.sizing.packing import NAMED
from flyball_lab.sizing.presets import PRESETS
from flyball_lab.sizing.request import SizingRequest
from flyball_lab.sizing.roofline import Roofline
from flyball_lab.sizing.size import size
from support.model_configs import PUBLISHED, Config, llama

DEVICES = st.sampled_from(sorted(GPUS)).map(GPUS.__getitem__)
PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    kv = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv * draw(st.sampled_from([1, 2, 4, 8]))
    dim = draw(st.sampled_from([64, 128]))
    return llama(
        heads * dim,
        draw(st.integers(1, 64)) * 128,
        draw(st.integers(1, 80)),
        heads,
        kv,
        vocab_size=draw(st.integers(1000, 260_000)),
        max_position_embeddings=131_072,
        tie_word_embeddings=draw(st.booleans()),
    )


@given(configs(), DEVICES, st.sampled_from(sorted(PRESETS)), st.integers(1, 131_072), st.sampled_from(sorted(NAMED)))
def test_what_is_sized_fits(config: Config, device: Any, preset: str, context: int, weights: str) -> None:
    try:
        found = size(config, device, SizingRequest(preset=preset, context=context, weights=weights))
    except SizingError:
        return
    memory = found.memory
    assert memory.weights + memory.activations + memory.reserve + memory.cache == memory.budget <= memory.total
    assert 1 <= found.ceilings.seqs <= found.concurrency
    assert found.kv_tokens * found.kv_bytes_per_token <= memory.cache


@given(configs(), st.integers(1, 512), st.integers(1, 512), st.integers(1, 131_072))
def test_more_memory_never_holds_less(config: Config, less: int, more: int, context: int) -> None:
    held = []
    for gibibytes in sorted((less, more)):
        try:
            found = size(config, plain(gibibytes * GIB), SizingRequest(context=context))
        except SizingError:
            held.append((0, 0.0))
        else:
            held.append((found.ceilings.seqs, found.memory.cache + found.memory.activations))
    assert held == sorted(held)


@given(configs(), DEVICES, st.integers(1, 2048), st.integers(1, 32_768), st.integers(1, 32_768))
def test_the_step_model_is_the_roofline_of_a_dense_model(
    config: Config, device: Any, batch: int, context: int, tokens: int
) -> None:
    here = Roofline(model=read(config), compute=device.compute, tensor_parallel=1, kv_bytes=2)
    model = here.step_model(context=context)
    # Within the head's operations, which the model leaves out, and the rounding of κ.
    head = here.head_operations / here.peak
    decode = here.decode(batch=batch, context=context).seconds
    assert decode == pytest.approx(
        model.seconds(decodes=batch, kv_tokens=batch * context), abs=batch * head + 2 * model.c2
    )
    prefill = here.prefill(tokens=tokens).seconds
    reread = tokens * here.decode_attention(1)
    assert prefill == pytest.approx(model.seconds(decodes=0, prefill_tokens=tokens), abs=head + 2 * model.c2 + reread)


def answered(config: object) -> None:
    """A size, or an error in words."""
    try:
        assert size(config, plain(4096 * GIB), SizingRequest()).parameters > 0
    except SizingError as error:
        complete = bool(error.field and error.problem and error.accepted)
    else:
        complete = True
    assert complete


@given(st.sampled_from(sorted(PUBLISHED)), st.data())
def test_any_field_may_be_wrong_and_is_answered(name: str, data: st.DataObject) -> None:
    config = dict(PUBLISHED[name][0])
    text = dict(config.get("text_config", config))
    field = data.draw(st.sampled_from(sorted({*text, "text_config", "quantization_config", "rope_scaling"})))
    text[field] = data.draw(PLAIN_JSON | st.sampled_from(sorted(FAMILIES)))
    answered(config | {"text_config": text} if "text_config" in config else text)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("bits", "group_size", "config_groups"), PLAIN_JSON)),
    st.sampled_from(["awq", "gptq", "fp8", "mxfp4", "compressed-tensors", None]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("factor", "original_max_position_embeddings"), PLAIN_JSON)),
)
def test_any_packing_and_stretch_is_answered(quantization: Config, method: str | None, scaling: Config) -> None:
    quantization["quant_method"], scaling["type"] = method, "yarn"
    answered(llama(4096, 11008, 32, 32, 8, quantization_config=quantization, rope_scaling=scaling))


@given(PLAIN_JSON)
def test_any_json_is_answered(document: object) -> None:
    answered(document)
