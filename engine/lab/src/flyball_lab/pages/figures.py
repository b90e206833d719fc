"""Tables of measured figures: read from docs/figures, and rendered into the pages of the documentation.

A file holds one table and what is known of its run. A page shows it between `<!-- figures: NAME -->` and
`<!-- end -->`, where NAME is the file's without `.json`.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from flyball_engine.figures import figure

#: Where the files are, under the root of the checkout.
FOLDER: Final = "docs/figures"
#: What a block on a page begins and ends with.
_BLOCK: Final = re.compile(r"<!-- figures: (?P<name>\S+) -->\n.*?<!-- end -->", re.DOTALL)
_MARKER: Final = "<!-- figures:"
#: What names a place on a machine, or a host.
_PLACE: Final = re.compile(r"(^|[\s`'\"=])(~?/[\w.-]+/|~/)|://")


class FiguresError(Exception):
    """A file or a page is wrong; the message names it, and the field."""


def _one_line(text: str) -> str:
    if "\n" in text or _PLACE.search(text):
        raise ValueError("must be one line without a path or an address")
    return text


#: A line of text, with Markdown inside it.
Text = Annotated[StrictStr, AfterValidator(_one_line)]
#: None is a figure that was not measured.
Cell = Annotated[float, Field(strict=True, allow_inf_nan=False)] | StrictInt | Text | None


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Measured(_Model):
    """What is known of the run: None is unknown.

    `command` with its options. `date` of the run. `sources`: version and commit. `machine` in words. `note`: what else
    a reader must know, one or more sentences without the last full stop.
    """

    command: Text | None
    date: dt.date | None
    sources: Text | None
    machine: Text | None
    note: Text | None

    def caption(self) -> str:
        """Short sentences for readers; empty if nothing is known."""
        command = None if self.command is None else f"by `{self.command}`"
        day = None if self.date is None else f"on {self.date.day} {self.date:%B %Y}"
        measured = " ".join(filter(None, ("Measured" if command or day else None, command, day)))
        machine = None if self.machine is None else f"Machine: {self.machine}"
        sources = None if self.sources is None else f"Sources: {self.sources}"
        said = ". ".join(filter(None, (measured, machine, sources, self.note)))
        return f"*{said}.*" if said else ""


class Column(_Model):
    """A column: its head, and how its numbers are written.

    `decimals`: digits behind the point; `digits`: significant digits. Without both, a number is written as it is.
    """

    title: Text
    decimals: int | None = None
    digits: int | None = None

    @property
    def of_numbers(self) -> bool:
        """Whether it is aligned to the right."""
        return self.decimals is not None or self.digits is not None

    def text(self, cell: float | int | str | None) -> str:
        """A cell as the page shows it."""
        if cell is None:
            return ""
        if isinstance(cell, str):
            return cell.replace("|", r"\|")
        if self.decimals is not None:
            return f"{cell:.{self.decimals}f}"
        return f"{cell:g}" if self.digits is None else figure(cell, self.digits)


class FigureTable(_Model):
    """Columns, and rows of as many cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {number} has {len(row)} cells, there are {len(self.columns)} columns")
        return self

    def markdown(self) -> str:
        """The table, ends with a newline."""
        lines = [
            [column.title for column in self.columns],
            ["---:" if one.of_numbers else "---" for one in self.columns],
        ]
        lines += [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
        return "".join(f"|{'|'.join(line)}|\n" for line in lines)


class FigureFile(_Model):
    """What a file of docs/figures holds."""

    measured: Measured
    table: FigureTable

    def markdown(self) -> str:
        """Table and caption; ends with a newline."""
        caption = self.measured.caption()
        return self.table.markdown() + (f"\n{caption}\n" if caption else "")

    def text(self) -> str:
        """The file's text: a row of the table is a line."""
        columns = [one.model_dump(exclude_none=True) for one in self.table.columns]
        measured = json.dumps(self.measured.model_dump(mode="json"), indent=1, ensure_ascii=False)
        lists = ",\n".join(
            f'  "{name}": [\n' + ",\n".join(f"   {json.dumps(one, ensure_ascii=False)}" for one in of) + "\n  ]"
            for name, of in (("columns", columns), ("rows", self.table.rows))
        )
        return "{\n" + f' "measured": {measured.replace(chr(10), chr(10) + " ")},\n "table": {{\n{lists}\n }}\n}}\n'


def read(path: Path) -> FigureFile:
    """A file; raises FiguresError, which names the first wrong field."""
    try:
        return FigureFile.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise FiguresError(f"{path.name}: {where}: {first['msg']}") from error


def read_all(folder: Path) -> dict[str, FigureFile]:
    """By name the files of a folder; raises FiguresError."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def shown(text: str) -> list[str]:
    """Names of the tables that a page shows. Raises FiguresError for a marker without an end."""
    names = [block["name"] for block in _BLOCK.finditer(text)]
    if len(names) != text.count(_MARKER):
        raise FiguresError(
            "a marker of figures must be a line of its own, and needs `<!-- end -->` before the next one"
        )
    return names


def rendered(text: str, files: Mapping[str, FigureFile]) -> str:
    """A page with its tables written anew; raises FiguresError for a table that has no file."""
    if missing := sorted(set(shown(text)) - set(files)):
        raise FiguresError(f"no file {', '.join(f'{FOLDER}/{name}.json' for name in missing)}")
    return _BLOCK.sub(lambda block: _block(block["name"], files[block["name"]]), text)


def _block(name: str, file: FigureFile) -> str:
    return f"<!-- figures: {name} -->\n\n{file.markdown()}\n<!-- end -->"


def pages(root: Path) -> Iterator[Path]:
    """The pages of a checkout that show tables, relative to its root."""
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        if _MARKER in path.read_text(encoding="utf-8"):
            yield path.relative_to(root)


def rendered_pages(root: Path) -> dict[Path, str]:
    """By path, relative to the root, each page that shows tables, written anew. Raises FiguresError.

    Every file must be on a page.
    """
    files, found, used = read_all(root / FOLDER), dict[Path, str](), set[str]()
    for page in pages(root):
        text = (root / page).read_text(encoding="utf-8")
        try:
            found[page] = rendered(text, files)
        except FiguresError as error:
            raise FiguresError(f"{page}: {error}") from error
        used.update(shown(text))
    if unused := sorted(set(files) - used):
        raise FiguresError(f"no page shows {', '.join(unused)}: add `<!-- figures: NAME -->` and `<!-- end -->` to one")
    return found


def table(titles: Sequence[str | Column], rows: Sequence[Sequence[Cell]]) -> FigureTable:
    """A table; a title alone is a column of text."""
    columns = tuple(one if isinstance(one, Column) else Column(title=one) for one in titles)
    return FigureTable(columns=columns, rows=tuple(map(tuple, rows)))
