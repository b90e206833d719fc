"""Options of `flyball-bench`, and what is accepted for each."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flyball_engine.arguments import real
from flyball_engine.knobs import LONGEST_DELAY_SECONDS, StrategyType
from flyball_lab.benchmark.errors import OptionError
from flyball_lab.benchmark.points import MIXED_SPREAD, Effort, PromptMix, WorkloadName
from flyball_lab.benchmark.tokenizer import ACCEPTED as TOKENIZERS

#: Of one sweep; what is beyond would be measured for days.
MOST_CLIENTS: Final = 4096
MOST_LOADS: Final = 32
#: Requests per second.
LEAST_RATE, MOST_RATE = 0.001, 10_000.0
BURSTINESS: Final = (0.01, 100.0)
#: Requests of a point of an open loop: fewer have no 99th percentile worth the name, more take too much memory.
REQUESTS_AT_A_RATE: Final = (8, 100_000)
MOST_TOKENS: Final = 1_000_000

EXAMPLE: Final = """\
example, an engine started beside a control port, vLLM in another environment than this tool:

  flyball-bench run --url http://127.0.0.1:8000 --tokenizer Qwen/Qwen3-8B --concurrency 1..64 \\
      --control http://127.0.0.1:8001 --signing-key key.pem --strategies all \\
      --python /opt/vllm/bin/python --out exercise
  flyball-bench run --url http://127.0.0.1:8000 --tokenizer Qwen/Qwen3-8B --rate 2,4,8 --burstiness 0.5 --out arrivals
  flyball-bench report exercise other-engine --out both

