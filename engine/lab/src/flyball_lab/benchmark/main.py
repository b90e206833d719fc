"""`flyball-bench`: checks everything before the first point, measures, reports."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path

from flyball_engine.contract import ReadBack
from flyball_engine.signing import BadKeyError, Signer
from flyball_lab.benchmark.control import ControlPort, Switch, check_strategies
from flyball_lab.benchmark.endpoint import Endpoint, Served
from flyball_lab.benchmark.errors import BenchError, ControlError, FileError, OptionError
from flyball_lab.benchmark.files import GENERATOR_LOG, PAGE, RESULTS, ResultsFile, read_any
from flyball_lab.benchmark.interrupts import SIGNALS, Interrupts, TerminatedError
from flyball_lab.benchmark.load import GeneratorProcess
from flyball_lab.benchmark.measurements import Measurement
from flyball_lab.benchmark.options import check_loads, parser, workloads_of
from flyball_lab.benchmark.points import Effort, MeasuredEngine, Point, settings_of, sweep
from flyball_lab.benchmark.report import Report, report
from flyball_lab.benchmark.sweep import Rig, measure_all
from flyball_lab.benchmark.table import table
from flyball_lab.benchmark.tokenizer import of_model
from flyball_lab.benchmark.watch import ProgressLines, Sampler


class ExitCode(IntEnum):
    """Exit codes."""

    OK = 0
    """Every point is measured."""
    FAILED = 1
    """Something failed on the way, or the report could not be written; what was measured before is kept."""
    UNUSABLE = 2
    """An option, the endpoint, the control port or a file cannot be used; nothing was measured."""
    INTERRUPTED = 130
    """Ctrl-C; what was measured is kept."""
    TERMINATED = 143
    """The same, by SIGTERM."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parser(run=_run, report=_report).parse_args(arguments)
    try:
        with Interrupts() as options.interrupts:
            code: int = options.command(options)
    except BenchError as error:
        print(f"flyball-bench: {error}", file=sys.stderr)
        return ExitCode.UNUSABLE
    except KeyboardInterrupt as interrupt:
        # Not while points are measured, or there is nothing to add: what was measured is kept anyway.
        print("flyball-bench: interrupted", file=sys.stderr)
        return _code(interrupt)
    return code


def _report(options: argparse.Namespace) -> int:
    found: list[Measurement] = []
    for label, path in options.files:
        points = read_any(path / RESULTS if path.is_dir() else path)
        found += points if label is None else [one.labelled(label) for one in points]
    return _tell(found, options.out)


def _run(options: argparse.Namespace) -> int:
    check_loads(options)
    endpoint = Endpoint(options.url, api_key=os.environ.get("OPENAI_API_KEY"))
    signer = _signer(options)
    served = endpoint.serving(options.model)
    port, read_back = _control(options)
    results = ResultsFile(options.out)
    points = _points(options, served)
    measured = {one.point.key for one in results.load(fresh=options.fresh)}
    rest = [point for point in points if point.key not in measured]
    progress = ProgressLines(sys.stderr, rest)
    if measured:
        progress.say(f"{len(points) - len(rest)} of {len(points)} points are measured already (--fresh measures anew)")
    if not served.salted:
        progress.say("this endpoint takes no cache_salt: a prefix cache may answer later points from earlier ones")
    code = ExitCode.OK
    if rest:
        switch = Switch(port, signer, read_back) if port and signer and read_back and options.strategies else None
        code = _measure(options, rest, _Parts(served, endpoint, port, read_back, switch, results, progress))
    keys = {point.key for point in points}
    told = _tell([one for one in results.load(fresh=False) if one.point.key in keys], options.out)
    return code or told


class _Parts:
    """What was found before the first point."""

    def __init__(
        self,
        served: Served,
        endpoint: Endpoint,
        port: ControlPort | None,
        read_back: ReadBack | None,
        switch: Switch | None,
        results: ResultsFile,
        progress: ProgressLines,
    ) -> None:
        self.served = served
        self.engine = read_back.engine_version if read_back else "version not told"
        self.sample = port.sample if port else endpoint.sample
        self.switch = switch
        self.results = results
        self.progress = progress


