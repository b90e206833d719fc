"""Pictures of `flyball top` and `flyball watch` (docs/operations.md), on a terminal, of recorded services."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from flyball_lab.harness.recorded_api import RecordedServices, recorded_api

#: What is played, by the names of the services. The first is watched.
_SERVICES: Final = {
    "chat": "load-h100-load-steps",
    "code": "load-h100-code-in-bursts",
    "batch": "impossible-objectives",
    "search": "load-h100-retrieval",
    "summaries": "slow-pod",
}
_WATCHED: Final = next(iter(_SERVICES))
_COLUMNS, _ROWS = 80, 24
#: What a frame begins and ends with.
_HOME, _END = "\x1b[H", "\x1b[J"
_REST_OF_LINE: Final = "\x1b[K"
#: A window without fonts from elsewhere; rich fills in the rest.
_WINDOW: Final = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: {char_height}px; \
line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />\
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def draw(folder: Path) -> None:
    """Draw both into this folder."""
    services = RecordedServices.of(_SERVICES, end=datetime.now(UTC))
    with tempfile.TemporaryDirectory() as place, recorded_api(services, Path(place)) as kubeconfig:
        environment = {"KUBECONFIG": str(kubeconfig)}
        frames = services.count(_WATCHED)
        pictures = {
            "top": _frame(["top"], environment, number=1),
            "watch": _frame(["watch", _WATCHED, "--interval", "0.5"], environment, number=frames),
        }
    for name, frame in pictures.items():
        (folder / f"{name}.svg").write_text(_svg(name, frame))


def _frame(arguments: Sequence[str], environment: Mapping[str, str], *, number: int) -> str:
    """What `flyball` with these arguments shows in its so-manieth frame, on a terminal of its own."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    command = [sys.executable, "-m", "flyball_operator.cli", *arguments]
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    with subprocess.Popen(command, stdin=inner, stdout=inner, env=kept | path | dict(environment)) as process:
        os.close(inner)
        shown = b""
        try:
            while shown.count(_END.encode()) < number:
                shown += os.read(outer, 65536)
        finally:
            process.terminate()
            os.close(outer)
    frame = shown.decode().split(_HOME)[number].partition(_END)[0]
    return "\n".join(line.rstrip("\r") for line in frame.replace(_REST_OF_LINE, "").rstrip().split("\n"))


def _svg(name: str, frame: str) -> str:
    """The frame in a window."""
    console = Console(record=True, width=_COLUMNS, file=StringIO(), force_terminal=True, color_system="standard")
    console.print(Text.from_ansi(frame), no_wrap=True, crop=True)
    drawn = console.export_svg(title=f"flyball {name}", theme=MONOKAI, code_format=_WINDOW, unique_id=name)
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"
