"""`flyball watch`: load, limits, objectives and decisions of one service, live on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from flyball_operator.api.objects import timestamp
from flyball_operator.cli.cluster import JSON, add_interval, add_name, add_options, add_output, asked_in, one_service
from flyball_operator.cli.terminal import Screen, columns, printable, redraws
from flyball_operator.cli.top_rows import cut
from flyball_operator.cli.watch_chart import Sample, as_json, chart, sample

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

#: Samples that are kept: one a column of the widest terminals.
_KEPT: Final = 500


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "watch",
        help="load, limits, objectives and decisions of a service, live",
        description="Draws how load, limits and objectives of a service move from now on, and its last decisions. It "
        "needs get of inferenceservices.serving.flyball.dev. Ctrl-C ends it with exit code 130; exit code 1: there is "
        "no such service, or no more.",
    )
    add_name(parser)
    add_options(parser, namespace_help="its namespace: that of the kubeconfig's context")
    add_interval(parser)
    parser.add_argument("--once", action="store_true", help="print it once; so it is without a terminal, too")
    add_output(parser, shape='a line per look: {"at", "row", "mode", "attained", "targets", "decisions"}')
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Draw until Ctrl-C; returns the exit code."""

    async def work(api: KubeApi, namespace: str) -> int:
        async def look() -> Sample:
            return sample(await one_service(api, namespace, options.name), timestamp(datetime.now(UTC)))

        first = await look()
        if options.output == JSON:
            print(json.dumps(as_json(first)), flush=True)
            if not options.once:
                await _print_lines(look, options.interval)
        elif options.once or not redraws():
            print("\n".join(map(printable, chart([first], columns()))))
        else:
            await _show(first, look, options.interval)
        return 0

    return asked_in(options, work)


async def _print_lines(look: Callable[[], Awaitable[Sample]], interval: float) -> None:
    """A line per look for ever. While the API server cannot be asked there is none, but a complaint on why."""
    from flyball_operator.kube.errors import UnavailableError  # noqa: PLC0415 – see `_show`

    trouble = ""
    while True:
        await asyncio.sleep(interval)
        try:
            print(json.dumps(as_json(await look())), flush=True)
            trouble = ""
        except UnavailableError as error:
            if str(error) != trouble:
                print(f"flyball watch: {printable(str(error))}", file=sys.stderr, flush=True)
            trouble = str(error)


async def _show(first: Sample, look: Callable[[], Awaitable[Sample]], interval: float) -> None:
    """Draw for ever. While the API server cannot be asked, the last look stays, with a word on why."""
    # With the client, which takes a second to import.
    from flyball_operator.kube.errors import UnavailableError  # noqa: PLC0415 – see above

    seen, trouble = deque([first], maxlen=_KEPT), ""
    with Screen(sys.stdout) as screen:
        while True:
            told = [cut(f"not current: {trouble}", screen.columns)] if trouble else []
            screen.draw(list(map(printable, [*chart(list(seen), screen.columns), *told])))
            await asyncio.sleep(interval)
            try:
                seen.append(await look())
                trouble = ""
            except UnavailableError as error:
                trouble = str(error)