def _measure(options: argparse.Namespace, rest: Sequence[Point], parts: _Parts) -> ExitCode:
    """Measure what is missing. Raises a BenchError only while nothing was measured yet."""
    progress, switch, served = parts.progress, parts.switch, parts.served
    tokenizer = options.tokenizer or of_model(served.root, served.model, is_folder=os.path.isdir)
    interrupts: Interrupts = options.interrupts
    with ExitStack() as stack:
        if switch is not None:
            stack.callback(_restore, switch, progress)
            switch.prove()
        progress.say(f"load generator: importing vLLM with {options.python}")
        load = GeneratorProcess.start(options.python, options.out / GENERATOR_LOG, tick=interrupts.check)
        stack.callback(load.close)
        rig = Rig(
            generator=load,
            sampler=Sampler(parts.sample),
            progress=progress,
            results=parts.results,
            switch=switch,
            tokenizer=tokenizer,
            salted=served.salted,
            timeout=options.timeout,
            engine=parts.engine,
            interrupted=interrupts.check,
        )
        try:
            measure_all(rest, rig)
        except BenchError as error:
            progress.say(f"flyball-bench: {error}")
            return ExitCode.FAILED
        except KeyboardInterrupt as interrupt:
            progress.say("interrupted; what was measured is kept, the same command goes on from there")
            return _code(interrupt)
    return ExitCode.OK


def _restore(switch: Switch, progress: ProgressLines) -> None:
    # A second Ctrl-C, or a SIGTERM upon it, would leave the engine with a setting of ours.
    before = {which: signal.signal(which, signal.SIG_IGN) for which in SIGNALS}
    try:
        switch.restore()
    except ControlError as error:
        progress.say(f"flyball-bench: the engine's setpoint could NOT be put back: {error}")
    else:
        progress.say("the engine's setpoint is put back")
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def _signer(options: argparse.Namespace) -> Signer | None:
    for option, value in (("--control", options.control), ("--signing-key", options.signing_key)):
        if options.strategies and value is None:
            raise OptionError(
                "--strategies",
                f"needs {option}: strategies are switched by signed setpoints on the engine's control port; "
                "without, only concurrency is swept",
                "with --control URL and --signing-key FILE",
            )
    if options.signing_key is None:
        return None
    try:
        return Signer.load(options.signing_key)
    except BadKeyError as error:
        raise OptionError("--signing-key", str(error), "a PEM file with an Ed25519 private key") from error


def _control(options: argparse.Namespace) -> tuple[ControlPort | None, ReadBack | None]:
    if options.control is None:
        return None, None
    port = ControlPort(options.control)
    read_back = port.read()
    if options.service is not None and options.service != read_back.service:
        raise OptionError("--service", f"{port.url} belongs to another", read_back.service)
    check_strategies(read_back, options.strategies)
    return port, read_back


def _points(options: argparse.Namespace, served: Served) -> tuple[Point, ...]:
    return sweep(
        MeasuredEngine(endpoint=options.url, model=served.model, label=options.label),
        workloads=workloads_of(options),
        settings=settings_of(options.strategies, batch_size=options.batch_size, max_delay_seconds=options.max_delay),
        concurrencies=options.concurrency,
        rates=options.rate,
        burstiness=options.burstiness,
        effort=Effort(per_client=options.requests, most=options.most_requests, seconds=options.seconds),
    )


def _tell(measurements: Sequence[Measurement], folder: Path | None) -> ExitCode:
    if not measurements:
        print("nothing is measured", file=sys.stderr)
        return ExitCode.OK
    document = report(measurements, generated_at=datetime.now(UTC).isoformat(timespec="seconds"))
    print(table(document), end="")
    if folder is not None:
        try:
            results = ResultsFile(folder)
            written = [results.write(document)]
            if (text := _page(document)) is not None:
                written.append(results.write_page(text))
        except FileError as error:
            print(f"flyball-bench: {error}", file=sys.stderr)
            return ExitCode.FAILED
        print(f"\nwritten: {', '.join(map(str, written))}")
    return ExitCode.OK


def _page(document: Report) -> str | None:
    """None, having said why, in a Python without the libraries of pages: one with vLLM may have neither."""
    try:
        from flyball_lab.benchmark.page import page  # noqa: PLC0415 – see above
    except ModuleNotFoundError as missing:
        print(
            f"flyball-bench: {PAGE} is not written: this Python has no {missing.name}; "
            "pip install 'flyball-lab[pages]' brings it",
            file=sys.stderr,
        )
        return None
    return page(document)


def _code(interrupt: KeyboardInterrupt) -> ExitCode:
    return ExitCode.TERMINATED if isinstance(interrupt, TerminatedError) else ExitCode.INTERRUPTED
