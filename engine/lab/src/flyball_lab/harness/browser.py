"""Debian's Chromium, driven by Selenium: nobody's window, and no host but this machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from PIL import Image
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

#: Pixels of a window.
_WIDTH: Final = 1100


class Browser:
    """One that runs. `requests`: the addresses that it asked for since they were last looked at."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def prefer(self, scheme: str) -> None:
        """Prefer `light` or `dark`."""
        self._devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def scripts(self, *, allowed: bool) -> None:
        """Run the scripts of pages that are opened from now on, or none."""
        self._devtools("Emulation.setScriptExecutionDisabled", value=not allowed)

    def picture(self, *, tallest: int) -> bytes:
        """The page as PNG of 128 colours, from its top down to so many pixels."""
        self.driver.set_window_size(_WIDTH, 200)
        height = self.driver.execute_script("return Math.ceil(document.body.getBoundingClientRect().height)")
        frame = 200 - int(self.driver.execute_script("return window.innerHeight"))
        self.driver.set_window_size(_WIDTH, min(tallest, int(height)) + frame)
        drawn, small = Image.open(BytesIO(self.driver.get_screenshot_as_png())), BytesIO()
        drawn.convert("RGB").quantize(128, Image.Quantize.FASTOCTREE).save(small, "PNG", optimize=True)
        return small.getvalue()

    def requests(self) -> list[str]:
        """Addresses that were asked for since this was called last."""
        messages = (json.loads(text)["message"] for text in self._log("performance"))
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the browser says in its console, as of what a page may not load."""
        return self._log("browser")

    def _log(self, name: str) -> list[str]:
        return [str(entry["message"]) for entry in self.driver.get_log(name)]  # type: ignore[no-untyped-call]

    def _devtools(self, command: str, **parameters: Any) -> None:
        self.driver.execute_cdp_cmd(command, parameters)


@contextmanager
def browser(names: Mapping[str, str] | None = None) -> Iterator[Browser]:
    """A browser without a profile. `names`: addresses of other hosts that it may ask, whoever certifies them."""
    rules = [f"MAP {name} {address}" for name, address in (names or {}).items()]
    open_to = [f"EXCLUDE {address}" for address in ("127.0.0.1", *(names or {}).values())]
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        raise FileNotFoundError("chromium and chromedriver are not installed: hack/console installs them")
    with tempfile.TemporaryDirectory(prefix="flyball-browser-") as folder:
        options = ChromeOptions()
        options.binary_location = chromium
        for argument in (
            "--headless=new",
            "--no-sandbox",  # it may run as root, in a container
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--no-proxy-server",
            "--hide-scrollbars",
            f"--window-size={_WIDTH},800",
            f"--user-data-dir={Path(folder) / 'profile'}",
            f"--host-resolver-rules={', '.join([*rules, 'MAP * ~NOTFOUND', *open_to])}",
        ):
            options.add_argument(argument)
        options.accept_insecure_certs = bool(names)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = Chrome(options=options, service=Service(chromedriver))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
