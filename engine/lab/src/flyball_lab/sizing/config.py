"""Reads a model's config.json, as parsed, into its shape. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flyball_lab.sizing.errors import ConfigError, RequestError
from flyball_lab.sizing.families import FAMILIES, Family, layers
from flyball_lab.sizing.fields import Fields
from flyball_lab.sizing.packing import checkpoint, named, stated
from flyball_lab.sizing.shape import Checkpoint, Heads, Latent, ModelShape, Packing

AUTO: Final = "auto"
#: Bytes of one number, by what `dtype` may name.
DTYPES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "float32": 4}
#: No rotary scaling is near this; a larger number is a mistake.
MOST_STRETCH: Final = 1000
_TOWERS: Final = ("vision_config", "audio_config")


def read(config: object, *, dtype: str = AUTO, weights: str = AUTO) -> ModelShape:
    """The shape of the model that `config` describes, its language model where it has several parts.

    `dtype` as vLLM's flag: `auto` is the checkpoint's, and two bytes for one in float32. `weights` names a packing of
    `packing.NAMED`; `auto` is the config's own. Raises `ConfigError` and `RequestError`.
    """
    if not isinstance(config, dict):
        raise ConfigError("config.json", "is not an object", "a JSON object as Hugging Face models have it")
    name = _architecture(config)
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise ConfigError("text_config", f"is {text!r:.60}", "an object")
    family = _family(text.get("model_type", config.get("model_type")))
    fields = Fields(text, family.aliases, family.defaults)
    number = _dtype(dtype, text, config)
    packing, found, held_by = _packing(config, text, weights)
    hidden = fields.count("hidden_size")
    if fields.optional("word_embed_proj_dim") not in (None, hidden):
        raise ConfigError("word_embed_proj_dim", "differs from hidden_size", f"{hidden}, or none")
    return ModelShape(
        name=name,
        hidden=hidden,
        width=_width(fields, hidden),
        gated=family.gated,
        attention=_latent(fields) if family.latent else _heads(fields, family, hidden),
        layers=layers(fields, family),
        vocabulary=fields.count("vocab_size"),
        tied=Fields(config | text, {}, {}).flag("tie_word_embeddings", default=family.tied),
        positions=0 if family.learned is None else fields.count("max_position_embeddings") + family.learned,
        longest=_longest(fields),
        dtype=number,
        number_bytes=DTYPES[number],
        packing=packing,
        stated=found,
        checkpoint=held_by,
        left_out=tuple(tower for tower in _TOWERS if tower in config),
    )


def _architecture(config: Mapping[str, Any]) -> str:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
        raise ConfigError("architectures", "names no architecture", 'a list such as ["LlamaForCausalLM"]')
    return architectures[0]


def _family(model_type: object) -> Family:
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ConfigError("model_type", f"is {model_type!r:.60}, which is not sized", ", ".join(FAMILIES))
    return FAMILIES[model_type]


def _dtype(asked: str, text: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    if asked != AUTO:
        if asked not in DTYPES:
            raise RequestError("dtype", f"is {asked!r:.60}", ", ".join((AUTO, *DTYPES)))
        return asked
    sources = (text.get("dtype"), text.get("torch_dtype"), config.get("dtype"), config.get("torch_dtype"))
    found = next((source for source in sources if source is not None), "float32")
    if not isinstance(found, str) or found not in DTYPES:
        raise ConfigError("torch_dtype", f"is {found!r:.60}", ", ".join(DTYPES) + ", or --dtype to state it")
    return "bfloat16" if found == "float32" else found


def _packing(config: Mapping[str, Any], text: Mapping[str, Any], weights: str) -> tuple[Packing, str, Checkpoint]:
    """The packing to size, the name of what the config states, and which checkpoint holds it."""
    wanted = None if weights == AUTO else named(weights)
    try:
        found = _stated(config, text)
    except ConfigError:
        # A packing that is not sized may be named instead: then it is that of the config.
        if wanted is None:
            raise
        return wanted, wanted.name, Checkpoint.STATED
    if wanted is None:
        return found, found.name, Checkpoint.STATED
    return wanted, found.name, checkpoint(wanted, found)


def _stated(config: Mapping[str, Any], text: Mapping[str, Any]) -> Packing:
    found = config.get("quantization_config", text.get("quantization_config"))
    if found is not None and not isinstance(found, dict):
        raise ConfigError("quantization_config", f"is {found!r:.60}", "an object")
    return stated(found)


def _width(fields: Fields, hidden: int) -> int:
    """Of the dense feed-forward part; four times the hidden size where GPT-2-shaped configs leave it out."""
    if fields.name("intermediate_size") == "n_inner":
        return fields.optional("intermediate_size") or 4 * hidden
    return fields.count("intermediate_size")


def _heads(fields: Fields, family: Family, hidden: int) -> Heads:
    query = fields.count("num_attention_heads")
    dim = fields.optional("head_dim")
    if dim is None and hidden % query:
        name = fields.name("num_attention_heads")
        raise ConfigError(name, f"is {query}, of hidden size {hidden}", "a divisor of it, or head_dim given")
    kv = fields.optional("num_key_value_heads", most=query)
    if family.multi_query is not None:
        kv = 1 if fields.flag("multi_query", default=family.multi_query) else query
    if query % (kv or query):
        raise ConfigError("num_key_value_heads", f"is {kv}", f"a divisor of the {query} query heads")
    return Heads(query=query, kv=kv or query, dim=dim or hidden // query)


def _latent(fields: Fields) -> Latent:
    return Latent(
        query=fields.count("num_attention_heads"),
        query_rank=fields.optional("q_lora_rank"),
        rank=fields.count("kv_lora_rank"),
        rope=fields.count("qk_rope_head_dim"),
        nope=fields.count("qk_nope_head_dim"),
        value=fields.count("v_head_dim"),
    )


def _longest(fields: Fields) -> int:
    """The longest context in tokens; YaRN stretches the original one by a factor."""
    longest = fields.count("max_position_embeddings")
    scaling = Fields(fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or {}, {}, {})
    if "yarn" not in (scaling.raw("rope_type"), scaling.raw("type")):
        return longest
    original, factor = scaling.optional("original_max_position_embeddings"), scaling.raw("factor")
    if original is None or factor is None:
        return longest
    if not isinstance(factor, int | float) or not 1 <= factor <= MOST_STRETCH:
        raise ConfigError("rope_scaling.factor", f"is {factor!r:.60}", f"a number from 1 to {MOST_STRETCH}")
    return max(longest, int(original * factor))
