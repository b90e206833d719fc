"""Every Secret that a service can name is one that `admissionPolicies.inferenceServices.secrets` is tried for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from flyball_lab.harness.manifests import Object, good
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from support.wrong_services import UNLISTED, WRONG_SERVICES

#: Paths of fields that hold a Secret's name.
NAMES_A_SECRET = re.compile(r"(\.secret|[sS]ecrets?|[sS]ecretRef|secretKeyRef)\.name$|\.secretName$")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a manifest says, with the paths of fields; items of a list have the list's."""
    if isinstance(value, dict):
        for field, below in value.items():
            yield from leaves(below, f"{path}.{field}".removeprefix("."))
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, path)
    else:
        yield path, value


def fields(schema: Object, path: str) -> Iterator[str]:
    """Paths of a schema's fields that hold no others."""
    below: Object = schema.get("items", schema)
    if "properties" not in below:
        yield path
    for name, field in below.get("properties", {}).items():
        yield from fields(field, f"{path}.{name}")


def test_each_is_refused_in_a_case_on_the_real_api_server() -> None:
    crd = yaml.safe_load((ROOT / f"crds/{names.CRD_NAME}.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    paths = fields(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "spec")
    nameable = {path for path in paths if NAMES_A_SECRET.search(path)}
    refused = {path for wrong, _ in WRONG_SERVICES for path, value in leaves(good(**wrong)) if value == UNLISTED}
    assert "spec.engine.tls.secretName" in nameable
    assert nameable == refused
