"""What is done while a point is measured: look at the engine, and say how far the sweep is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from flyball_engine.figures import format_duration
from flyball_lab.benchmark.measurements import EngineSample
from flyball_lab.benchmark.points import Point, time_left

SAMPLE_EVERY_SECONDS: Final = 0.1
#: A terminal sees the clock run; a log gets a line now and then.
TERMINAL_SECONDS, LOG_SECONDS = 0.5, 15.0


class Sampler:
    """Samples the engine, between `start` and `take`. `ask` may take long: the next sample waits as long again."""

    def __init__(self, ask: Callable[[], EngineSample | None]) -> None:
        self._ask = ask
        self._samples: list[EngineSample] = []
        self._next = float("inf")

    def start(self) -> None:
        """From now on."""
        self._samples = []
        # Not at once: the first requests are still on their way.
        self._next = time.monotonic() + SAMPLE_EVERY_SECONDS

    def tick(self) -> None:
        """Look if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        sample = self._ask()
        if sample is not None:
            self._samples.append(sample)
        self._next = time.monotonic() + max(SAMPLE_EVERY_SECONDS, time.monotonic() - now)

    def take(self) -> list[EngineSample]:
        """What was seen; looks no more."""
        self._next = float("inf")
        return self._samples


class ProgressLines:
    """A line for each point, and while it is measured how long that takes."""

    def __init__(self, out: TextIO, points: Sequence[Point]) -> None:
        self._out = out
        self._points = list(points)
        self._done: list[tuple[Point, float]] = []
        self._began = time.monotonic()
        self._said = self._began
        self._terminal = out.isatty()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._out.write(f"\r\x1b[K{text}\n" if self._terminal else f"{text}\n")
        self._out.flush()

    def begin(self) -> None:
        """The next point begins."""
        self._began = self._said = time.monotonic()
        if not self._terminal:
            self.say(self._line("measuring"))

    def tick(self) -> None:
        """Say how far it is, if it is time to."""
        now = time.monotonic()
        if now - self._said < (TERMINAL_SECONDS if self._terminal else LOG_SECONDS):
            return
        self._said = now
        text = self._line(f"{now - self._began:.0f} s")
        if self._terminal:
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()
        else:
            self.say(text)

    def end(self, result: str) -> None:
        """The point is measured."""
        self.say(self._line(result))
        self._done.append((self._points[len(self._done)], time.monotonic() - self._began))

    def _line(self, state: str) -> str:
        number = len(self._done)
        point = self._points[number]
        left = time_left(self._done, self._points[number:])
        spent = time.monotonic() - self._began
        rest = "" if left is None else f", {format_duration(max(0.0, left - spent), digits=3)} left"
        return f"[{number + 1}/{len(self._points)}] {point.describe()}: {state}{rest}"
