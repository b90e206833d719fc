"""Speculative decoding, as a user states it: `spec.batching.speculative`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from flyball_engine.contract import MOST_DRAFTS
from flyball_operator.api.base import Check, Model
from flyball_operator.api.rules import Matches, Refuses, Rule


class Drafter(StrEnum):
    """What drafts tokens for the model to check, by vLLM's names."""

    NGRAM = "ngram"
    """Earlier parts of prompt and answer that the last tokens are found in."""
    SUFFIX = "suffix"
    """The same with suffix trees of earlier answers, too; vLLM needs arctic-inference for it."""
    MTP = "mtp"
    """The model's own layers for several tokens."""
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MEDUSA = "medusa"
    DRAFT_MODEL = "draft_model"
    """Another, smaller model."""


#: Those that are no part of the model, and need one of their own.
_NEEDS_MODEL: Final = (Drafter.EAGLE, Drafter.EAGLE3, Drafter.MEDUSA, Drafter.DRAFT_MODEL)
_BY_ITSELF: Final = (Drafter.NGRAM, Drafter.SUFFIX)


def _any_of(drafters: Sequence[Drafter]) -> str:
    return f"self.method in [{', '.join(repr(one.value) for one in drafters)}]"


class Speculative(Model):
    """Speculative decoding: several tokens are drafted for a request, and checked in one step."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                f"!({_any_of(_NEEDS_MODEL)}) || has(self.model)",
                "is required beside the methods eagle, eagle3, medusa and draft_model: the model that drafts",
                ".model",
            ),
            lambda it: it.method not in _NEEDS_MODEL or it.model is not None,
        ),
        Check(
            Rule(
                f"!({_any_of(_BY_ITSELF)}) || !has(self.model)",
                "may not stand beside the methods ngram and suffix, which draft without a model. Remove it",
                ".model",
            ),
            lambda it: it.method not in _BY_ITSELF or it.model is None,
        ),
    )

    method: Drafter
    """What drafts: ngram, suffix, mtp, eagle, eagle3, medusa or draft_model, as in vLLM's --speculative-config."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFTS)]
    """Most tokens that a step drafts for a request. The law chooses from 0 to this, live, where the engine is governed
    and spec.parallelism.data and pipeline are 1. It chooses fewer for a larger batch, because each draft makes its
    steps longer."""
    model: (
        Annotated[
            str,
            Field(min_length=1, max_length=512),
            Matches(r"\S+", "must not hold spaces"),
            Refuses(
                r"\S*://\S*",
                "must be a repository of Hugging Face such as org/name, or a folder such as /models/draft: vLLM reads"
                " no scheme:// here. Write org/name for hf://org/name, and /models/draft for file:///models/draft;"
                " what is elsewhere, mount by spec.podTemplate",
            ),
        ]
        | None
    ) = None
    """The model that drafts: a folder of the engine's container such as /models/draft, or a repository of Hugging Face
    such as org/name, without hf://. Beside spec.model.cache or an oci:// model only a folder, because those pods
    download nothing. Default: none."""
