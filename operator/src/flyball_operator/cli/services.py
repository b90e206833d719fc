"""Where a command gets an InferenceService from: a file, or the cluster of a person's kubeconfig."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from flyball_operator.api import names
from flyball_operator.api.parse import InvalidSpecError, ParseError, parse_service
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.cli import cluster

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

#: An object in etcd has a megabyte at most.
_MOST_BYTES: Final = 4_000_000


class WrongServiceError(Exception):
    """What there is is no service that can be worked on; the message says what is wrong."""


def add_options(parser: argparse.ArgumentParser, *, file_help: str) -> None:
    """NAME, and what else says which service is meant."""
    cluster.add_name(parser, optional=True)
    cluster.add_options(parser, namespace_help="its namespace: that of the kubeconfig's context")
    parser.add_argument("-f", "--file", metavar="FILE", help=file_help)


def contradiction(options: argparse.Namespace) -> str | None:
    """Why a file goes with nothing that is said of a cluster, None if nothing is."""
    if options.file is not None and (options.namespace or options.context):
        return "--file asks no cluster: it goes with neither --namespace nor --context"
    return None


def raw_service(options: argparse.Namespace, *, asking: str) -> Mapping[str, Any]:
    """The object that the options mean; `asking` names the command in API server logs.

    Raises `NotHadError` of the cluster, `WrongServiceError` of a file or of a manifest that was never applied.
    """
    return _from_file(options.file) if options.file is not None else asyncio.run(_from_cluster(options, asking))


def parsed(raw: Mapping[str, Any]) -> InferenceService:
    """The service in an object. Raises `WrongServiceError`."""
    try:
        return parse_service(raw)
    except InvalidSpecError as error:
        raise WrongServiceError(f"the spec is wrong: {'; '.join(error.errors)}") from error
    except ParseError as error:
        raise WrongServiceError(f"this is no InferenceService: {error}") from error


def document(name: str) -> Mapping[str, Any]:
    """The one InferenceService in a file, applied or not; `-` is standard input. Raises `WrongServiceError`."""
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongServiceError(f"--file {name}: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > _MOST_BYTES:
        raise WrongServiceError(f"--file {name}: more than {_MOST_BYTES:,} characters are no InferenceService")
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise WrongServiceError(f"--file {name}: neither YAML nor JSON: {str(error).splitlines()[0]}") from error
    found = [one for one in documents if isinstance(one, Mapping) and one.get("kind") == names.KIND]
    if len(found) == 1:
        return found[0]
    if not documents:
        what = "is empty"
    elif len(documents) == 1:
        kind = repr(documents[0].get("kind")) if isinstance(documents[0], Mapping) else "not there"
        what = f"kind is {kind}"
    else:
        what = f"has {len(documents)} documents, {len(found) or 'none'} of kind {names.KIND}"
    raise WrongServiceError(f"--file {name}: {what}, accepted: {names.KIND}, one object")


def _from_file(name: str) -> Mapping[str, Any]:
    found = document(name)
    meta = found.get("metadata")
    if missing := [key for key in ("namespace", "uid") if not isinstance(meta, Mapping) or not meta.get(key)]:
        absent = " and ".join(f"metadata.{key}" for key in missing)
        raise WrongServiceError(
            f"--file {name}: no {absent}, as in a manifest that was never applied; accepted: an object of a cluster,"
            " such as kubectl get inferenceservices.serving.flyball.dev NAME -o yaml writes it"
        )
    return found


async def _from_cluster(options: argparse.Namespace, asking: str) -> Mapping[str, Any]:
    async def get(api: KubeApi, namespace: str) -> Mapping[str, Any]:
        return await cluster.one_service(api, options.namespace or namespace, options.name)

    return await cluster.reading(options, asking, get)
