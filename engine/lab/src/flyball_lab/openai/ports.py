"""The two ports of an engine of our own.

Whether it can have them is seen before it spends its time on starting. How long they stay when it ends is an option.
"""

from __future__ import annotations

import argparse
import errno
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from flyball_engine.arguments import whole
from flyball_engine.contract import Env
from flyball_engine.control.server import PortError, bind, control_port

#: Exit code of a server that Ctrl-C ended, as shells have it.
INTERRUPTED: Final = 130


def add_drain_timeout(parser: argparse.ArgumentParser, default: int) -> None:
    """An option for the seconds that open answers have when the server is told to end."""
    parser.add_argument(
        "--drain-timeout",
        type=whole(1, 86_400),
        default=default,
        metavar="S",
        help="seconds for open answers after SIGTERM; %(default)s",
    )


def check_ports(host: str, port: int, environment: Mapping[str, str]) -> None:
    """Take the API's `port` and the control port, and let them go again. Raises PortError."""
    control = control_port(environment)
    if port == control:
        raise PortError(f"--port {port} is the control port, too; accepted: another, or another {Env.CONTROL_PORT}")
    with ExitStack() as held:
        for name, number in ((f"--port {port}", port), (f"{Env.CONTROL_PORT} {control}", control)):
            held.callback(_taken(name, host, number).close)


def _taken(name: str, host: str, number: int) -> socket.socket:
    try:
        return bind(host, number)
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise PortError(f"{name}: {error.strerror}; accepted: a free port") from error
        raise PortError(f"--host {host}: {error.strerror}; accepted: an address of this machine") from error
    except UnicodeError as error:
        raise PortError(f"--host {host!r:.40} is no address; accepted: an address of this machine") from error
