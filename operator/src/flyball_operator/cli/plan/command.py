"""`flyball plan`: what limits a running fleet, and how many replicas would hold its objectives.

It asks a Prometheus that scrapes vLLM, and the cluster for InferenceServices where no option names objectives. Nothing
is changed anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from flyball_engine.figures import format_duration
from flyball_operator.api.parse import ParseError, parse_service
from flyball_operator.cli.cluster import HTML, JSON, NotHadError, add_options, add_output, expect_namespace, reading
from flyball_operator.cli.output import NOT_HAD
from flyball_operator.cli.plan.objectives import (
    THRESHOLDS,
    USUAL_BY,
    USUAL_SINCE,
    USUAL_TARGET,
    OptionError,
    gpus,
    labels,
    look_back,
    objectives,
)
from flyball_operator.cli.prometheus_options import (
    WrongSettingError,
    add_prometheus,
    missing_prometheus,
    prometheus_settings,
)
from flyball_operator.cli.time_range import TimeRangeError, range_end, rfc3339

if TYPE_CHECKING:
    from flyball_operator.api.v1alpha1 import InferenceService
    from flyball_operator.cli.plan.fleet import Asked
    from flyball_operator.cli.plan.report import FleetPlan
    from flyball_operator.cli.plan.windows import ServicePast
    from flyball_operator.kube.api import KubeApi
    from flyball_operator.tuning.observe.signals import Identity

#: Seconds that one answer may take: nothing waits for it but a person.
_TIMEOUT: Final = 60.0
_EXAMPLES: Final = {"ttft": "500ms", "tpot": "50ms", "itl": "100ms", "e2e": "20s"}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "plan",
        help="what limits a fleet, and how many replicas hold its objectives",
        description="Plans the replicas of a fleet of vLLM (0.26 or later) from Prometheus, with Flyball's plugin or "
        "without. It says what limits each service, and how many replicas and GPUs would hold its objectives at the "
        "busiest load. It tells how sure that is, and what it saves or costs. Options name the objectives of all "
        "services. Without them each InferenceService has its own, and you must be allowed to list these. Pods of "
        "vLLM without the plugin are one service where the labels of --by are alike. So prefill and decode pods of one "
        "served name are planned as one, unless --by has a label that tells them apart. Nothing is changed. Exit code "
        "1: Prometheus or the cluster cannot be asked, no vLLM is scraped, or no request came.",
    )
    add_prometheus(parser)
    parser.add_argument("--since", metavar="DURATION", help=f"how far to look back, 5m to 744h: {USUAL_SINCE}")
    parser.add_argument("--to", dest="end", metavar="TIME", help="until when: RFC 3339, or a duration before now: now")
    for name, metric in THRESHOLDS.items():
        parser.add_argument(f"--{name}", metavar="DURATION", help=f"threshold of {metric}, such as {_EXAMPLES[name]}")
    parser.add_argument(
        "--target", metavar="PERCENT", help=f"of the requests that must meet each threshold: {USUAL_TARGET}"
    )
    parser.add_argument(
        "--by", default=USUAL_BY, metavar="LABELS", help=f"that make up a service without the plugin: {USUAL_BY}"
    )
    parser.add_argument(
        "--gpus-per-replica", metavar="N", help="of every service: as InferenceServices say, else unknown"
    )
    add_options(parser, namespace_help="services of this namespace only; all")
    add_output(
        parser, shape='{"services": [{"service", "limit", "replicas", "saved_replicas", "windows", …}]}', page=True
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the plan; returns the exit code."""
    # They import the client of Prometheus, which takes a second that other commands do not want to pay.
    from flyball_operator.prometheus.client import PrometheusError  # noqa: PLC0415 – see above

    parser: argparse.ArgumentParser = options.parser
    try:
        fleet = _planned(options)
    except (OptionError, TimeRangeError, WrongSettingError) as error:
        parser.error(str(error))
    except (NotHadError, PrometheusError) as error:
        print(f"flyball plan: {error}", file=sys.stderr)
        return NOT_HAD
    print(_shown(fleet, options.output))
    return 0


