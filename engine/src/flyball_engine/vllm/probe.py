"""What the installed vLLM lets Flyball do: `python -m flyball_engine.vllm.probe` writes a `support.Support` as JSON.

It starts no engine. What a particular start adds (chunked prefill off, images in one piece) is in the read-back.
"""

from __future__ import annotations

import logging
import os

from flyball_engine.launching import OWNED_ARGUMENTS
from flyball_engine.vllm.arguments import Arguments, build_parser
from flyball_engine.vllm.attributes import look
from flyball_engine.vllm.compat import EVERYTHING
from flyball_engine.vllm.support import Support, support


def probe() -> Support:
    """The report on the installed vLLM. Raises ImportError if there is none, or its parser is nowhere we know."""
    from vllm.version import __version__  # noqa: PLC0415  only here is vLLM needed

    known = Arguments(build_parser()).names()
    dropped = [f"--{name.replace('_', '-')}" for name in OWNED_ARGUMENTS if name not in known]
    return support(str(__version__), {used.name: look(used) for used in EVERYTHING}, dropped)


def main() -> None:
    """Writes the report to stdout, alone; what vLLM prints goes to stderr."""
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.WARNING)
    with report:
        report.write(probe().model_dump_json(indent=2) + "\n")


if __name__ == "__main__":
    main()
