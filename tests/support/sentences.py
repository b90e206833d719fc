"""The sentences of a page in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: What is no prose, and what is one word or none of it.
_CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)[^`]+\1")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CELL = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r"([-*]|\d+\.) ")
_END = re.compile(r"(?<=[.!?])[)*]*\s+")


def sentences(page: str) -> Iterator[str]:
    """Each sentence with code as the word `code`. Headings, items of lists and cells of tables end sentences, too."""
    text = _COMMENT.sub("", _CODE_BLOCK.sub("\n\n", page))
    for part in _parts(_LINK.sub(r"\1", _CODE.sub("code", text))):
        yield from filter(None, map(str.strip, _END.split(part)))


def _parts(text: str) -> Iterator[str]:
    """Paragraphs and what stands for one."""
    lines: list[str] = []
    for line in (*map(str.strip, text.splitlines()), ""):
        alone = not line or line.startswith(("|", "#"))
        if alone or _ITEM.match(line):
            yield " ".join(lines)
            lines = []
        if alone:
            yield from _CELL.split(line)
        else:
            lines.append(line)


def words(sentence: str) -> int:
    """How many it has; signs alone are none."""
    return sum(1 for word in sentence.split() if re.search(r"\w", word))
