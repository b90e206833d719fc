"""`flyball size`: what a model needs of a device, from its config.json. Reads one file, prints, and nothing else."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

from flyball_lab.sizing.config import AUTO, DTYPES
from flyball_lab.sizing.devices import GPUS, MIB, Device, gpu, plain
from flyball_lab.sizing.errors import ConfigError, RequestError, SizingError
from flyball_lab.sizing.names import REMOVED, SETTINGS
from flyball_lab.sizing.packing import NAMED
from flyball_lab.sizing.presets import PRESETS
from flyball_lab.sizing.request import KV_DTYPES, USUAL_CONTEXT, USUAL_UTILIZATION, SizingRequest
from flyball_lab.sizing.size import size
from flyball_operator.cli.cluster import JSON, add_output
from flyball_operator.cli.output import WRONG_INPUT
from flyball_operator.cli.size_report import as_json, as_text, names_as_text

#: A config.json has some kilobytes; what is larger is another file.
_MOST_BYTES: Final = 10_000_000
_AMOUNT: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s?([KMGT]i?B?|B)?")


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "size",
        help="what a model needs of a GPU, and what to start it with",
        description="Weights, KV cache, largest batch, cost of a step and start ceilings, from a model's config.json.",
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a config.json of Hugging Face, or its folder")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", metavar="NAME", help=", ".join(device.name for device in GPUS.values()))
    device.add_argument("--memory", metavar="80GiB", help="of each device instead: sizes only, no cost of a step")
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="devices that share each layer")
    parser.add_argument(
        "--context", type=int, metavar="N", help=f"tokens of prompt and answer together; {USUAL_CONTEXT} if it can"
    )
    parser.add_argument("--dtype", default=AUTO, help=_choices(DTYPES, "numbers that are not packed"))
    parser.add_argument("--kv-dtype", default=AUTO, help=_choices(KV_DTYPES, "numbers of the cache"))
    parser.add_argument("--weights", default=AUTO, help=_choices(NAMED, "packing of the weights"))
    parser.add_argument(
        "--utilization",
        type=float,
        default=USUAL_UTILIZATION,
        help=f"share of the memory the engine may use: {USUAL_UTILIZATION:g}",
    )
    parser.add_argument("--preset", default="throughput", help=", ".join(PRESETS))
    add_output(parser, shape="the same, units in the names")
    parser.add_argument("--names", action="store_true", help="what each setting is called in which engine, and no more")
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the sizes, or the names; returns the exit code."""
    if options.names:
        document = {"settings": [asdict(row) for row in SETTINGS], "removed": [asdict(row) for row in REMOVED]}
        print(json.dumps(document, indent=2) if options.output == JSON else names_as_text())
        return 0
    try:
        sizing = size(_config(options.config), _device(options), _request(options))
    except SizingError as error:
        # Options are named as they are typed, fields as they stand in the file.
        where = "" if isinstance(error, ConfigError) else "--"
        print(f"flyball size: {where}{error}", file=sys.stderr)
        return WRONG_INPUT
    print(json.dumps(as_json(sizing), indent=2) if options.output == JSON else as_text(sizing))
    return 0


def _choices(values: Mapping[str, object], what: str) -> str:
    return f"{what}: {AUTO}, {', '.join(values)}"


def _config(argument: str | None) -> Any:
    if argument is None:
        raise ConfigError("CONFIG", "is missing", "a config.json of Hugging Face, or its folder")
    path = Path(argument)
    accepted = "a config.json of Hugging Face, or its folder"
    try:
        path = path / "config.json" if path.is_dir() else path
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(str(path), "is larger than any config.json", accepted)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), error.strerror or "cannot be read", accepted) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not JSON ({str(error)[:80]})", accepted) from error


def _device(options: argparse.Namespace) -> Device:
    if options.gpu is not None:
        return gpu(options.gpu)
    if options.memory is None:
        raise RequestError("gpu", "or --memory is missing", ", ".join(device.name for device in GPUS.values()))
    return plain(_bytes(options.memory))


def _bytes(text: str) -> int:
    """Of an amount such as 80GiB, 80Gi, 80GB, 80G or plain bytes."""
    accepted = "an amount such as 80GiB, 80GB or 85899345920"
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise RequestError("memory", f"is {text!r:.60}", accepted)
    amount = int(parse_quantity(match[1] + (match[2] or "").removesuffix("B")))  # type: ignore[no-untyped-call]
    if match[2] is None and amount < MIB:
        raise RequestError("memory", f"is {text!r:.60}, which are {amount} bytes without a unit", accepted)
    return amount


def _request(options: argparse.Namespace) -> SizingRequest:
    return SizingRequest(
        tensor_parallel=options.tensor_parallel,
        context=options.context,
        utilization=options.utilization,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        weights=options.weights,
        preset=options.preset,
    )
