"""`flyball top`: all services in one table, live on a terminal.

They are listed once and then watched, so that a thousand services cost the API server what changes of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flyball_operator.cli.cluster import JSON, add_interval, add_options, add_output, asked, expect_namespace
from flyball_operator.cli.terminal import RED, YELLOW, Screen, coloured, columns, printable, redraws
from flyball_operator.cli.top_rows import SORTS, Row, as_json, cut, key_of, ordered, row, summary, table

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

#: Seconds of one watch; the API server ends those that ask for more anyhow.
_WATCH_SECONDS: Final = 300
#: Seconds until the services are listed again where the API server does not answer.
_AGAIN_SECONDS: Final = 5.0


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "top",
        help="all services in one table, live",
        description="Shows of each service its pods (Ready/asked for) and how often its worst objective was met. Then "
        "come the load (requests/s that arrive/that the pods carry) and the limits (requests at once/tokens in a "
        "step). The last column has the reason where a service is not Ready or in trouble. It needs list and watch of "
        "inferenceservices.serving.flyball.dev, in all namespaces without -n. Ctrl-C ends it with exit code 130; exit "
        "code 1: there is no such namespace.",
    )
    add_options(parser, namespace_help="services of this namespace only; all")
    parser.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help="services with these labels, as in kubectl"
    )
    parser.add_argument("--sort", choices=tuple(SORTS), default="name", metavar="BY", help=f"one of {', '.join(SORTS)}")
    add_interval(parser)
    parser.add_argument("--once", action="store_true", help="print the table once; so it is without a terminal, too")
    add_output(parser, shape='{"services": [{"namespace", "name", "ready", "desired", …}]}, once')
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the table, once or until Ctrl-C; returns the exit code."""

    async def work(api: KubeApi) -> int:
        live = Services(api, options.namespace, options.selector)
        await live.list()
        if not live.rows:
            await expect_namespace(api, options.namespace)
        once = options.once or not redraws()
        if not live.rows and (once or options.output == JSON):
            print(f"flyball top: {_none(options)}", file=sys.stderr)
        if options.output == JSON:
            print(json.dumps(as_json(ordered(live.rows.values(), options.sort)), indent=2))
        elif once:
            if live.rows:
                print("\n".join(_lines(ordered(live.rows.values(), options.sort), columns())))
        else:
            async with _followed(live) as following:
                await _show(live, following, options)
        return 0

    return asked(options, work)


def _none(options: argparse.Namespace) -> str:
    labels = f" with the labels {options.selector}" if options.selector else ""
    return f"no services{labels} in {f'namespace {options.namespace}' if options.namespace else 'any namespace'}"


@dataclass
class Services:
    """Rows of all services, as they were last seen. `trouble`: why they may be older than they look."""

    api: KubeApi
    namespace: str | None
    selector: str
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    version: str = ""
    trouble: str = ""

    async def list(self) -> None:
        """Ask for all of them. Raises `ClusterError`."""
        # With the client, which takes a second to import.
        from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415 – see above

        found, self.version = await self.api.list(INFERENCE_SERVICES, self.namespace, selector=self.selector)
        self.rows = {key_of(service): row(service) for service in found}
        self.trouble = ""

    async def watch(self) -> None:
        """Take in what changes, until the API server ends the watch. Raises `ClusterError`."""
        from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415 – see above

        events = self.api.watch(
            INFERENCE_SERVICES,
            namespace=self.namespace,
            selector=self.selector,
            version=self.version,
            seconds=_WATCH_SECONDS,
        )
        async with aclosing(events):
            async for event in events:
                service = event["object"]
                self.version = str(service["metadata"].get("resourceVersion") or self.version)
                if event["type"] == "DELETED":
                    self.rows.pop(key_of(service), None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self.rows[key_of(service)] = row(service)

    async def follow(self) -> None:
        """Stay up to date for ever: after an error all are listed anew, not at once."""
        from flyball_operator.kube.errors import ClusterError  # noqa: PLC0415 – see above

        stale = False
        while True:
            try:
                if stale:
                    await self.list()
                stale = True
                await self.watch()
                stale = False
            except ClusterError as error:
                self.trouble = str(error)
                await asyncio.sleep(_AGAIN_SECONDS)


def _lines(rows: Sequence[Row], width: int) -> list[str]:
    """The table; what is not Ready is red, other trouble yellow."""
    head, *lines = map(printable, table(rows, width))
    return [head, *(_coloured(line, one) for line, one in zip(lines, rows, strict=True))]


def _coloured(line: str, one: Row) -> str:
    if not one.is_ready:
        return coloured(line, RED)
    return coloured(line, YELLOW) if one.reason else line


@asynccontextmanager
async def _followed(live: Services) -> AsyncIterator[asyncio.Future[None]]:
    following = asyncio.ensure_future(live.follow())
    try:
        yield following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _show(live: Services, following: asyncio.Future[None], options: argparse.Namespace) -> None:
    with Screen(sys.stdout) as screen:
        while True:
            if following.done():
                # It ends by a bug alone. A table that nothing follows any more would look as if nothing happened.
                following.result()
            rows = ordered(live.rows.values(), options.sort)
            head = f"{summary(rows)}, by {options.sort}" + (f"; not current: {live.trouble}" if live.trouble else "")
            screen.draw([cut(printable(head), screen.columns), *_lines(rows, screen.columns)])
            await asyncio.wait({following}, timeout=options.interval)
