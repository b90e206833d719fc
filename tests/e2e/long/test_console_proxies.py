"""The console behind proxies, as docs/console.md has it: a login by oauth2-proxy and dex, and kubectl proxy."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest
import yaml
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from flyball_lab.harness.browser import Browser, browser
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.binaries import imported
from support.certificates import Authority
from support.cluster import Object, get, items, kubectl, patch
from support.listening_kubectl import listening
from support.live import Flyball, Service
from support.network_enforcement import connects, enforced
from support.oidc_provider import PASSWORD, oidc_provider

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

PAGE = (ROOT / "docs/console.md").read_text(encoding="utf-8")
EXAMPLE = "docs/examples/oidc-proxy"
#: Names of the example.
CONSOLE_HOST, LOGIN_HOST, CLIENT, PROXY = "flyball.example.com", "login.example.com", "flyball-console", "oauth2-proxy"
LISTED, UNLISTED = "ada@example.com", "eve@example.com"
CLIENT_SECRET: Final = "a-secret-of-tests"
PORT = 8081
#: Seconds until the kubelet has brought a ConfigMap's change into pods: its sync and its cache, a minute each.
BROUGHT = 300


def steps() -> tuple[str, str, str]:
    """Blocks of the page's steps: for the chart, the Secrets and the proxy."""
    blocks = re.findall(r"^ {4}```\n(.*?)^ {4}```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    chart, secrets, proxy = (re.sub(r"^ {4}", "", block, flags=re.MULTILINE) for block in blocks)
    return chart, secrets, proxy


@dataclass
class Login:
    """What a reader needs: addresses of the proxy and of the provider, and who certifies both."""

    authority: Authority
    addresses: dict[str, str]

    def ask(self, path: str, **headers: str) -> httpx.Response:
        """An answer of the proxy to whoever has no session; redirects are not followed."""
        trusted = ssl.create_default_context(cadata=self.authority.pem)
        asked = {"Host": CONSOLE_HOST, **headers}
        with httpx.Client(verify=trusted, timeout=60, trust_env=False) as client:
            named = {"sni_hostname": CONSOLE_HOST}
            return client.get(f"https://{self.addresses[CONSOLE_HOST]}{path}", headers=asked, extensions=named)

    @contextmanager
    def reader(self) -> Iterator[Browser]:
        """A browser of somebody who has logged in nowhere yet."""
        with browser(self.addresses) as opened:
            yield opened


def fill_in(folder: Path, flyball: Flyball, provider: str) -> None:
    """The example in a folder, with what is this cluster's: release, image, and where the provider is."""
    (folder / "charts").symlink_to(ROOT / "charts")
    (folder / EXAMPLE).mkdir(parents=True)
    for name in ("values.yaml", "oauth2-proxy.yaml"):
        text = (ROOT / EXAMPLE / name).read_text()
        text = text.replace("//flyball-console:", f"//{flyball.release}-console:")
        text = text.replace("# - --provider-ca-file", "- --provider-ca-file")
        text = re.sub(r"quay\.io/\S+", lambda _: imported(PROXY)[PROXY], text)
        objects = [*yaml.safe_load_all(text)]
        for one in objects:
            if one.get("kind") == "Deployment":
                alias = {"ip": provider, "hostnames": [LOGIN_HOST]}
                one["spec"]["template"]["spec"]["hostAliases"] = [alias]
        (folder / EXAMPLE / name).write_text(yaml.safe_dump_all(objects))


def follow(block: str, folder: Path, flyball: Flyball) -> None:
    """Paste a block of the page into a shell."""
    meant = {
        "-n flyball-system": f"-n {flyball.namespace}",
        "upgrade flyball ": f"upgrade {flyball.release} --wait --force-conflicts ",
        "<client-secret>": f"{CLIENT_SECRET} --from-file=ca.crt",
    }
    for written, here in meant.items():
        block = block.replace(written, here)
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


@pytest.fixture
def login(flyball: Flyball, chat: Service, tmp_path: Path) -> Iterator[Login]:
    """The steps of the page were followed."""
    authority, client = (
        Authority(),
        {
            "id": CLIENT,
            "name": CLIENT,
            "secret": CLIENT_SECRET,
            "redirectURIs": [f"https://{CONSOLE_HOST}/oauth2/callback"],
        },
    )
    authority.issue_files(tmp_path, CONSOLE_HOST)
    for kind in ("crt", "key"):
        (tmp_path / f"{CONSOLE_HOST}.{kind}").rename(tmp_path / f"tls.{kind}")
    (tmp_path / "ca.crt").write_text(authority.pem)
    users = (LISTED, UNLISTED)
    with oidc_provider(flyball.watched, LOGIN_HOST, authority, client=client, users=users) as provider:
        fill_in(tmp_path, flyball, provider)
        try:
            for block in steps():
                follow(block, tmp_path, flyball)
            service = get("service", PROXY, namespace=flyball.namespace)
            assert service is not None
            made = Login(authority, {CONSOLE_HOST: service["spec"]["clusterIP"], LOGIN_HOST: provider})
            eventually(lambda: made.ask("/ping").status_code == 200, expecting="the proxy's Service answers")
            yield made
        finally:
            example = str(tmp_path / EXAMPLE / "oauth2-proxy.yaml")
            kubectl("delete", "-n", flyball.namespace, "--ignore-not-found", "-f", example, timeout=120)
            named = ("oauth2-proxy", "oauth2-proxy-tls")
            kubectl("delete", "secret", *named, "-n", flyball.namespace, "--ignore-not-found")
            flyball.install()


@pytest.fixture
def console_of_the_cluster(flyball: Flyball, chat: Service) -> Iterator[None]:
    """The console has a Service."""
    flyball.install(console={"enabled": True, "service": True})
    yield
    flyball.install(console={"enabled": False, "service": False})


def arrives(reader: Browser, start: str, end: str = "") -> None:
    """Wait for a page whose address begins and ends so."""
    script = (
        "return document.readyState === 'complete' && location.href.startsWith(arguments[0])"
        " && location.href.endsWith(arguments[1])"
    )
    try:
        eventually(lambda: reader.driver.execute_script(script, start, end), expecting=f"a page at {start}…{end}")
    except AssertionError as error:
        shown = reader.driver.find_element(By.TAG_NAME, "body").text
        raise AssertionError(f"{error}; shown is {reader.driver.current_url}: {shown[:500]}") from error


def expect_asked_to_log_in(reader: Browser) -> None:
    """The provider's form is shown, and nothing of the console."""
    arrives(reader, f"https://{LOGIN_HOST}/auth/local")
    assert "Flyball</a>" not in reader.driver.page_source


def log_in(reader: Browser, user: str) -> None:
    """By the provider's form."""
    expect_asked_to_log_in(reader)
    reader.driver.find_element(By.ID, "login").send_keys(user)
    reader.driver.find_element(By.ID, "password").send_keys(PASSWORD, Keys.ENTER)


def expect_styled(reader: Browser) -> None:
    """The page's style sheet was found."""
    assert reader.driver.find_element(By.TAG_NAME, "body").value_of_css_property("max-width") != "none"


def expect_tuned(reader: Browser, what_if: str) -> None:
    """The operator, which was started anew, tunes the service."""

    def shown() -> bool:
        reader.driver.get(what_if)
        return bool(reader.driver.find_elements(By.TAG_NAME, "output"))

    eventually(shown, expecting="the page has sliders")


def move_slider(reader: Browser) -> None:
    """The first one of the page."""
    reader.driver.find_element(By.CSS_SELECTOR, "input[type=range]").send_keys(Keys.HOME)


def walk(reader: Browser, root: str, service: Service) -> None:
    """From the fleet to every page of the service by its links, and a slider is answered.

    All of it is styled, below the root, and nothing to complain of.
    """
    driver = reader.driver
    asked = reader.requests()[:0]
    reader.complaints()
    driver.find_element(By.NAME, "search").send_keys(service.name, Keys.ENTER)
    arrives(reader, root, f"?search={service.name}")
    driver.find_element(By.LINK_TEXT, service.name).click()
    page = f"services/{service.namespace}/{service.name}"
    for name, path in (("Service", page), ("Decisions", f"{page}/decisions"), ("What if", f"{page}/what-if")):
        driver.find_element(By.LINK_TEXT, name).click()
        arrives(reader, root, path)
        assert driver.find_element(By.TAG_NAME, "h1").text == f"{service.namespace}/{service.name}"
        expect_styled(reader)
    move_slider(reader)

    def answered() -> bool:
        asked.extend(reader.requests())
        return any("what-if?" in address for address in asked)

    eventually(answered, expecting="the slider asks the operator")
    driver.get(f"{root}services/{service.namespace}/none/at/all")
    expect_styled(reader)
    driver.find_element(By.LINK_TEXT, "Flyball").click()
    arrives(reader, root, root)
    assert [one for one in (*asked, *reader.requests()) if not one.startswith(root)] == []
    assert [one for one in reader.complaints() if "404" not in one] == []


def test_who_is_on_the_list_reads_the_console_after_a_login_and_nobody_else_does(
    flyball: Flyball, chat: Service, login: Login
) -> None:
    root, page = f"https://{CONSOLE_HOST}/", f"services/{chat.namespace}/{chat.name}"
    for path in ("/", f"/{page}", "/static/console.css", "/metrics"):
        for forged in ({}, {"X-Forwarded-User": LISTED, "X-Forwarded-Email": LISTED, "Authorization": "Bearer a"}):
            answer = login.ask(path, **forged)
            assert answer.status_code == 302, path
            assert answer.headers["Location"].startswith(f"https://{LOGIN_HOST}/auth?")
            assert "<h1>" not in answer.text

    with login.reader() as stranger:
        stranger.driver.get(root)
        log_in(stranger, UNLISTED)
        arrives(stranger, f"{root}oauth2/callback")
        assert "403" in stranger.driver.find_element(By.TAG_NAME, "body").text
        stranger.driver.get(root)
        expect_asked_to_log_in(stranger)

    with login.reader() as reader:
        reader.driver.get(f"{root}{page}")
        log_in(reader, LISTED)
        arrives(reader, root, page)
        assert reader.driver.find_element(By.TAG_NAME, "h1").text == f"{chat.namespace}/{chat.name}"
        cookies = reader.driver.get_cookies()
        assert cookies
        assert all(one["secure"] and one["httpOnly"] for one in cookies), cookies
        expect_tuned(reader, f"{root}{page}/what-if")
        reader.driver.get(root)
        walk(reader, root, chat)
        expect_ended_session_leads_to_a_login(reader, root, page)
        log_in(reader, LISTED)
        arrives(reader, root)
        expect_removed_reader_refused(flyball, reader, root)


def expect_ended_session_leads_to_a_login(reader: Browser, root: str, page: str) -> None:
    """Where a form is sent, and where a slider asks."""
    driver = reader.driver
    driver.get(f"{root}{page}/what-if")
    driver.delete_all_cookies()
    move_slider(reader)
    answer = driver.find_element(By.ID, "answer")
    eventually(lambda: "Load this page again" in answer.text, expecting="the slider says what to do")
    driver.find_element(By.TAG_NAME, "button").click()
    expect_asked_to_log_in(reader)


def expect_removed_reader_refused(flyball: Flyball, reader: Browser, root: str) -> None:
    """Whoever is taken off the list reads nothing more, also in a session that has begun."""
    patch("configmap", "oauth2-proxy-readers", {"data": {"emails": "bob@example.com\n"}}, namespace=flyball.namespace)

    def refused() -> bool:
        reader.driver.get(root)
        return "403" in reader.driver.find_element(By.TAG_NAME, "body").text

    eventually(refused, expecting="the list holds for who is logged in", within=BROUGHT)


def test_past_the_proxy_nobody_reaches_the_console_where_the_network_enforces_policies(
    flyball: Flyball, login: Login, tmp_path: Path
) -> None:
    (operator,) = flyball.operator_pods()
    (proxy,) = items("pods", namespace=flyball.namespace, selector=f"app={PROXY}")
    stranger = items("pods", namespace="kube-system", selector="k8s-app=kube-dns")[0]
    to = str(operator["status"]["podIP"])

    def reached(by: Object) -> bool:
        return connects(by, to, PORT)

    assert reached(stranger), "as long as nothing enforces the policies"
    with enforced(tmp_path, operator["spec"]["nodeName"]):
        eventually(lambda: not reached(stranger), expecting="a stranger does not reach the console")
        assert reached(proxy)
    eventually(lambda: reached(stranger), expecting="the network is as it was")


def test_kubectl_proxy_shows_the_console_below_the_path_of_its_service(
    flyball: Flyball, chat: Service, console_of_the_cluster: None
) -> None:
    (path,) = re.findall(r"`http://localhost:8001(/api/\S+)`", PAGE)
    path = path.replace("flyball-system", flyball.namespace).replace("flyball-console", f"{flyball.release}-console")
    with listening("proxy", "--port=0") as address, browser() as reader:
        root = f"{address}{path}"
        what_if = f"{root}services/{chat.namespace}/{chat.name}/what-if"
        eventually(lambda: "<output" in httpx.get(what_if).text, expecting="the Service has its pod, and that tunes")
        reader.driver.get(root)
        walk(reader, root, chat)
