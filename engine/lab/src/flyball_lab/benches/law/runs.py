"""Many runs on all cores: told how far they are, kept as they end, and ended by Ctrl-C with what there is."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Final, Protocol

from flyball_lab.benches.law.contenders import RunFigures
from flyball_lab.benches.law.kept import Kept
from flyball_lab.benchmark.interrupts import Interrupts

#: Seconds between two lines about how far it is.
TELL_SECONDS: Final = 10.0


class Job(Protocol):
    """One run."""

    @property
    def key(self) -> str:
        """All that the run depends on but for the sources."""

    @property
    def law(self) -> bool:
        """Whether the law drives it."""

    def play(self) -> RunFigures:
        """Do it."""


def finish(jobs: Sequence[Job], kept: Kept) -> tuple[dict[str, RunFigures], bool]:
    """What came of the jobs by their keys, and whether all of them came to their end."""
    found = {job.key: known for job in jobs if (known := kept.get(job.key)) is not None}
    left = [job for job in jobs if job.key not in found]
    if not left:
        return found, True
    progress = _Progress(len(left), known=len(found))
    pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=_quiet)
    runs: dict[Future[RunFigures], Job] = {}

    def ended(run: Future[RunFigures]) -> None:
        job = runs[run]
        # In this order: what an interrupt leaves out here is taken up below.
        kept.add(job.key, run.result(), law=job.law)
        found[job.key] = run.result()

    try:
        # One that is raised inside a destructor or a callback is dropped by Python, so it is asked for, too.
        with Interrupts() as interrupts:
            for job in left:
                # One by one: Ctrl-C may come while there are still some to be handed over.
                runs[pool.submit(_play, job)] = job
            for run in as_completed(runs):
                interrupts.check()
                ended(run)
                progress.one_more()
            interrupts.check()
    except KeyboardInterrupt:
        print("  interrupted: with what was measured", file=sys.stderr, flush=True)
        # Those that run come to their end, the others do not begin.
        pool.shutdown(cancel_futures=True)
        for run in [one for one in runs if one.done() and not one.cancelled() and not one.exception()]:
            if runs[run].key not in found:
                ended(run)
        return found, False
    finally:
        pool.shutdown(cancel_futures=True)
    return found, True


def _play(job: Job) -> RunFigures:
    return job.play()


def _quiet() -> None:
    """Ctrl-C goes to all processes of a terminal; the one that asked for the runs decides."""
    logging.disable(logging.WARNING)  # what befalls a tuner is meant
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Progress:
    def __init__(self, total: int, *, known: int) -> None:
        self._total, self._done = total, 0
        self._began = self._told = time.monotonic()
        taken_up = f", {known} taken up from before" if known else ""
        print(f"  {total} runs{taken_up}", file=sys.stderr, flush=True)

    def one_more(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._told < TELL_SECONDS:
            return
        self._told = now
        left = (now - self._began) / self._done * (self._total - self._done)
        print(f"  {self._done} of {self._total} runs, some {left:.0f} s to go", file=sys.stderr, flush=True)
