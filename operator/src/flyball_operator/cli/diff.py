"""`flyball diff`: what an edited manifest would change. The API server judges it by a dry run, nothing is stored."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from flyball_operator.api.objects import Object, annotation
from flyball_operator.cli.cluster import JSON, NotHadError, add_options, add_output, asked_in, wrong_name
from flyball_operator.cli.manifest_changes import LAST_APPLIED, as_json, as_lines, changes, merge_patch
from flyball_operator.cli.output import WRONG_INPUT
from flyball_operator.cli.pods_owner import pods_owner
from flyball_operator.cli.services import WrongServiceError, document, parsed
from flyball_operator.cli.terminal import wrapped

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

#: As `kubectl diff` has it.
CHANGED: Final = 1
#: The API server quotes a patch whole, and names no object, before it says what is wrong.
_PATCH: Final = re.compile(r'(?:^ "" is invalid: )?patch: Invalid value: "\{.*\}": ', re.DOTALL)
_SHAPE: Final = (
    '{"changed": bool, "created": bool, "fields": [{"field", "before", "after"}], "pods": {"replaced": bool, …},'
    ' "limits": […], "prediction": {"unknown", "load", "not_live",'
    ' "objectives": [{"name", "before": {"threshold", "predicted", "kept"}, "after"}],'
    ' "limits": [{"name", "before", "after"}]}}'
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "diff",
        help="what an edited manifest would change: fields, pods, limits, objectives",
        description="Says what applying a manifest would change of a service: which fields, whether its pods are "
        "replaced, and what becomes of its limits. By the model and load in status it predicts two things: the limits "
        "that the law would choose, and whether the mean request keeps each objective. The API server judges the "
        "manifest by a dry run: of kubectl apply where the service was applied so, else of a server-side apply. "
        "Nothing is stored. It needs get and patch of inferenceservices.serving.flyball.dev, create for a new one, and "
        "get of deployments, or of leaderworkersets where nodes is above 1. Exit codes as kubectl diff: 0 nothing "
        "changes, 1 something changes, 2 an error, such as a manifest that is refused.",
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="of one InferenceService; -: standard input"
    )
    parser.add_argument(
        "--field-manager", default="kubectl", metavar="NAME", help="of a server-side apply, such as helm: kubectl"
    )
    add_options(parser, namespace_help="that of the manifest, else of the kubeconfig's context")
    add_output(parser, shape=_SHAPE)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print what would change; returns the exit code."""
    try:
        manifest = document(options.file)
    except WrongServiceError as error:
        print(f"flyball diff: {error}", file=sys.stderr)
        return WRONG_INPUT

    async def work(api: KubeApi, namespace: str) -> int:
        return await _diff(api, _placed(manifest, options.namespace, namespace), options)

    return asked_in(options, work, not_had=WRONG_INPUT)


def _placed(manifest: Mapping[str, Any], asked: str | None, fallback: str) -> Object:
    """The manifest with its namespace. Raises `NotHadError` where it has no name, a wrong one, or another namespace."""
    meta = manifest.get("metadata")
    if not isinstance(meta, Mapping) or "name" not in meta:
        raise NotHadError("the manifest has no metadata.name, accepted: the name of a service")
    for field, value in (("name", meta["name"]), ("namespace", meta.get("namespace") or fallback)):
        if (wrong := wrong_name(value)) is not None:
            raise NotHadError(f"the manifest's metadata.{field}: {wrong}")
    if asked is not None and meta.get("namespace") not in (None, asked):
        raise NotHadError(f"the manifest's metadata.namespace is {meta['namespace']}, --namespace is {asked}")
    # What the API server wrote last, as `kubectl get -o yaml` shows it, is nobody's wish.
    kept = {field: meta[field] for field in ("name", "labels") if field in meta}
    kept["namespace"] = meta.get("namespace") or fallback
    # Not absent, or the patch would take all annotations away.
    written = meta.get("annotations") or {}
    kept["annotations"] = {key: value for key, value in written.items() if key != LAST_APPLIED}
    return {**{key: value for key, value in manifest.items() if key != "status"}, "metadata": kept}


async def _diff(api: KubeApi, manifest: Object, options: argparse.Namespace) -> int:
    # With the client and the law, which take a second to import.
    from flyball_operator.cli import manifest_prediction  # noqa: PLC0415 – see above
    from flyball_operator.kube.errors import InvalidObjectError, NotFoundError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415

    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    before: Object | None
    try:
        before = await api.get(INFERENCE_SERVICES, namespace, name)
    except NotFoundError:
        before = None
    deployment = None if before is None else await pods_owner(api, before)
    try:
        after = await _dry(api, before, manifest, options.field_manager)
    except InvalidObjectError as error:
        raise NotHadError(_PATCH.sub("", str(error))) from error
    try:
        found = changes(None if before is None else (before, parsed(before)), (after, parsed(after)), deployment)
    except WrongServiceError as error:
        raise NotHadError(str(error)) from error
    foreseen = manifest_prediction.predicted(None if before is None else parsed(before), parsed(after), found.pods)
    if options.output == JSON:
        document = {**as_json(namespace, name, found), "prediction": manifest_prediction.as_json(foreseen)}
        print(json.dumps(document, indent=2))
    else:
        # Of what changes nothing, or is not there yet, there is nothing to compare.
        compared = manifest_prediction.as_lines(foreseen) if found.fields and not found.created else ()
        print("\n".join(wrapped(line, hang=4) for line in (*as_lines(namespace, name, found), *compared)))
    return CHANGED if found.any else 0


async def _dry(api: KubeApi, before: Object | None, manifest: Object, manager: str) -> Object:
    """What the API server would hold after the apply."""
    from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415 – see `_diff`

    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    if before is None:
        return await api.dry_create(INFERENCE_SERVICES, namespace, manifest)
    if last := annotation(before, LAST_APPLIED):
        try:
            applied = json.loads(last)
        except ValueError as error:
            raise NotHadError(f"the annotation {LAST_APPLIED} of {namespace}/{name} is no JSON") from error
        return await api.dry_merge(INFERENCE_SERVICES, namespace, name, merge_patch(applied, manifest))
    identity = {"uid": before["metadata"]["uid"]}
    body = {**manifest, "metadata": {**manifest["metadata"], **identity}}
    return await api.dry_apply_as(manager, INFERENCE_SERVICES, body)
