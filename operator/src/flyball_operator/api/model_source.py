"""Where a model comes from: its address, and the volume that it is downloaded to once. Pure."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from flyball_operator.api.base import Check, Model
from flyball_operator.api.containers import SecretKeyRef
from flyball_operator.api.rules import SEGMENT, SUBDOMAIN, Matches, ObjectName, Refuses, Rule


class ModelCache(Model):
    """A volume that holds the model, in a folder of its own for each model and revision. It is never deleted."""

    claim_name: ObjectName
    """PersistentVolumeClaim of the service's namespace, such as one with ReadWriteMany. One with ReadWriteOnce serves
    pods of one node."""
    path: (
        Annotated[
            str,
            Field(min_length=1, max_length=256),
            Matches(
                rf"{SEGMENT}(/{SEGMENT})*",
                "must be a relative path such as models/llm: names that begin with a letter or digit, '/' between them",
            ),
        ]
        | None
    ) = None
    """Folder of the volume. Default: its root."""
    revision: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Matches(
            rf"{SEGMENT}(/{SEGMENT})*",
            "must be a branch, a tag or a commit, such as main or refs/pr/1: letters, digits, '.', '_', '-', '/'",
        ),
        Refuses(r".*(--|\.\.).*", "may not contain '--' or '..'"),
    ] = "main"
    """Branch, tag or commit to download. A branch is downloaded once: name a commit, and its change to another is a
    rollout."""


class ModelSource(Model):
    """What is served."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.tokenSecretRef) || self.uri.startsWith('hf://')",
                "is only used to download from Hugging Face: needs a uri that begins with hf://",
                ".tokenSecretRef",
            ),
            lambda model: model.token_secret_ref is None or model.uri.startswith("hf://"),
        ),
        Check(
            Rule(
                "!has(self.cache) || self.uri.startsWith('hf://')",
                "is filled from Hugging Face or a mirror: needs a uri that begins with hf://",
                ".cache",
            ),
            lambda model: model.cache is None or model.uri.startswith("hf://"),
        ),
    )

    uri: Annotated[
        str,
        Field(min_length=1, max_length=512),
        Matches(
            # What the rules below refuse with better words passes here.
            rf"hf://({SEGMENT}/)?{SEGMENT}(@.*)?|pvc://{SUBDOMAIN}(/{SEGMENT})*/?|file://(/{SEGMENT})+/?",
            "must be hf://<organisation>/<model>, pvc://<claim>/<path> or file:///<path in the engine image>",
        ),
        Refuses(
            r"hf://[^@]*@.*",
            "may not hold a revision: write --revision=<branch, tag or commit> into spec.engine.args",
        ),
        Refuses(r"pvc://[^/]{254,}(/.*)?", "must name a claim of at most 253 characters"),
    ]
    """Where the weights are: `hf://org/name` (downloaded at start, or once into `cache`), `pvc://claim/path`,
    `file:///path` in the image."""
    served_name: (
        Annotated[
            str,
            Field(min_length=1, max_length=128),
            Matches(
                r"[A-Za-z0-9][A-Za-z0-9._:/-]*", "must begin with a letter or digit; then also '.', '_', ':', '/', '-'"
            ),
        ]
        | None
    ) = None
    """Name that clients ask for in the OpenAI API. Default: the name of this object."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret that holds the token for a gated model of Hugging Face. Default: no token."""
    cache: ModelCache | None = None
    """A volume that a Job downloads the model to, once. Pods read it there and start without a network. Default: none,
    each pod downloads the model of an `hf://` uri."""
