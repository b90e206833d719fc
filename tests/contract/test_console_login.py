"""The console behind oauth2-proxy and dex on loopback, with the arguments of the example, in Chromium."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from flyball_lab.harness.browser import Browser, browser
from flyball_lab.harness.console_fleet import Fleet, served
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.binaries import binary
from support.certificates import Authority
from support.oidc_provider import PASSWORD, settings

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "docs/examples/oidc-proxy/oauth2-proxy.yaml"
LISTED, UNLISTED = "ada@example.com", "eve@example.com"
SERVICE = "services/team-a/load-h100-chat"


@dataclass
class Login:
    """Addresses of proxy and provider, and the file of who may read."""

    root: str
    provider: str
    readers: Path


@contextmanager
def process(*command: str) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            yield
        finally:
            started.terminate()


@pytest.fixture
def login(tmp_path: Path) -> Iterator[Login]:
    authority, here = Authority(), "https://127.0.0.1"
    certificate, key = map(str, authority.issue_files(tmp_path, "tls"))
    files = {"ca.crt": authority.pem, "client-secret": "a-secret", "cookie-secret": secrets.token_hex(16)}
    for name, text in {**files, "emails": f"{LISTED}\n"}.items():
        (tmp_path / name).write_text(text)
    made = Login(f"{here}:{free_port()}/", f"{here}:{free_port()}", tmp_path / "emails")
    client = {"id": "flyball-console", "secret": "a-secret", "redirectURIs": [f"{made.root}oauth2/callback"]}
    asked = settings(
        made.provider, made.provider.removeprefix("https://"), (certificate, key), client, (LISTED, UNLISTED)
    )
    (tmp_path / "config.json").write_text(json.dumps(asked))
    with ExitStack() as stack:
        console = stack.enter_context(served(Fleet.recorded("load-h100-chat"))).rstrip("/")
        stack.enter_context(process(binary("dex"), str(tmp_path / "config.json")))
        known = f"{made.provider}/.well-known/openid-configuration"
        eventually(lambda: httpx.get(known, verify=False).status_code == 200, expecting="the provider answers")
        meant = {
            "https://login.example.com": made.provider,
            "https://flyball.example.com/": made.root,
            "http://flyball-console:8081": console,
            "=:8443": f"={made.root.removeprefix('https://').rstrip('/')}",
            **{f"/etc/oauth2-proxy/{folder}": str(tmp_path) for folder in ("secret", "readers", "tls")},
        }
        stack.enter_context(process(binary("oauth2-proxy"), *arguments(meant)))
        eventually(
            lambda: httpx.get(f"{made.root}ping", verify=False).status_code == 200, expecting="the proxy answers"
        )
        yield made


def arguments(meant: dict[str, str]) -> list[str]:
    """Those of the example, with what they mean here."""
    text = EXAMPLE.read_text().replace("# - --provider-ca-file", "- --provider-ca-file")
    (deployment,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = [str(one) for one in container["args"]]
    for written, here in meant.items():
        given = [one.replace(written, here) for one in given]
    return given


def arrives(reader: Browser, start: str) -> None:
    script = "return document.readyState === 'complete' && location.href.startsWith(arguments[0])"
    eventually(lambda: reader.driver.execute_script(script, start), expecting=f"a page at {start}", within=60)


def log_in(reader: Browser, login: Login, user: str) -> None:
    """By the provider's form."""
    arrives(reader, f"{login.provider}/auth/local")
    reader.driver.find_element(By.ID, "login").send_keys(user)
    reader.driver.find_element(By.ID, "password").send_keys(PASSWORD, Keys.ENTER)


def test_a_login_lasts_until_it_ends_or_its_reader_is_taken_off_the_list(login: Login) -> None:
    page = f"{login.root}{SERVICE}/what-if"
    with browser({"console.example": "127.0.0.1"}) as reader:
        driver = reader.driver
        driver.get(page)
        log_in(reader, login, LISTED)
        arrives(reader, page)
        assert all(one["secure"] and one["httpOnly"] for one in driver.get_cookies())
        driver.delete_all_cookies()
        driver.find_element(By.CSS_SELECTOR, "input[type=range]").send_keys(Keys.HOME)
        answer = driver.find_element(By.ID, "answer")
        eventually(lambda: "Load this page again" in answer.text, expecting="the slider says what to do", within=60)
        driver.find_element(By.TAG_NAME, "button").click()
        log_in(reader, login, LISTED)
        arrives(reader, page)
        login.readers.write_text("bob@example.com\n")

        def refused() -> bool:
            driver.get(page)
            return "403" in driver.find_element(By.TAG_NAME, "body").text

        eventually(refused, expecting="the list holds for who is logged in", within=60)
        driver.get(page)
        log_in(reader, login, UNLISTED)
        arrives(reader, f"{login.root}oauth2/callback")
        assert "403" in driver.find_element(By.TAG_NAME, "body").text
