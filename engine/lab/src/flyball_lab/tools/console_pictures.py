"""Pictures of the console (docs/console.md): its pages on recorded services, in a real browser, light and dark.

With `--time` no picture is drawn: it says how long a browser takes to show a fleet of so many services. With
`--terminal` it is `flyball top` and `flyball watch` that are drawn.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from flyball_engine.arguments import whole
from flyball_lab.harness.browser import Browser, browser
from flyball_lab.harness.console_fleet import Fleet, serving
from flyball_lab.repository import ROOT
from flyball_lab.tools import terminal_pictures

FOLDER: Final = ROOT / "docs/console"
_TERMINAL_FOLDER: Final = ROOT / "docs"
#: Recordings that the pictures are of; the first is the service that is looked at.
_RECORDINGS: Final = (
    "load-h100-load-steps",
    "load-a100-code",
    "load-h100-code-in-bursts",
    "load-h100-three-objectives",
    "overload-refused",
    "prometheus-away",
    "slow-pod",
)
_SERVICE: Final = f"services/team-a/{_RECORDINGS[0]}"
_PAGES: Final = {
    "fleet": "",
    "service": _SERVICE,
    "decisions": f"{_SERVICE}/decisions",
    "what-if": f"{_SERVICE}/what-if?per-token=45",
}
#: Pixels of a picture.
_TALLEST: Final = 1260
_LOADS: Final = 20


def main() -> None:
    """Draw the pages, or time them."""
    parser = argparse.ArgumentParser(prog="hack/console", description="Draws the pages of the console.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"{FOLDER}")
    parser.add_argument(
        "--time", type=whole(1, 100_000), metavar="N", help="draw nothing, and time the fleet page of N services"
    )
    parser.add_argument(
        "--terminal",
        action="store_true",
        help=f"draw flyball top and flyball watch instead, by default into {_TERMINAL_FOLDER}",
    )
    options = parser.parse_args()
    if options.terminal:
        terminal_pictures.draw(options.out or _TERMINAL_FOLDER)
        return
    folder = options.out or FOLDER
    with browser() as opened:
        if options.time is not None:
            print(asyncio.run(_timed(opened, _many(options.time))))
            return
        pictures = asyncio.run(_pictures(opened, Fleet.recorded(*_RECORDINGS)))
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)


async def _pictures(opened: Browser, fleet: Fleet) -> dict[str, bytes]:
    def drawn(address: str) -> dict[str, bytes]:
        found = {}
        for scheme in ("light", "dark"):
            opened.prefer(scheme)
            for name, path in _PAGES.items():
                opened.driver.get(address + path)
                found[f"{name}-{scheme}"] = opened.picture(tallest=_TALLEST)
        return found

    async with serving(fleet) as address:
        return await asyncio.to_thread(drawn, address)


def _many(number: int) -> Fleet:
    """So many services alike."""
    (one,) = Fleet.recorded(_RECORDINGS[0]).desires
    copies = (one.meta.model_copy(update={"name": f"chat-{at:05}", "uid": f"uid-{at}"}) for at in range(number))
    return Fleet([replace(one, meta=meta) for meta in copies])


async def _timed(opened: Browser, fleet: Fleet) -> str:
    def loads(address: str) -> Sequence[float]:
        found = []
        for _ in range(_LOADS):
            opened.driver.get(address)
            found.append(
                float(opened.driver.execute_script("return performance.getEntriesByType('navigation')[0].duration"))
            )
        return found

    async with serving(fleet) as address:
        took = await asyncio.to_thread(loads, address)
    return (
        f"The fleet page of {len(fleet.desires):,} services is loaded in {median(took):.0f} ms"
        f" (median of {_LOADS}; longest {max(took):.0f} ms), from the click to its load event in Chromium."
    )


if __name__ == "__main__":
    main()
