"""Volumes of the pods and where containers mount them, under Kubernetes' own names.

An allow-list: what the Pod Security level `restricted` takes. A `hostPath` is declared so that it can be refused with
words. What only the kubelet can know (whether a Secret is there, where a `subPath` leads) is left to it. Pure.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, PlainSerializer
from typing_extensions import TypedDict

from flyball_operator.api.base import Check, Model, exactly_one
from flyball_operator.api.quantities import ReadsAsQuantity
from flyball_operator.api.rules import (
    LABEL,
    QUALIFIED,
    SUBDOMAIN,
    MapKeyed,
    Matches,
    ObjectName,
    Refuses,
    Rule,
)

#: Volumes of Flyball's own; no volume of a user's may have these names.
OWN_VOLUMES: Final = ("flyball", "flyball-keys", "flyball-tls", "model", "shm", "tmp")

LabelName = Annotated[
    str, Field(min_length=1, max_length=63), Matches(LABEL, "must be a DNS label: a-z, 0-9 and '-', at most 63")
]
DataKey = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Matches(r"[-._a-zA-Z0-9]+", "must be a key of a Secret or ConfigMap: letters, digits, '-', '_', '.'"),
]
RelativePath = Annotated[
    str,
    Field(min_length=1, max_length=253),
    Refuses(r"/.*|\.\..*|.*/\.\.(/.*)?", "must be a relative path without '..'"),
]
MountPath = Annotated[
    str,
    Field(min_length=1, max_length=1024),
    Matches(r"(/[^/:]+)+", "must be an absolute path without ':' and without '/' at the end, such as /cache"),
    Refuses(r".*/\.\.?(/.*)?", "must be a path without '.' and '..'"),
]
#: The apostrophe is spelt by its number: patterns stand in quotes.
_METADATA: Final = rf"metadata\.(name|namespace|uid|(labels|annotations)\[\x27({SUBDOMAIN}/)?{QUALIFIED}\x27\])"
MetadataPath = Annotated[
    str,
    Field(min_length=1, max_length=200),
    Matches(
        _METADATA,
        "must be metadata.name, metadata.namespace, metadata.uid, metadata.labels['key'] or"
        " metadata.annotations['key']",
    ),
]
FieldPath = Annotated[
    str,
    Field(min_length=1, max_length=200),
    Matches(
        _METADATA + r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)",
        "must be metadata.name, metadata.namespace, metadata.uid, metadata.labels['key'], metadata.annotations['key'],"
        " spec.nodeName, spec.serviceAccountName, status.hostIP, status.hostIPs, status.podIP or status.podIPs",
    ),
]
FileMode = Annotated[int, Field(ge=0, le=0o777)]


class LocalObjectReference(Model):
    """Name of an object in the service's namespace."""

    name: ObjectName
    """Name of the object."""


class FieldRef(Model):
    """A field of the pod."""

    field_path: FieldPath
    """Path of the field, such as `metadata.name`."""


class KeyToPath(Model):
    """A key as a file."""

    key: DataKey
    """Key to show."""
    path: RelativePath
    """Name of the file, relative to the volume's root."""
    mode: FileMode | None = None
    """Permissions of the file, 0 to 511 (octal 777). Default: those of the volume."""


#: Bounds here are small, because the API server estimates the cost of rules by them, level by level.
Items = Annotated[tuple[KeyToPath, ...], Field(max_length=16)]


class ConfigMapSource(Model):
    """Keys of a ConfigMap of the service's namespace as files."""

    name: ObjectName
    """Name of the ConfigMap."""
    items: Items = ()
    """Keys to show. Default: all."""
    optional: bool | None = None
    """Whether the pod starts without it. Default: false."""


class ConfigMapVolume(ConfigMapSource):
    """Keys of a ConfigMap of the service's namespace as files, with their permissions."""

    default_mode: FileMode | None = None
    """Permissions of files, 0 to 511 (octal 777). Default: 420 (octal 644)."""


class SecretVolume(Model):
    """Keys of a Secret of the service's namespace as files."""

    secret_name: ObjectName
    """Name of the Secret."""
    items: Items = ()
    """Keys to show. Default: all."""
    default_mode: FileMode | None = None
    """Permissions of files, 0 to 511 (octal 777). Default: 420 (octal 644)."""
    optional: bool | None = None
    """Whether the pod starts without it. Default: false."""


class SecretSource(Model):
    """Keys of a Secret of the service's namespace as files of a projected volume."""

    name: ObjectName
    """Name of the Secret."""
    items: Items = ()
    """Keys to show. Default: all."""
    optional: bool | None = None
    """Whether the pod starts without it. Default: false."""


def _off_unsaid(value: bool | None) -> bool | None:
    """Kubernetes keeps no `false` of such a field, so what is rendered has none to miss."""
    return value or None


OffByDefault = Annotated[bool | None, AfterValidator(_off_unsaid)]


class ClaimVolume(Model):
    """A volume claim of the service's namespace."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim. All replicas share it, so it needs an access mode that lets them."""
    read_only: OffByDefault = None
    """Whether no container may write. Default: false."""


class EmptyDir(Model):
    """A folder that ends with the pod."""

    medium: Literal["Memory"] | None = None
    """`Memory` counts as memory of the containers. Default: the node's disk."""
    # A string, as the API server returns it.
    size_limit: Annotated[int | str, ReadsAsQuantity(), PlainSerializer(str)] | None = None
    """Most that it may hold, such as 20Gi; a pod that has more is evicted. Default: no limit."""


