"""`flyball doctor`: what is wrong with an installation, and what mends it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from flyball_operator.cli.cluster import JSON, add_operator_namespace, add_options, add_output, asked, expect_namespace
from flyball_operator.cli.doctor.findings import Finding, Level, as_json, healthy, text_lines
from flyball_operator.cli.output import NOT_HAD
from flyball_operator.cli.terminal import GREEN, RED, YELLOW, coloured, columns

if TYPE_CHECKING:
    from flyball_operator.kube.api import KubeApi

_COLOURS: Final = {Level.OK: GREEN, Level.WARN: YELLOW, Level.SKIP: YELLOW, Level.FAIL: RED}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="what is wrong with an installation, and what mends it",
        description="Checks the cluster, the CRD, operators, their Leases and rights, keys, policies, scraping, "
        "services and their gateways. Each finding is OK, WARN, FAIL, or SKIP for what may not be read, with the "
        "command, step or right that mends it. It only reads, and no Secret. Exit code 1: a check failed or was not "
        "made, there is no such namespace, or the cluster cannot be asked.",
    )
    add_options(parser, namespace_help="look at services of this namespace only; all")
    add_operator_namespace(parser)
    parser.add_argument("--no-services", action="store_true", help="look at operators only, not at services")
    parser.add_argument(
        "--metrics",
        metavar="URL",
        type=_url,
        help="ask the operator's metrics there, too, from a pod: such as http://flyball-metrics:8080/metrics",
    )
    parser.add_argument(
        "--ask-prometheus",
        action="store_true",
        help="ask the operator's Prometheus, too, by the variables FLYBALL_PROMETHEUS_* that the operator has",
    )
    add_output(parser, shape='{"healthy": bool, "checks": [{"check", "level", "message", "mend"}]}')
    parser.set_defaults(run=run, parser=parser)


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL, accepted: http://HOST:PORT/metrics")
    return text


def run(options: argparse.Namespace) -> int:
    """Print the findings; returns the exit code."""

    async def work(api: KubeApi) -> int:
        # With the client, which takes a second to import.
        from flyball_operator.cli.doctor.collect import Scope, collect  # noqa: PLC0415 – see above
        from flyball_operator.cli.doctor.examine import examine  # noqa: PLC0415

        scope = Scope(options.namespace, options.operator_namespace, services=not options.no_services)
        installation = await collect(api, scope)
        if scope.services and not installation.tenants:
            await expect_namespace(api, options.namespace)
        findings = examine(installation)
        if options.metrics or options.ask_prometheus:
            from flyball_operator.cli.doctor.within import ask_within  # noqa: PLC0415 – it imports an HTTP client

            findings += await ask_within(metrics=options.metrics, prometheus=options.ask_prometheus)
        if options.output == JSON:
            print(json.dumps(as_json(findings), indent=2))
        else:
            print("\n".join(map(_shown, findings)))
        return 0 if healthy(findings) else NOT_HAD

    return asked(options, work)


def _shown(finding: Finding) -> str:
    text, level = "\n".join(text_lines(finding, columns())), finding.level.value
    return coloured(level, _COLOURS[finding.level]) + text.removeprefix(level)
