"""Where a model comes from: its address, and the volume that it is downloaded to once. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field, PlainSerializer

from flyball_operator.api.base import Check, Model, exactly_one
from flyball_operator.api.containers import SecretKeyRef
from flyball_operator.api.quantities import ReadsAsBytes
from flyball_operator.api.rules import (
    SEGMENT,
    SUBDOMAIN,
    Matches,
    ObjectName,
    Refuses,
    Rule,
    is_pinned_image,
    matches,
    pinned_image,
)

DEFAULT_REVISION: Final = "main"
Revision = Annotated[
    str,
    Field(min_length=1, max_length=128),
    Matches(
        rf"{SEGMENT}(/{SEGMENT})*",
        "must be a branch, a tag or a commit, such as main or refs/pr/1: letters, digits, '.', '_', '-', '/'",
    ),
    Refuses(r".*(--|\.\.).*", "may not contain '--' or '..'"),
]
#: S3 user guide, "General purpose bucket naming rules".
_BUCKET: Final = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_OF_A_BUCKET: Final = rf"s3://{_BUCKET}(/.*)?"
_OCI: Final = "oci://"


class AccessMode(StrEnum):
    """Who may mount the volume: pods of all nodes, or of one."""

    MANY = "ReadWriteMany"
    ONCE = "ReadWriteOnce"


class ClaimDeletion(StrEnum):
    """What becomes of the claim when the service is deleted."""

    KEEP = "Keep"
    DELETE = "Delete"


class CacheClaim(Model):
    """A PersistentVolumeClaim to make."""

    size: Annotated[int | str, ReadsAsBytes(), PlainSerializer(str)]
    """How much it asks for, such as 100Gi. It may grow where the storage class can; a claim never shrinks."""
    storage_class_name: (
        Annotated[
            str,
            Field(max_length=253),
            Matches(rf"({SUBDOMAIN})?", "must be the name of a StorageClass: a-z, 0-9, '-' and '.'"),
        ]
        | None
    ) = None
    """StorageClass of the volume; empty for volumes that exist already. Default: the cluster's default class."""
    access_modes: Annotated[tuple[AccessMode, ...], Field(min_length=1, max_length=2)] = (AccessMode.MANY,)
    """Who may mount it: `ReadWriteMany` serves pods of all nodes, `ReadWriteOnce` those of one."""
    deletion: ClaimDeletion = ClaimDeletion.KEEP
    """What becomes of it when the service is deleted. `Keep`: it stays, and a service that is made anew finds it.
    `Delete`: it goes with the service."""


class ModelCache(Model):
    """A volume that holds the model, in a folder of its own for each model and revision."""

    checks: ClassVar[tuple[Check, ...]] = (exactly_one("claimName", "claim", noun="volume"),)

    claim_name: ObjectName | None = None
    """A PersistentVolumeClaim of the service's namespace that you made. It is never changed or deleted. One with
    ReadWriteOnce serves pods of one node."""
    claim: CacheClaim | None = None
    """A PersistentVolumeClaim that Flyball makes for this service, in place of `claimName`. Its name is that of the
    service with `-model` behind it."""
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
    revision: Revision = DEFAULT_REVISION
    """Branch, tag or commit to download. A branch is downloaded once: name a commit, and its change to another is a
    rollout."""
    keeps_compiled: bool = False
    """Whether what vLLM compiles (torch.compile, Triton) is kept on the volume, too, in a folder of this service. Later
    pods start sooner by that. The pods then write to the volume. Default: false."""


