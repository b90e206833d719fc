"""Pictures of `flyball top` and `flyball watch` (docs/operations.md), on a terminal, of recorded services."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from flyball_lab.harness.recorded_api import RecordedServices, recorded_api
from flyball_lab.harness.terminal import COLUMNS, on_terminal

#: What is played, by the names of the services. The first is watched.
_SERVICES: Final = {
    "chat": "load-h100-load-steps",
    "code": "load-h100-code-in-bursts",
    "batch": "impossible-objectives",
    "search": "load-h100-retrieval",
    "summaries": "slow-pod",
}
_WATCHED: Final = next(iter(_SERVICES))
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
    """What `flyball` with these arguments shows on a terminal in frame `number`, counted from 1."""
    with on_terminal(*arguments, **environment) as terminal:
        terminal.expect(_END, times=number, expecting=f"frame {number}")
    frame = terminal.shown.split(_HOME)[number].partition(_END)[0]
    return "\n".join(line.rstrip("\r") for line in frame.replace(_REST_OF_LINE, "").rstrip().split("\n"))


def _svg(name: str, frame: str) -> str:
    """The frame in a window."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="standard")
    console.print(Text.from_ansi(frame), no_wrap=True, crop=True)
    drawn = console.export_svg(title=f"flyball {name}", theme=MONOKAI, code_format=_WINDOW, unique_id=name)
    return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"
