"""Starts vLLM with several API servers, as `vllm serve` does; run as the engine's main process by the launcher.

VLLM's own command asks for the version of a distribution named vllm, and a build of another name has none.
"""

from __future__ import annotations

import os

from flyball_engine.vllm.arguments import build_parser


def main() -> None:
    """Serve until told to end."""
    from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: PLC0415 – as all of vLLM

    # As vLLM's commands do: a fork of this process would inherit the threads of torch.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    arguments = build_parser().parse_args()
    command = ServeSubcommand()
    command.validate(arguments)
    command.cmd(arguments)


# The processes that it starts import this module, too.
if __name__ == "__main__":
    main()
