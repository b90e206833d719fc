"""`hack/console --terminal`: the pictures are of the real commands, on terminals of 80 columns."""

from __future__ import annotations

import html
import re
from pathlib import Path

from flyball_lab.tools import terminal_pictures

TEXT = re.compile(r'<text class="\w+-r\d+" x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>')
BLOCKS = set("▁▂▃▄▅▆▇█")


def shown(picture: Path) -> list[str]:
    """The lines of a picture: what is written at one height."""
    lines: dict[float, str] = {}
    for top, text in TEXT.findall(picture.read_text()):
        lines[float(top)] = lines.get(float(top), "") + html.unescape(text)
    return [text.replace("\xa0", " ").rstrip() for _, text in sorted(lines.items())]


def test_both_are_drawn_as_the_commands_show_them(tmp_path: Path) -> None:
    terminal_pictures.draw(tmp_path)
    top, watch = shown(tmp_path / "top.svg"), shown(tmp_path / "watch.svg")
    assert max(map(len, top + watch)) <= 80
    assert top[0] == "5 services, 5 Ready, by name"
    assert {line.split()[1] for line in top[2:]} == {"chat", "code", "batch", "search", "summaries"}
    assert watch[0].startswith("team-a/chat, mode Auto, 1/1 pods Ready, ")
    (load,) = (line for line in watch if line.startswith("load "))
    assert len(BLOCKS & set(load)) > 1, "it moves"
