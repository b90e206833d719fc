"""Where a command gets an InferenceService from: a file, or the cluster of a person's kubeconfig."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from flyball_operator.api.parse import InvalidSpecError, ParseError, parse_service
from flyball_operator.api.v1alpha1 import InferenceService

#: An object in etcd has a megabyte at most.
_MOST_BYTES: Final = 4_000_000


class NotHadError(Exception):
    """There is no service to be had; the message says why."""


class WrongServiceError(Exception):
    """What there is is no service that can be worked on; the message says what is wrong."""


def add_options(parser: argparse.ArgumentParser, *, file_help: str) -> None:
    """NAME, and what else says which service is meant."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the InferenceService")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="its namespace: that of the kubeconfig's context")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig: the current one")
    parser.add_argument("-f", "--file", metavar="FILE", help=file_help)


def contradiction(options: argparse.Namespace) -> str | None:
    """Why a file goes with nothing that is said of a cluster, None if nothing is."""
    if options.file is not None and (options.namespace or options.context):
        return "--file asks no cluster: it goes with neither --namespace nor --context"
    return None


def raw_service(options: argparse.Namespace, *, asking: str) -> Mapping[str, Any]:
    """The object that the options mean; `asking` names the command in API server logs.

    Raises `NotHadError`, and `WrongServiceError` for a manifest that was never applied.
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


def _from_file(name: str) -> Mapping[str, Any]:
    try:
        with sys.stdin if name == "-" else Path(name).open(encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise NotHadError(f"--file {name}: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > _MOST_BYTES:
        raise NotHadError(f"--file {name}: more than {_MOST_BYTES:,} characters are no InferenceService")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NotHadError(f"--file {name}: neither YAML nor JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(found, Mapping) or found.get("kind") != "InferenceService":
        if found is None:
            raise NotHadError(f"--file {name}: is empty, accepted: InferenceService, one object")
        kind = repr(found.get("kind")) if isinstance(found, Mapping) else "not there"
        raise NotHadError(f"--file {name}: kind is {kind}, accepted: InferenceService, one object")
    meta = found.get("metadata")
    if missing := [key for key in ("namespace", "uid") if not isinstance(meta, Mapping) or not meta.get(key)]:
        absent = " and ".join(f"metadata.{key}" for key in missing)
        raise WrongServiceError(
            f"--file {name}: no {absent}, as in a manifest that was never applied; accepted: an object of a cluster,"
            " such as kubectl get inferenceservices.serving.flyball.dev NAME -o yaml writes it"
        )
    return found


async def _from_cluster(options: argparse.Namespace, asking: str) -> Mapping[str, Any]:
    # The client takes a second to import, which other commands do not want to pay.
    from flyball_operator.kube.api import KubeApi, NeverLeading, kubeconfig  # noqa: PLC0415 – see above
    from flyball_operator.kube.errors import ClusterError, NotFoundError  # noqa: PLC0415
    from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415

    try:
        configuration, namespace = await kubeconfig(options.context)
        api = KubeApi(configuration, asking, NeverLeading(), instance=f"pid {os.getpid()}")
        wanted = options.namespace or namespace
        try:
            return await api.get(INFERENCE_SERVICES, wanted, options.name)
        except NotFoundError as error:
            raise NotHadError(f"no InferenceService {options.name} in namespace {wanted}: {error}") from error
        finally:
            await api.close()
    except ClusterError as error:
        raise NotHadError(str(error)) from error