def _shown(fleet: FleetPlan, output: str) -> str:
    from flyball_operator.cli.plan.report import as_json, as_text  # noqa: PLC0415 – see `run`

    if output == JSON:
        return json.dumps(as_json(fleet), indent=2)
    if output == HTML:
        # It imports the templates' library, for this alone.
        from flyball_operator.cli.plan.page import as_page  # noqa: PLC0415

        return as_page(fleet)
    return as_text(fleet)


def _planned(options: argparse.Namespace) -> FleetPlan:
    from flyball_operator.cli.plan.fleet import Asked, fleet  # noqa: PLC0415 – see `run`
    from flyball_operator.cli.plan.planned import planned  # noqa: PLC0415
    from flyball_operator.cli.plan.report import FleetPlan  # noqa: PLC0415
    from flyball_operator.prometheus.client import PrometheusClient  # noqa: PLC0415

    if (missing := missing_prometheus(options)) is not None:
        raise OptionError(missing)
    given = objectives({name: getattr(options, name) for name in THRESHOLDS}, options.target)
    if given and options.context:
        raise OptionError("--context: no cluster is asked where options name the objectives; leave one of them out")
    span = look_back(options.since, range_end(options.end, time.time()))
    by, gpus_each = labels(options.by), gpus(options.gpus_per_replica)
    settings = prometheus_settings(options)
    services, wrong = ({}, []) if given else _of_cluster(options)
    asked = Asked(
        look_back=span, objectives=given, services=services, by=by, gpus=gpus_each, namespace=options.namespace
    )
    url = str(settings.prometheus_url)
    with closing(PrometheusClient(url, timeout=_TIMEOUT, access=settings.prometheus_access)) as source:
        found = fleet(source, asked)
    _expect_traffic(url, asked, found)
    seen = {past.name for past in found}
    named = [f"{service.metadata.namespace}/{service.metadata.name}" for service in services.values()]
    return FleetPlan(
        services=[planned(past) for past in found],
        start=span.start,
        end=span.end,
        window=span.seconds,
        unseen=[*(name for name in named if name not in seen), *wrong],
    )


def _of_cluster(options: argparse.Namespace) -> tuple[dict[Identity, InferenceService], list[str]]:
    """The services of the cluster, and the names of those whose spec is wrong. Raises `NotHadError`."""

    async def read(api: KubeApi, _namespace: str) -> tuple[dict[Identity, InferenceService], list[str]]:
        from flyball_operator.kube.resources import INFERENCE_SERVICES  # noqa: PLC0415 – see `run`

        found, _ = await api.list(INFERENCE_SERVICES, options.namespace)
        if not found:
            await expect_namespace(api, options.namespace)
        services, wrong = {}, []
        for raw in found:
            try:
                service = parse_service(raw)
            except ParseError:
                wrong.append(f"{raw['metadata']['namespace']}/{raw['metadata']['name']} (its spec is wrong)")
            else:
                services[service.metadata.namespace, service.metadata.uid] = service
        return services, wrong

    try:
        return asyncio.run(reading(options, "flyball-plan", read))
    except NotHadError as error:
        raise NotHadError(f"{error}; no cluster is needed with --ttft, --tpot, --itl or --e2e") from error


def _expect_traffic(url: str, asked: Asked, found: Sequence[ServicePast]) -> None:
    """Raise `NotHadError` where nothing can be planned by."""
    span = f"from {rfc3339(asked.look_back.start)} to {rfc3339(asked.look_back.end)}"
    where = f" in namespace {asked.namespace}" if asked.namespace else ""
    if not found:
        raise NotHadError(
            f"{url} has no metrics of vLLM{where} {span}; accepted: a Prometheus that scrapes port 8000 of vLLM, or "
            "port 8001 of Flyball's plugin, at least twice in a window"
        )
    if not any(past.windows for past in found):
        window = format_duration(asked.look_back.seconds)
        raise NotHadError(
            f"pods were there through no whole window of {window}{where} {span}; accepted: a shorter --since, whose "
            "windows are shorter, or pods that have been there for longer"
        )
    if not sum(past.requests for past in found):
        raise NotHadError(f"no request came{where} {span}: there is nothing to plan by")
