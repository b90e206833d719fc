"""`flyball pause` and `flyball resume`: whether the operator may change a service's limits."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from flyball_operator.api.objects import Object
from flyball_operator.cli.cluster import JSON, NotHadError, add_name, add_options, add_output, asked_in, one_service
from flyball_operator.cli.pausing import LONGEST_REASON, Patch, as_json, as_text, pausing, resuming, wrong_reason
from flyball_operator.cli.terminal import wrapped

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

#: Attempts against the operator, which writes status every few seconds while much changes.
_ATTEMPTS: Final = 5
_SHAPE: Final = '{"namespace", "name", "paused": bool, "changed": bool, "reason", "mode", "limits"}'
_RIGHTS: Final = (
    "It needs get and patch of inferenceservices.serving.flyball.dev. Exit code 1: there is no such service, or it"
    " could not be changed. Exit code 2 may also be: it was changed, and the output could not be written."
)


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register both subcommands."""
    pause = commands.add_parser(
        "pause",
        help="let a service's limits stay as they are",
        description="Pauses the tuning of a service: its limits stay as they are, and its pods are not touched. "
        f"It sets an annotation, not the spec. Paused twice is paused. {_RIGHTS}",
    )
    _add_arguments(pause)
    pause.add_argument(
        "--reason", metavar="TEXT", help=f"kept beside it: one line of at most {LONGEST_REASON} characters"
    )
    pause.set_defaults(run=run_pause, parser=pause)
    resume = commands.add_parser(
        "resume",
        help="let the operator change a service's limits again",
        description=f"Ends a pause: the operator decides again at its next look. {_RIGHTS}",
    )
    _add_arguments(resume)
    resume.set_defaults(run=run_resume, parser=resume)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name(parser)
    add_options(parser, namespace_help="its namespace: that of the kubeconfig's context")
    add_output(parser, shape=_SHAPE)


def run_pause(options: argparse.Namespace) -> int:
    """Pause; returns the exit code."""
    if options.reason is not None and (wrong := wrong_reason(options.reason)) is not None:
        options.parser.error(wrong)
    return _change(options, lambda service: pausing(service, options.reason))


def run_resume(options: argparse.Namespace) -> int:
    """Resume; returns the exit code."""
    return _change(options, resuming)


def _change(options: argparse.Namespace, patch_of: Callable[[Object], Patch]) -> int:
    async def work(api: KubeApi, namespace: str) -> int:
        service, changed = await _patched(api, namespace, options.name, patch_of)
        if options.output == JSON:
            print(json.dumps(as_json(service, changed=changed), indent=2))
        else:
            print(wrapped(as_text(service, changed=changed)))
        return 0

    return asked_in(options, work, writes=True)


async def _patched(api: KubeApi, namespace: str, name: str, patch_of: Callable[[Object], Patch]) -> tuple[Object, bool]:
    """The service after the patch, and whether there was one. Each patch holds for the object it was made from."""
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import ConflictError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415

    for _ in range(_ATTEMPTS):
        service = await one_service(api, namespace, name)
        patch = patch_of(service)
        if not patch:
            return service, False
        try:
            return await api.json_patch(INFERENCE_SERVICES, namespace, name, patch), True
        except ConflictError:
            continue
    raise NotHadError(f"{namespace}/{name} was changed by others at each of {_ATTEMPTS} attempts; try again")
