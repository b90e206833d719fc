"""How commands reach the cluster of a person's kubeconfig: their options, the connection, and what ends them."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flyball_operator.api import names
from flyball_operator.cli.output import NOT_HAD

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

T = TypeVar("T")

TEXT: Final = "text"
JSON: Final = "json"
HTML: Final = "html"

#: Seconds between two looks: no faster than a person sees, no slower than an hour.
_LEAST_INTERVAL: Final = 0.5
_MOST_INTERVAL: Final = 3600.0


#: A name as Kubernetes takes it of objects. All else would lead to another path of the API server.
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


class NotHadError(Exception):
    """What a command works on is not to be had; the message says why."""


def add_options(parser: argparse.ArgumentParser, *, namespace_help: str) -> None:
    """Which cluster and namespace."""
    parser.add_argument("-n", "--namespace", type=object_name, metavar="NAME", help=namespace_help)
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig: the current one")


def add_name(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Which service."""
    nargs = "?" if optional else None
    parser.add_argument("name", nargs=nargs, type=object_name, metavar="NAME", help="of the InferenceService")


def add_operator_namespace(parser: argparse.ArgumentParser) -> None:
    """Where operators are looked for."""
    parser.add_argument(
        "--operator-namespace", type=object_name, metavar="NAME", help="look for operators in this namespace only; all"
    )


def object_name(text: str) -> str:
    """An argument that is a name. Raises `ArgumentTypeError`."""
    if (wrong := wrong_name(text)) is not None:
        raise argparse.ArgumentTypeError(wrong)
    return text


def wrong_name(found: object) -> str | None:
    """Why this is no name, None if it is one."""
    if isinstance(found, str) and _NAME.fullmatch(found):
        return None
    return f"{found!r} is no name of an object; accepted: lower case letters, digits, '-' and '.', such as chat"


def add_output(parser: argparse.ArgumentParser, *, shape: str, page: bool = False) -> None:
    """How the result is written; `shape`: that of the JSON, which stays as it is. `page`: there is one of HTML, too."""
    formats = (TEXT, HTML, JSON) if page else (TEXT, JSON)
    named = f"{TEXT}, {HTML} (a page with plots) or {JSON}" if page else f"{TEXT} or {JSON}"
    parser.add_argument("-o", "--output", choices=formats, default=TEXT, metavar="FORMAT", help=f"{named}: {shape}")


def add_interval(parser: argparse.ArgumentParser) -> None:
    """How often what is live is looked at."""
    parser.add_argument(
        "--interval", type=_interval, default=2.0, metavar="SECONDS", help="between two looks, 0.5 to 3600: 2"
    )


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _LEAST_INTERVAL <= seconds <= _MOST_INTERVAL:
        raise argparse.ArgumentTypeError(f"{text!r}, accepted: {_LEAST_INTERVAL:g} to {_MOST_INTERVAL:g} seconds")
    return seconds


def asked(options: argparse.Namespace, work: Callable[[KubeApi], Awaitable[int]]) -> int:
    """The exit code of `work`, which is given the API to read from."""

    async def anywhere(api: KubeApi, _namespace: str) -> int:
        return await work(api)

    return asked_in(options, anywhere)


def asked_in(
    options: argparse.Namespace,
    work: Callable[[KubeApi, str], Awaitable[int]],
    *,
    writes: bool = False,
    not_had: int = NOT_HAD,
) -> int:
    """The same of `work` that is given the namespace, too: that of the options, else of the kubeconfig's context.

    `writes`: whether it may write. `not_had`: the exit code where the cluster, or an object, is not to be had.
    """

    async def there(api: KubeApi, namespace: str) -> int:
        return await work(api, options.namespace or namespace)

    try:
        return asyncio.run(reading(options, options.parser.prog.replace(" ", "-"), there, writes=writes))
    except NotHadError as error:
        print(f"{options.parser.prog}: {error}", file=sys.stderr)
        return not_had


async def reading(
    options: argparse.Namespace,
    asking: str,
    work: Callable[[KubeApi, str], Awaitable[T]],
    *,
    writes: bool = False,
) -> T:
    """What `work` makes of the API and of the namespace of the kubeconfig's context.

    `asking` names the command in API server logs; `writes`: whether it may write. Raises `NotHadError`.
    """
    # The client takes a second to import, which other commands do not want to pay.
    from flyball_operator.kube.api import NeverLeading, Unfenced, connected  # noqa: PLC0415 – see above
    from flyball_operator.kube.configuration import kubeconfig  # noqa: PLC0415
    from flyball_operator.kube.errors import ClusterError  # noqa: PLC0415

    try:
        configuration, namespace = await kubeconfig(options.context)
        fence = Unfenced() if writes else NeverLeading()
        async with connected(configuration, asking, fence, instance=f"pid {os.getpid()}") as api:
            return await work(api, namespace)
    except ClusterError as error:
        raise NotHadError(str(error)) from error


async def one_service(api: KubeApi, namespace: str, name: str) -> dict[str, Any]:
    """The InferenceService of this name, as the API server has it. Raises `NotHadError`."""
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import NotFoundError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415

    try:
        return await api.get(INFERENCE_SERVICES, namespace, name)
    except NotFoundError as error:
        await expect_namespace(api, namespace)
        raise NotHadError(f"no InferenceService {name} in namespace {namespace}: {error}") from error


async def namespace_lease(api: KubeApi, namespace: str) -> dict[str, Any] | None:
    """The Lease by which a release holds a namespace; None where there is none, or it may not be read."""
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import ForbiddenError, NotFoundError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import LEASES  # noqa: PLC0415

    try:
        return await api.get(LEASES, namespace, names.NAMESPACE_LEASE)
    except (NotFoundError, ForbiddenError):
        return None


async def expect_namespace(api: KubeApi, name: str | None) -> None:
    """Where nothing was found in a namespace: raises `NotHadError` if it is not there. None: all were looked at.

    Who may not read namespaces is not told.
    """
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import ForbiddenError, NotFoundError  # noqa: PLC0415 – see above
    from flyball_operator.kube.resources import NAMESPACES  # noqa: PLC0415

    if name is None:
        return
    try:
        await api.get(NAMESPACES, None, name)
    except NotFoundError as error:
        raise NotHadError(f"there is no namespace {name}") from error
    except ForbiddenError:
        return
