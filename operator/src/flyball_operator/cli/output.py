"""How a command ends where it is interrupted, or its output cannot be written: a reader that went away, or no room."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

#: Exit codes: what was asked for could not be had; what was given is wrong, as argparse has it.
NOT_HAD: Final = 1
WRONG_INPUT: Final = 2
#: Exit code where the reader of a pipe went away, as shells have it of a process that SIGPIPE ended.
READER_GONE: Final = 141
#: Exit code after Ctrl-C, as shells have it.
INTERRUPTED: Final = 130
#: Exit code where the output could not be written. Not 1: `diff` says by it that something changes, `pause` that
#: nothing was changed.
NOT_WRITTEN: Final = 2
#: The same for people.
EXIT_CODES: Final = """\
exit codes of flyball:
  0    done
  1    not had, such as no cluster; doctor: a check failed; diff: changes
  2    an option or the input is wrong, or the output cannot be written;
       diff: any error
  130  Ctrl-C
  141  the reader of the output went away
"""


def written(command: Callable[[], int]) -> int:
    """Run a command, and see its output written; returns the exit code. Its only effect that can fail is writing."""
    try:
        return _flushed(command)
    except BrokenPipeError:
        _drop_output()
        return READER_GONE
    except KeyboardInterrupt:
        print("flyball: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        _drop_output()
        with suppress(OSError):
            print(f"flyball: the output cannot be written: {error.strerror or error}", file=sys.stderr)
        return NOT_WRITTEN


def _flushed(command: Callable[[], int]) -> int:
    """Also after --help, which exits. When the interpreter ends it would be too late: an error is a traceback then."""
    try:
        return command()
    finally:
        # There is no stdout where it was closed before the start.
        if sys.stdout is not None:
            sys.stdout.flush()


def _drop_output() -> None:
    """Send what is still buffered nowhere: the interpreter flushes once more as it ends, and would say it cannot."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
