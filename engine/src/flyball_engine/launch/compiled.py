"""What vLLM has compiled and kept in a folder that outlives its process (VLLM_CACHE_ROOT on a volume)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: vLLM's list of what it has compiled (`compilation/backends.py`). It is written in place, and read without a doubt.
_LIST: Final = "torch_compile_cache/**/vllm_compile_cache.py"


def remove_torn(root: Path) -> Iterator[Path]:
    """Remove lists that are not whole: of a process that was killed, or a volume that was full. Gives their paths.

    With one of them every later start would end; without, what it lists is compiled anew.
    """
    for path in root.glob(_LIST):
        try:
            ast.literal_eval(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            path.unlink(missing_ok=True)
            yield path
        except OSError:
            continue