Run again, it goes on where it was interrupted. The API key, if one is needed, is taken from OPENAI_API_KEY.
exit codes: 0 measured, 1 something failed on the way, 2 an option or the endpoint cannot be used, 130 interrupted
(what was measured is kept, and reported)."""


def parser(*, run: Callable[..., int], report: Callable[..., int]) -> argparse.ArgumentParser:
    """The parser; each command calls its function."""
    top = argparse.ArgumentParser(
        prog="flyball-bench",
        description="Exercise an OpenAI-compatible endpoint: load, batching strategies, where the knee is.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="command")
    running = commands.add_parser(
        "run", help="measure", epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _endpoint(running)
    _sweep(running)
    _workload(running)
    _output(running)
    running.set_defaults(command=run)
    reporting = commands.add_parser(
        "report", help="merge the results of several runs into one table and page; labels tell them apart"
    )
    reporting.add_argument(
        "files",
        nargs="+",
        type=labelled,
        metavar="[LABEL=]FILE",
        help="a results.jsonl, or its folder; guidellm's benchmarks.json; aiperf's profile_export_aiperf.json. LABEL "
        "is what its points are called in place of their own",
    )
    reporting.add_argument("--out", type=Path, metavar="DIR", help="write report.json and report.html there, too")
    reporting.set_defaults(command=report)
    return top


def _endpoint(options: argparse.ArgumentParser) -> None:
    group = options.add_argument_group("endpoint")
    group.add_argument("--url", required=True, type=url, help="of the OpenAI API, without /v1: http://127.0.0.1:8000")
    group.add_argument("--model", metavar="NAME", help="as the endpoint serves it; its only one")
    group.add_argument(
        "--tokenizer",
        type=tokenizer,
        metavar="NAME",
        help="folder or repository; what the endpoint says, else the model",
    )
    group.add_argument("--control", type=url, metavar="URL", help="of the engine's control port: http://127.0.0.1:8001")
    group.add_argument(
        "--signing-key", type=Path, metavar="FILE", help="PEM, Ed25519, private: setpoints are signed by it"
    )
    group.add_argument("--service", metavar="UID", help="the engine must belong to this one; the one it says")
    group.add_argument(
        "--python",
        default=sys.executable,
        metavar="PROGRAM",
        help="the interpreter that has vLLM, whose load generator is used; this one",
    )


def _sweep(options: argparse.ArgumentParser) -> None:
    group = options.add_argument_group("sweep")
    group.add_argument(
        "--concurrency",
        type=concurrencies,
        metavar="LIST",
        help="closed loop: clients, each with one request at a time: 1,16,64 or 1..64 (1, 2, 4 ... 64); 1..64 "
        "without --rate",
    )
    group.add_argument(
        "--rate",
        type=rates,
        default=(),
        metavar="LIST",
        help="open loop: requests per second that arrive, however many are answered: 2 or 0.5,1,2. With --concurrency "
        "both loops are measured, one after the other",
    )
    group.add_argument(
        "--burstiness",
        type=number(*BURSTINESS),
        metavar="B",
        help="of --rate: shape of the gamma distribution of times between arrivals. 1 is Poisson, below it requests "
        "come in bursts, above it more evenly; 1",
    )
    group.add_argument(
        "--seconds",
        type=number(1.0, 86_400.0),
        metavar="S",
        help=f"of --rate: seconds in which requests arrive; {Effort().seconds:g}",
    )
    group.add_argument(
        "--strategies",
        type=strategies,
        default=(),
        metavar="LIST",
        help=f"of {', '.join(StrategyType)}, or all; needs --control and --signing-key. Else the engine is left alone",
    )
    group.add_argument(
        "--batch-size",
        type=whole(1, MOST_CLIENTS),
        metavar="N",
        help="requests that run together at most under every strategy, divided among the engine's cores; as many as "
        "there are clients, or with --rate as the engine can",
    )
    group.add_argument(
        "--max-delay",
        type=number(0.0, LONGEST_DELAY_SECONDS),
        default=0.05,
        metavar="S",
        help="seconds Dynamic waits for a batch to fill; %(default)s",
    )
    group.add_argument(
        "--requests",
        type=whole(1, 1000),
        default=4,
        metavar="N",
        help="of each client in a point of the closed loop; %(default)s",
    )
    group.add_argument(
        "--most-requests",
        type=whole(1, 100_000),
        default=Effort().most,
        metavar="N",
        help="of a point of the closed loop, however many clients; %(default)s",
    )
    group.add_argument(
        "--timeout",
        type=number(1.0, 86_400.0),
        default=900.0,
        metavar="S",
        help="seconds a point may take; %(default)s",
    )


def _workload(options: argparse.ArgumentParser) -> None:
    group = options.add_argument_group("workload")
    group.add_argument(
        "--workloads",
        type=workload_names,
        default=tuple(WorkloadName),
        metavar="LIST",
        help="of uniform (fixed lengths), mixed (spread lengths); both",
    )
    tokens = whole(1, MOST_TOKENS)
    group.add_argument("--input-tokens", type=tokens, default=256, metavar="N", help="of a prompt; %(default)s")
    group.add_argument("--output-tokens", type=tokens, default=64, metavar="N", help="of an answer; %(default)s")
    group.add_argument(
        "--spread",
        type=number(0.0, 0.99),
        default=MIXED_SPREAD,
        metavar="R",
        help="mixed lengths are drawn from mean × (1 ± R); %(default)s",
    )
    group.add_argument(
        "--shared-prefix-tokens",
        type=whole(0, MOST_TOKENS),
        default=0,
        metavar="N",
        help="first in every prompt of a point, the same ones; %(default)s",
    )
    group.add_argument("--seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="%(default)s")


def _output(options: argparse.ArgumentParser) -> None:
    group = options.add_argument_group("results")
    group.add_argument("--out", type=Path, default=Path("flyball-bench"), metavar="DIR", help="%(default)s")
    group.add_argument("--label", default="", metavar="TEXT", help="what this run is called where several are merged")
    group.add_argument("--fresh", action="store_true", help="measure anew; the results so far are put aside")


def check_loads(options: argparse.Namespace) -> None:
    """Set what is not told of the loops; raise OptionError where what is told does not fit together."""
    if not options.rate:
        for option, value in (("--burstiness", options.burstiness), ("--seconds", options.seconds)):
            if value is not None:
                raise OptionError(option, "is of an open loop, and no --rate is named", "with --rate")
    options.burstiness = options.burstiness or 1.0
    options.seconds = options.seconds or Effort().seconds
    if options.concurrency is None:
        options.concurrency = () if options.rate else concurrencies("1..64")
    least, most = REQUESTS_AT_A_RATE
    for rate in options.rate:
        requests = Effort(seconds=options.seconds).arrivals(rate)
        if not least <= requests <= most:
            raise OptionError(
                "--rate",
                f"at {rate:g}/s {requests} requests arrive in {options.seconds:g} s",
                f"from {least} to {most} requests; see --seconds",
            )
    if options.rate and options.seconds >= options.timeout:
        raise OptionError(
            "--seconds",
            f"{options.seconds:g} s leave no time for the answers",
            f"less than --timeout, {options.timeout:g}",
        )


def workloads_of(options: argparse.Namespace) -> tuple[PromptMix, ...]:
    """The workloads that the options name."""
    return tuple(
        PromptMix(
            name=name,
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            spread=options.spread if name is WorkloadName.MIXED else 0.0,
            shared_prefix_tokens=options.shared_prefix_tokens,
            seed=options.seed,
        )
        for name in options.workloads
    )


def url(text: str) -> str:
    """Scheme and host, without a path."""
    parts = urlsplit(text)
    path = parts.path.rstrip("/").removesuffix("/v1")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(f"{text!r} is no address; accepted: such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{path}"


def labelled(text: str) -> tuple[str | None, Path]:
    """A path, or a label and a path."""
    label, equals, path = text.partition("=")
    return (None, Path(text)) if not equals or Path(text).exists() else (label, Path(path))


def tokenizer(text: str) -> str:
    """What looks like a path is one; anything else may be a name on the Hub."""
    if text.startswith(("/", ".", "~")) and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder; accepted: {TOKENIZERS}")
    return text


def concurrencies(text: str) -> tuple[int, ...]:
    """`1,16,64`, or `1..64`: the powers of two from the one to the other, and the other."""
    accepted = f"accepted: 1,16,64 or 1..64, numbers from 1 to {MOST_CLIENTS}"
    if ends := re.fullmatch(r"([0-9]{1,6})\.\.([0-9]{1,6})", text):
        first, last = int(ends[1]), int(ends[2])
        values = {first, last} | {2**power for power in range(20) if first < 2**power < last}
        values = values if first <= last else set()
    elif re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text):
        values = set(map(int, text.split(",")))
    else:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers; {accepted}")
    if not values or min(values) < 1 or max(values) > MOST_CLIENTS or len(values) > MOST_LOADS:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; {accepted}, rising, {MOST_LOADS} at most")
    return tuple(sorted(values))


def rates(text: str) -> tuple[float, ...]:
    """`2`, or `0.5,1,2`: requests per second."""
    accepted = f"accepted: 2 or 0.5,1,2, requests per second from {LEAST_RATE:g} to {MOST_RATE:g}, {MOST_LOADS} at most"
    try:
        values = set(map(float, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers; {accepted}") from None
    if not all(LEAST_RATE <= value <= MOST_RATE for value in values) or len(values) > MOST_LOADS:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; {accepted}")
    return tuple(sorted(values))


def strategies(text: str) -> tuple[StrategyType, ...]:
    """Names of strategies, or `all`."""
    if text == "all":
        return tuple(StrategyType)
    return tuple(StrategyType(name) for name in _names(text, [one.value for one in StrategyType], "all, or a list of "))


def workload_names(text: str) -> tuple[WorkloadName, ...]:
    """Names of workloads."""
    return tuple(WorkloadName(name) for name in _names(text, [one.value for one in WorkloadName], "a list of "))


def _names(text: str, accepted: list[str], how: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in accepted:
            raise argparse.ArgumentTypeError(f"{name!r} is unknown; accepted: {how}{', '.join(accepted)}")
    return names


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number in a range."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r}; accepted: whole numbers from {least} to {most}")
        return int(text)

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """A number in a range."""
    return real(lambda value: least <= value <= most, f"numbers from {least:g} to {most:g}")