class MetadataRef(Model):
    """A field of the pod that can be a file."""

    field_path: MetadataPath
    """Path of the field, such as `metadata.labels['app']`."""


class DownwardFile(Model):
    """A field of the pod as a file."""

    path: RelativePath
    """Name of the file."""
    field_ref: MetadataRef
    """Field to show."""


class DownwardSource(Model):
    """Fields of the pod as files."""

    items: Annotated[tuple[DownwardFile, ...], Field(min_length=1, max_length=8)]
    """Files and their fields."""


class TokenSource(Model):
    """A token of the pod's service account as a file, which the kubelet renews."""

    path: RelativePath
    """Name of the file."""
    audience: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Whom the token is for. Default: the API server."""
    expiration_seconds: Annotated[int, Field(ge=600, le=2**31 - 1)] | None = None
    """Seconds that it is valid, at least 600. Default: 3600."""


class Projection(Model):
    """One source of a projected volume."""

    checks: ClassVar[tuple[Check, ...]] = (
        exactly_one("configMap", "secret", "downwardAPI", "serviceAccountToken", noun="source"),
    )

    config_map: ConfigMapSource | None = None
    """Keys of a ConfigMap."""
    secret: SecretSource | None = None
    """Keys of a Secret."""
    downward_api: Annotated[DownwardSource | None, Field(alias="downwardAPI")] = None
    """Fields of the pod."""
    service_account_token: TokenSource | None = None
    """A token of the service account; works with automountServiceAccountToken off."""


class ProjectedVolume(Model):
    """Several sources in one folder."""

    sources: Annotated[tuple[Projection, ...], Field(min_length=1, max_length=8)]
    """What is in it."""
    default_mode: FileMode | None = None
    """Permissions of files, 0 to 511 (octal 777). Default: 420 (octal 644)."""


class CSIVolume(Model):
    """A volume that a CSI driver makes for the pod, such as that of the Secrets Store."""

    driver: ObjectName
    """Name of the driver."""
    fs_type: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """File system. Default: the driver's."""
    read_only: bool | None = None
    """Whether no container may write. Default: false."""
    volume_attributes: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]] | None, Field(min_length=1, max_length=32)
    ] = None
    """What the driver is told. Default: nothing."""
    node_publish_secret_ref: LocalObjectReference | None = None
    """Secret that the driver is given. Default: none."""


class HostPath(TypedDict, total=False):
    """A folder of the node, which no pod of a service may see."""

    path: Annotated[str, Field(max_length=4096)]
    type: Annotated[str, Field(max_length=32)]


_SOURCES: Final = ("configMap", "secret", "persistentVolumeClaim", "emptyDir", "projected", "csi")


class Volume(Model):
    """A volume of the pods, as in a pod: a name and one source."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.hostPath)",
                f"may not be used, since it shows the node's files; accepted: {', '.join(_SOURCES)}",
                ".hostPath",
            ),
            lambda volume: volume.host_path is None,
        ),
        exactly_one(*_SOURCES, noun="source", unless="hostPath"),
    )

    name: Annotated[
        LabelName,
        Refuses("|".join(OWN_VOLUMES), f"is a volume of Flyball's; accepted: any name but {', '.join(OWN_VOLUMES)}"),
    ]
    """Name of the volume, unique in the list; volumeMounts refer to it."""
    config_map: ConfigMapVolume | None = None
    """Keys of a ConfigMap as files."""
    secret: SecretVolume | None = None
    """Keys of a Secret as files."""
    persistent_volume_claim: ClaimVolume | None = None
    """A claim for storage, such as a cache of models."""
    empty_dir: EmptyDir | None = None
    """A folder that ends with the pod."""
    projected: ProjectedVolume | None = None
    """Several sources in one folder."""
    csi: CSIVolume | None = None
    """A volume that a CSI driver makes for the pod."""
    host_path: HostPath | None = None
    """Refused: pods do not see the node's files."""


class VolumeMount(Model):
    """Where a container sees a volume of spec.podTemplate.volumes."""

    name: LabelName
    """Name of the volume."""
    mount_path: MountPath
    """Absolute path in the container, unique in the list."""
    sub_path: RelativePath | None = None
    """Path in the volume that is mounted. Default: its root."""
    read_only: OffByDefault = None
    """Whether the container may only read. Default: false."""


class EngineVolumeMount(VolumeMount):
    """Where the engine sees a volume of spec.podTemplate.volumes."""

    mount_path: Annotated[
        MountPath,
        Refuses(
            r"/tmp|/dev|/dev/shm|/(flyball|flyball-(keys|tls|compiled|adapters)|model)(/.*)?",  # noqa: S108 - what is refused
            "would cover /tmp, /dev/shm, /flyball, /flyball-keys, /flyball-tls, /flyball-compiled, /flyball-adapters or"
            " /model, which Flyball mounts; accepted: any other path, such as /cache, or a folder in /tmp",
        ),
    ]
    """Absolute path in the container, unique in the list; folders in /tmp are accepted, /tmp is not."""


Mounts = Annotated[tuple[VolumeMount, ...], Field(max_length=16), MapKeyed("mountPath")]
