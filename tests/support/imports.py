"""The import statements of source files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """All of a file, in functions too. Reads it once."""
    return tuple(_below(ast.parse(path.read_text(encoding="utf-8"))))


def _below(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """What is in a statement, without its expressions: they hold no statement, and are most of a file."""
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.Import | ast.ImportFrom):
            yield below
        elif isinstance(below, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _below(below)
