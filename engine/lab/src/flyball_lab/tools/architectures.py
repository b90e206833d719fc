"""Which model classes of Transformers the vLLM at hand serves: `python -m flyball_lab.tools.architectures`.

Run by the Python of the vLLM environment; no model is made. Prints a line of JSON: by kind of model, how many classes
Transformers has, and how many vLLM serves in which way. The names of those it does not serve go to standard error.

vLLM serves a class of its registry itself, also as another task of the same model. Any other it serves by Transformers'
code, if that lets vLLM put its own attention in: some classes say so, of others vLLM reads the source.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

#: How vLLM serves a class, the best way first.
OWN, BACKEND, UNSAID, NONE = "vLLM's own class", "Transformers' class", "Transformers' class, unsaid", "not served"
#: What Transformers has.
THERE: Final = "in Transformers"


def way(cls: Any, name: str, registered: Collection[str], others: Callable[[str], Iterable[str]]) -> str:
    """How vLLM serves a class of Transformers. `others`: names under which vLLM may know the same model."""
    if name in registered or any(other in registered for other in others(name)):
        return OWN
    if cls.is_backend_compatible():
        return BACKEND
    return UNSAID if cls._can_set_attn_implementation() else NONE


def counted(ways: Mapping[str, str]) -> dict[str, int]:
    """How many classes there are, and how many are served in each way."""
    found = list(ways.values())
    return {THERE: len(found)} | {one: found.count(one) for one in (OWN, BACKEND, UNSAID, NONE)}


def main() -> None:
    """Print them."""
    import transformers  # noqa: PLC0415 – takes long, and tests need it not
    from transformers.models.auto import modeling_auto as auto  # noqa: PLC0415
    from vllm.config.model import iter_architecture_defaults, try_match_architecture_defaults  # noqa: PLC0415
    from vllm.model_executor.models.registry import ModelRegistry  # noqa: PLC0415

    def others(name: str) -> Iterable[str]:
        if (match := try_match_architecture_defaults(name, runner_type="pooling")) is not None:
            yield from (name.replace(match[0], suffix) for suffix, _ in iter_architecture_defaults())

    types = {*auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES, *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES}
    kinds = {
        "encoders of text, for vectors": [auto.MODEL_MAPPING_NAMES.get(one) for one in sorted(types)],
        "classes for scores": list(auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values()),
        "classes that generate text": list(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()),
    }
    registered, figures = ModelRegistry.get_supported_archs(), {}
    for kind, classes in kinds.items():
        names = {one if isinstance(one, str) else one[0] for one in classes if one}
        ways = {name: way(getattr(transformers, name), name, registered, others) for name in sorted(names)}
        for unsure in (UNSAID, NONE):
            listed = ", ".join(name for name, found in ways.items() if found == unsure)
            print(f"{kind}, {unsure}: {listed}", file=sys.stderr, flush=True)
        figures[kind] = counted(ways)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
