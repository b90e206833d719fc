"""The padded engine from the command line."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flyball_engine.arguments import real, whole
from flyball_engine.contract import API_PORT, Env
from flyball_engine.control.server import PortError
from flyball_engine.knobs import LONGEST_DELAY_SECONDS, Dynamic
from flyball_lab.openai.ports import INTERRUPTED, add_drain_timeout, check_ports
from flyball_lab.padded.engine import PaddedConfig, Runner
from flyball_lab.padded.server import ServerConfig, serve_forever

_ENVIRONMENT: Final = (Env.CONTROL_PORT, Env.SERVICE_UID, Env.PUBLIC_KEY, Env.PUBLIC_KEYS_FILE)
#: Files of a tokeniser, of which each family has others.
_TOKENISERS: Final = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")
_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")

_delay: Final = real(
    lambda seconds: 0 <= seconds <= LONGEST_DELAY_SECONDS, f"seconds from 0 to {LONGEST_DELAY_SECONDS:g}"
)

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.batch_size > parsed.max_num_seqs:
        parser.error(f"--batch-size {parsed.batch_size}: accepted: at most --max-num-seqs, {parsed.max_num_seqs}")
    logging.basicConfig(level=logging.INFO)
    config = ServerConfig(
        engine=PaddedConfig(
            max_num_seqs=parsed.max_num_seqs,
            start=Dynamic(batch_size=parsed.batch_size, max_delay_seconds=parsed.max_delay),
            max_queue=parsed.max_queue,
        ),
        host=parsed.host,
        port=parsed.port,
        model=parsed.served_model_name or parsed.model.name,
        drain_seconds=parsed.drain_timeout,
    )
    try:
        serve_forever(_loaded(parser, parsed), config)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _loaded(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> Runner:
    """The model, or the end with a reason."""
    if not parsed.model.is_dir():
        parser.error(f"--model {parsed.model}: accepted: a folder with a model and its tokeniser")
    if lacking := _lacking(parsed.model):
        parser.error(f"--model {parsed.model}: no {lacking} in it; accepted: a folder with a model and its tokeniser")
    try:
        check_ports(parsed.host, parsed.port, os.environ)
    except PortError as error:
        parser.error(str(error))
    _log.info("Flyball: loading %s", parsed.model)
    try:
        from flyball_lab.padded import generator  # noqa: PLC0415 – help and errors need no torch
    except ImportError as error:
        parser.error(f"this Python has no torch or transformers: {error}")
    device = parsed.device or generator.default_device()
    try:
        return generator.CausalModel(
            str(parsed.model), dtype=parsed.dtype, device=device, max_model_len=parsed.max_model_len
        )
    except generator.ModelError as error:
        parser.error(f"--model: {error}")


def _lacking(folder: Path) -> str:
    """What a model's folder has and this one has not, if anything."""
    has_config = (folder / "config.json").is_file()
    has_tokeniser = any(True for pattern in _TOKENISERS for _ in folder.glob(pattern))
    return " or ".join(name for name, there in (("config.json", has_config), ("tokeniser", has_tokeniser)) if not there)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flyball_lab.padded",
        description="Padded batches with plain transformers, behind the OpenAI API and Flyball's control port.",
    )
    commands = parser.add_subparsers(required=True)
    serve = commands.add_parser("serve", help="load a model and serve it", description="Load a model and serve it.")
    serve.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of a causal language model")
    serve.add_argument("--served-model-name", metavar="NAME", help="the folder's name")
    serve.add_argument("--host", default="127.0.0.1", help="of both ports; %(default)s")
    serve.add_argument("--port", type=whole(1, 65_535), default=API_PORT, help="of the API; %(default)s")
    serve.add_argument(
        "--batch-size", type=whole(1), default=8, metavar="N", help="sequences of a batch until told; %(default)s"
    )
    serve.add_argument(
        "--max-delay",
        type=_delay,
        default=0.05,
        metavar="S",
        help="seconds a batch waits to be full until told; %(default)s",
    )
    serve.add_argument(
        "--max-num-seqs", type=whole(1), default=32, metavar="N", help="most a batch may ever have; %(default)s"
    )
    serve.add_argument(
        "--max-queue", type=whole(1), default=256, metavar="N", help="sequences that may wait; %(default)s"
    )
    serve.add_argument("--max-model-len", type=whole(1), metavar="N", help="tokens of prompt and answer; the model's")
    serve.add_argument(
        "--dtype", choices=_DTYPES, default="auto", help="of the weights; %(default)s is the model's own"
    )
    serve.add_argument("--device", metavar="NAME", help="as torch names it; a GPU if there is one")
    add_drain_timeout(serve, 60)
    serve.epilog = f"The control port, its service and its key come from {', '.join(_ENVIRONMENT)}, as in a pod."
    return parser
