"""`flyball replay`: what the law would have done on past signals, asked of Prometheus or read from a recording.

The operator's own queries are asked one time after the other, each for a time of the past, and the operator's own law
decides on each. Nothing is written but the recording that is asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flyball_operator.cli.cluster import JSON, NotHadError, add_output
from flyball_operator.cli.output import INTERRUPTED, NOT_HAD, WRONG_INPUT
from flyball_operator.cli.prometheus_options import (
    WrongSettingError,
    add_prometheus,
    missing_prometheus,
    prometheus_settings,
)
from flyball_operator.cli.replay_report import as_json, as_text, number
from flyball_operator.cli.replayed import Replay
from flyball_operator.cli.services import (
    WrongServiceError,
    add_options,
    contradiction,
    raw_service,
)
from flyball_operator.cli.time_range import MOST_TICKS, TimeRangeError, time_range

if TYPE_CHECKING:
    from flyball_operator.cli.past import Past

_PROGRESS_SECONDS: Final = 5.0


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "replay",
        help="what the law would have done on past signals",
        description="Asks Prometheus what the operator would have asked at past times, and runs the law over the "
        "answers. It shows each change it would have made, why, what it expected, and what was observed. With an "
        "edited manifest it shows what other objectives or bounds would have done. Nothing is changed anywhere. It "
        "needs get of inferenceservices.serving.flyball.dev, unless --file or --recorded is given. Exit code 1: there "
        "is no such service, or Prometheus cannot be asked.",
    )
    add_options(
        parser,
        file_help="the object in this file, as `kubectl get -o yaml` prints it, edited or not; -: standard input",
    )
    add_prometheus(parser)
    parser.add_argument(
        "--from", dest="start", metavar="TIME", help="RFC 3339, or a duration before now: 1h before --to"
    )
    parser.add_argument("--to", dest="end", metavar="TIME", help="the same: now")
    parser.add_argument(
        "--step", metavar="DURATION", help=f"between ticks, {MOST_TICKS:,} at most: 5s, as the operator"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="begin with the model and the limits of the object's status, which may have been learnt from the very "
        "span; without it, as a service that was never tuned",
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the answers in a new file")
    parser.add_argument(
        "--recorded",
        type=Path,
        metavar="FILE",
        help="take the answers, and without --file the service, from such a file",
    )
    add_output(parser, shape="the same and each tick, units in the names")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print what would have been done; returns the exit code."""
    _refuse_contradictions(options)
    # It imports the client of Prometheus, which takes a second that other commands do not want to pay.
    from flyball_operator.cli.past import PastError, WrongRecordingError  # noqa: PLC0415 – see above

    try:
        with closing(_past(options)) as past:
            return _replay(past, options)
    except (TimeRangeError, WrongSettingError) as error:
        parser: argparse.ArgumentParser = options.parser
        parser.error(str(error))
    except (WrongServiceError, WrongRecordingError) as error:
        print(f"flyball replay: {error}", file=sys.stderr)
        return WRONG_INPUT
    except (NotHadError, PastError) as error:
        print(f"flyball replay: {error}", file=sys.stderr)
        return NOT_HAD


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """Exits with a usage line where options contradict each other."""
    refused = contradiction(options) or _unclear(options)
    if refused is not None:
        options.parser.error(refused)


def _unclear(options: argparse.Namespace) -> str | None:
    """Why it is not clear of what to ask whom, None if it is."""
    if options.name is not None and options.file is not None:
        return "give the NAME of a service, or a file with --file"
    if options.recorded is not None:
        if options.name is None and (options.namespace or options.context):
            return "--recorded asks no cluster without a NAME: it goes with neither --namespace nor --context then"
        names = {"prometheus": "prometheus", "start": "from", "end": "to", "step": "step", "record": "record"}
        given = ", ".join(f"--{name}" for field, name in names.items() if getattr(options, field) is not None)
        return f"--recorded asks no Prometheus and has its own times: it does not go with {given}" if given else None
    if options.name is None and options.file is None:
        return "give the NAME of a service, a file with --file, or a recording with --recorded"
    return missing_prometheus(options)


def _past(options: argparse.Namespace) -> Past:
    from flyball_operator.cli import past  # noqa: PLC0415 – see `run`

    named = options.name is not None or options.file is not None
    if options.recorded is not None:
        return past.recorded(options.recorded, raw_service(options, asking="flyball-replay") if named else None)
    # What is typed is looked at before anybody is asked.
    settings, times = prometheus_settings(options), time_range(options.start, options.end, options.step, time.time())
    return past.asked(
        str(settings.prometheus_url),
        times,
        raw_service(options, asking="flyball-replay"),
        record=options.record,
        access=settings.prometheus_access,
    )


def _replay(past: Past, options: argparse.Namespace) -> int:
    """Go through the past, and print what there is of it when it ends, however it does."""
    from flyball_operator.cli.past import PastError, WrongRecordingError  # noqa: PLC0415 – see `run`

    replay, failure, code = Replay(past.service, resume=options.resume), "", 0
    try:
        _go(replay, past)
    except KeyboardInterrupt:
        failure, code = "interrupted", INTERRUPTED
    except PastError as error:
        failure, code = str(error), WRONG_INPUT if isinstance(error, WrongRecordingError) else NOT_HAD
    if failure and replay.ticks:
        failure += f" after {number(len(replay.ticks), 'tick')}"
    if replay.scraped:
        if options.output == JSON:
            print(json.dumps(as_json(replay, step=past.step), indent=2))
        else:
            print(as_text(replay, step=past.step))
    elif not failure:
        meta = past.service.metadata
        failure, code = f"no samples of {meta.namespace}/{meta.name} with the UID {meta.uid} in this span", NOT_HAD
        failure += "; accepted: a time at which Prometheus scraped its control ports, and that Prometheus"
    if failure:
        print(f"flyball replay: {failure}", file=sys.stderr)
    return code


def _go(replay: Replay, past: Past) -> None:
    reported_at = time.monotonic()
    for at, observation, ran in past.ticks():
        replay.tick(observation, ran, at)
        if time.monotonic() - reported_at >= _PROGRESS_SECONDS:
            reported_at = time.monotonic()
            of = f" of {past.count:,}" if past.count is not None else ""
            print(f"flyball replay: {len(replay.ticks):,}{of} ticks", file=sys.stderr, flush=True)
