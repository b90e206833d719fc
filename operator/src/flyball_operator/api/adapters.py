"""LoRA adapters that pods answer beside the model, loaded and unloaded while they serve. Pure."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from flyball_engine.adapters import Adapter as ContractAdapter
from flyball_operator.api.base import Check, Model
from flyball_operator.api.model_source import DEFAULT_REVISION, Revision
from flyball_operator.api.rules import SEGMENT, Matches, Refuses, Rule

_HUB: Final = "hf://"


class Adapter(Model):
    """A LoRA adapter of the model."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                "is of Hugging Face: a folder has no revisions, so name another path in uri",
                ".revision",
            ),
            lambda adapter: adapter.revision is None or adapter.uri.startswith(_HUB),
        ),
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=63),
        Matches(
            r"[a-z0-9]([-._a-z0-9]*[a-z0-9])?",
            "must begin and end with a-z or 0-9, with '-', '.' and '_' between them, such as sql-v2",
        ),
    ]
    """Name that clients ask for as `model` in the OpenAI API, unique in the list and not that of the model."""
    uri: Annotated[
        str,
        Field(min_length=1, max_length=512),
        Matches(
            # What the rule below refuses with better words passes here.
            rf"hf://{SEGMENT}/{SEGMENT}(@.*)?|file://(/{SEGMENT})+/?",
            "must be hf://<organisation>/<adapter> or file:///<path in the pod>",
        ),
        Refuses(r"hf://[^@]*@.*", "may not hold a revision: write it into revision"),
    ]
    """Where it is: `hf://org/name`, which each pod downloads, or `file:///path` in the pod, such as on a volume of
    `spec.podTemplate`. Weights that change need another uri or revision: what is loaded is not read again."""
    revision: Revision | None = None
    """Branch, tag or commit of an `hf://` uri. Pods download a branch as it is when they start: name a commit. Default:
    main."""

    @property
    def contract(self) -> ContractAdapter:
        """The adapter as pods are told of it."""
        hub = self.uri.startswith(_HUB)
        return ContractAdapter(
            name=self.name, uri=self.uri, revision=(self.revision or DEFAULT_REVISION) if hub else ""
        )
