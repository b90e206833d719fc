"""JSON schemas of Kubernetes' objects, for kubeconform: from the API that the Kubernetes of `hack/cluster` publishes.

They are strict: a field that the API does not know is an error, as for `kubectl apply --validate=strict`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

Object = dict[str, Any]

#: How kubeconform finds a schema in a folder.
TEMPLATE: Final = "{{ .Group }}-{{ .ResourceAPIVersion }}-{{ .ResourceKind }}.json"
_PREFIX: Final = "#/definitions/"
#: Strings in the published API. A server takes numbers, too.
_NUMBERS_TOO: Final = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
}


def write(swagger: Path, crd: Path, folder: Path) -> None:
    """Schemas of all kinds of the API, and of the resource that a CRD defines, into a folder."""
    definitions = {name: _strict(name, one) for name, one in json.loads(swagger.read_text())["definitions"].items()}
    for name, definition in definitions.items():
        needed = {name: definition}
        _collect(definition, definitions, needed)
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            schema = {"$ref": f"{_PREFIX}{name}", "definitions": needed}
            _write(folder, kind["group"] or kind["version"], kind["version"], kind["kind"], schema)
    resource = yaml.safe_load(crd.read_text())["spec"]
    for version in resource["versions"]:
        _write(
            folder, resource["group"], version["name"], resource["names"]["kind"], version["schema"]["openAPIV3Schema"]
        )


def _write(folder: Path, group: str, version: str, kind: str, schema: Object) -> None:
    (folder / f"{group}-{version}-{kind.lower()}.json").write_text(json.dumps(schema))


def _strict(name: str, definition: Object) -> Object:
    if name in _NUMBERS_TOO:
        return {"type": ["string", "number"]}
    if "properties" in definition:
        return {"additionalProperties": False, **definition}
    return definition


def _collect(part: object, definitions: dict[str, Object], found: dict[str, Object]) -> None:
    for name in _references(part):
        if name not in found:
            found[name] = definitions[name]
            _collect(definitions[name], definitions, found)


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference.removeprefix(_PREFIX)
        part = list(part.values())
    if isinstance(part, list):
        for one in part:
            yield from _references(one)
