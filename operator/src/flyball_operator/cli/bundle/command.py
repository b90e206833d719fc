"""`flyball support-bundle`: one archive for whoever looks for a fault, without secrets."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flyball_operator.cli.cluster import JSON, NotHadError, add_operator_namespace, add_options, add_output, asked
from flyball_operator.cli.output import NOT_HAD
from flyball_operator.cli.terminal import wrapped

if TYPE_CHECKING:
    from flyball_operator.cli.bundle.gather import Bundle
    from flyball_operator.kube.api import KubeApi

_SHAPE: Final = '{"file", "bytes", "files": [PATH], "unread": [TEXT]}'
#: The folder in the archive, and how its own name begins.
_NAME: Final = "flyball-support"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "support-bundle",
        help="services, owned objects, events, operator logs and doctor's findings in one archive",
        description="Writes a .tar.gz of services, the objects that they own, their events, the last lines of the "
        "operator's logs, what flyball doctor finds, and versions. No Secret and no ConfigMap is in it. Values of "
        "environment variables, keys, and what looks like a credential are redacted. It only reads. It needs list of "
        "these kinds, get of routes and pools of services with spec.gateway, and get of pods/log in the operator's "
        "namespace. What may not be read is named in it. Exit code "
        "1: the cluster cannot be asked, there is no such namespace, or the file cannot be written.",
    )
    add_options(parser, namespace_help="services of this namespace only; all")
    add_operator_namespace(parser)
    parser.add_argument("--file", metavar="FILE", help=f"a new file; {_NAME}-TIME.tar.gz")
    add_output(parser, shape=_SHAPE)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Write the archive, and say where it is; returns the exit code."""
    now = datetime.now(UTC)
    path = Path(options.file or f"{_NAME}-{now:%Y%m%dT%H%M%SZ}.tar.gz")

    gathered: list[Bundle] = []

    async def work(api: KubeApi) -> int:
        # With the client, which takes a second to import.
        from flyball_operator.cli.bundle.gather import gather  # noqa: PLC0415 – see above
        from flyball_operator.cli.doctor.collect import Scope  # noqa: PLC0415

        gathered.append(await gather(api, Scope(options.namespace, options.operator_namespace)))
        return 0

    try:
        if path.exists():
            raise NotHadError(f"--file {path}: File exists; accepted: a new file")
        if code := asked(options, work):
            return code
        _write(path, archived(gathered[0], now))
    except NotHadError as error:
        print(f"flyball support-bundle: {error}", file=sys.stderr)
        return NOT_HAD
    _tell(path, gathered[0], options)
    return 0


def _tell(path: Path, bundle: Bundle, options: argparse.Namespace) -> None:
    size = path.stat().st_size
    if options.output == JSON:
        document = {"file": str(path), "bytes": size, "files": sorted(bundle.files), "unread": bundle.unread}
        print(json.dumps(document, indent=2))
        return
    print(f"{path}: {size:,} bytes, {len(bundle.files)} files; read it before you hand it on")
    print("".join(f"{wrapped(f'not read: {why}', hang=2)}\n" for why in bundle.unread), end="")


def _write(path: Path, content: bytes) -> None:
    """Into a new file that only its owner can read. A part of it is no archive, and does not stay."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise NotHadError(f"--file {path}: {error.strerror or error}") from error
    whole = False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        whole = True
    except OSError as error:
        raise NotHadError(f"--file {path}: {error.strerror or error}") from error
    finally:
        if not whole:
            path.unlink()


def archived(bundle: Bundle, now: datetime) -> bytes:
    """The files as a .tar.gz with one folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in sorted(bundle.files.items()):
            encoded = content.encode()
            entry = tarfile.TarInfo(f"{_NAME}/{name}")
            entry.size, entry.mtime, entry.mode = len(encoded), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(encoded))
    return packed.getvalue()