class S3Source(Model):
    """Where the bucket of an `s3://` uri is, and who asks for it."""

    endpoint: (
        Annotated[
            str,
            Field(max_length=253),
            Matches(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?", "must be http:// or https:// with a host, and a port"),
        ]
        | None
    ) = None
    """Address of the server, where that is not Amazon's. Objects are asked for by path then. Default: Amazon S3."""
    region: (
        Annotated[
            str, Field(max_length=63), Matches(r"[A-Za-z0-9-]+", "must be a region such as eu-west-1: a-z, 0-9, '-'")
        ]
        | None
    ) = None
    """Region of the bucket. Default: us-east-1, or what the variables of `spec.engine.env` say."""
    secret_name: ObjectName | None = None
    """Secret of the service's namespace with the keys `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and with
    `AWS_SESSION_TOKEN` for temporary credentials. Default: what the pod's service account or its node may do."""


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
                "!has(self.cache) || self.uri.startsWith('hf://') || self.uri.startsWith('s3://')",
                "is filled from Hugging Face, a mirror or S3: needs a uri that begins with hf:// or s3://",
                ".cache",
            ),
            lambda model: model.cache is None or model.uri.startswith(("hf://", "s3://")),
        ),
        Check(
            Rule(
                f"!self.uri.startsWith('s3://') || {matches('self.uri', _OF_A_BUCKET)}",
                "must be s3://<bucket>/<prefix>: a bucket's name has 3 to 63 characters, of a-z, 0-9, '-' and '.', and"
                " begins and ends with a letter or digit",
                ".uri",
            ),
            lambda model: not model.uri.startswith("s3://") or re.fullmatch(_OF_A_BUCKET, model.uri) is not None,
        ),
        Check(
            Rule(
                "has(self.cache) || !self.uri.startsWith('s3://')",
                "begins with s3://, which pods do not read: needs a cache that it is downloaded to",
                ".uri",
            ),
            lambda model: model.cache is not None or not model.uri.startswith("s3://"),
        ),
        Check(
            Rule(
                "!has(self.s3) || self.uri.startsWith('s3://')",
                "says where a bucket is: needs a uri that begins with s3://",
                ".s3",
            ),
            lambda model: model.s3 is None or model.uri.startswith("s3://"),
        ),
        Check(
            Rule(
                "!has(self.cache) || !self.uri.startsWith('s3://') || self.cache.revision == 'main'",
                "is of Hugging Face: a bucket has no revisions, so name another prefix in uri",
                ".cache.revision",
            ),
            lambda model: (
                model.cache is None or not model.uri.startswith("s3://") or model.cache.revision == DEFAULT_REVISION
            ),
        ),
        Check(
            Rule(
                f"!self.uri.startsWith('{_OCI}') || ({pinned_image(f'self.uri.substring({len(_OCI)})')})",
                "must be oci://<registry>/<repository>:<tag>, or with @sha256:<64 hex digits>, or with both: the"
                " repository in lower case, of at most 255 characters",
                ".uri",
            ),
            lambda model: model.image is None or is_pinned_image(model.image),
        ),
    )

    uri: Annotated[
        str,
        Field(min_length=1, max_length=512),
        Matches(
            # What the rules below refuse with better words passes here.
            rf"hf://({SEGMENT}/)?{SEGMENT}(@.*)?|s3://[^/]*(/{SEGMENT})*/?|pvc://{SUBDOMAIN}(/{SEGMENT})*/?"
            rf"|file://(/{SEGMENT})+/?|{_OCI}.*",
            "must be hf://<organisation>/<model>, s3://<bucket>/<prefix>, oci://<registry>/<repository>:<tag>,"
            " pvc://<claim>/<path> or file:///<path in the engine image>",
        ),
        Refuses(
            r"hf://[^@]*@.*",
            "may not hold a revision: write --revision=<branch, tag or commit> into spec.engine.args",
        ),
        Refuses(r"pvc://[^/]{254,}(/.*)?", "must name a claim of at most 253 characters"),
    ]
    """Where the weights are: `hf://org/name`, `s3://bucket/prefix`, `oci://registry/repository:tag`,
    `pvc://claim/path`, or `file:///path` in the image. `hf://` is downloaded at start, or once into `cache`. `s3://` is
    downloaded once into `cache`. `oci://` is an image that the node pulls and keeps, from Kubernetes 1.35. containerd
    mounts no OCI artifact.
    """
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
    """A volume that a Job downloads the model to, once. Pods read it there and need no network for it. Default: none,
    each pod downloads the model of an `hf://` uri."""
    s3: S3Source | None = None
    """Where the bucket of an `s3://` uri is. Default: at Amazon, as the Job's pod may read it."""

    @property
    def image(self) -> str | None:
        """Reference of the image that holds the model; None where none does."""
        return self.uri.removeprefix(_OCI) if self.uri.startswith(_OCI) else None

    @property
    def claim_to_make(self) -> CacheClaim | None:
        """What is asked for of a claim that Flyball makes; None where it makes none."""
        return self.cache.claim if self.cache is not None else None
