"""Credentials, TLS and headers against a real Prometheus: alone, with its own users and TLS, and behind a gateway."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from flyball_lab.harness.ports import free_port
from flyball_lab.harness.prometheus import Prometheus, prometheus
from flyball_operator.api.shards import Shard
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.cli.entry import main
from flyball_operator.prometheus.access import Access
from flyball_operator.prometheus.client import PrometheusClient
from flyball_operator.prometheus.reader import PrometheusReader
from flyball_operator.tuning.observe.signals import Identity, Missing, Unobserved
from flyball_operator.tuning.observe.verdict import metrics_verdict
from support.certificates import Authority
from support.past import manifest

CHAT: Identity = ("team", "uid-1")
USER, PASSWORD = "flyball", "hunter2-of-flyball"
#: Of the password by bcrypt, at its least cost.
HASHED = "$2b$04$L/20WGOWS/HPpIN2EA/s6uCak6SyVVB.rzV0l/YJGyGaqjEi1ws8K"
FIRST, SECOND = "eyJhbGciOiJSUzI1NiJ9.first.AAAA", "eyJhbGciOiJSUzI1NiJ9.second.BBBB"
WITHOUT_RIGHTS = "eyJhbGciOiJSUzI1NiJ9.stranger.CCCC"
WRONG = "eyJhbGciOiJSUzI1NiJ9.wrong.DDDD"
KEY_OF_GATEWAY = "0123456789-gateway-key"
SECRETS = (PASSWORD, "wrong-word", FIRST, SECOND, WITHOUT_RIGHTS, WRONG, KEY_OF_GATEWAY, "PRIVATE KEY")


@pytest.fixture(autouse=True)
def nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Not even where libraries log all they do."""
    caplog.set_level(logging.DEBUG)
    yield
    assert not [secret for secret in SECRETS if secret in caplog.text]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def rotated(path: Path, text: str) -> None:
    """As the kubelet does: the new file takes the place of the old one."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


async def seen(url: str, access: Access | None = None) -> Unobserved:
    """What one read says of a service that nobody scrapes."""
    with closing(PrometheusReader(PrometheusClient(url, timeout=10.0, access=access), timeout=10.0)) as reader:
        return await seen_by(reader)


async def seen_by(reader: PrometheusReader) -> Unobserved:
    found = (await reader.read({CHAT: 1}))[CHAT]
    assert isinstance(found, Unobserved)
    said = metrics_verdict(found, ready_pods=1).condition(ConditionType.METRICS_AVAILABLE, 1).model_dump_json()
    assert not [secret for secret in SECRETS if secret in said]
    assert found.detail in json.loads(said)["message"]
    return found


#: What is seen once Prometheus has answered.
ANSWERED = Missing.NOT_SCRAPED


class TestOfPrometheus:
    """Prometheus' own users and TLS."""

    async def test_a_user_with_its_password_is_answered_and_others_are_told_apart(self, tmp_path: Path) -> None:
        password = written(tmp_path, "password", f"{PASSWORD}\n")
        user = Access(username=USER, password_file=password)
        with prometheus(tmp_path, web={"basic_auth_users": {USER: HASHED}}) as running:
            assert (await seen(running.url, user)).reason is ANSWERED
            nobody = await seen(running.url)
            assert nobody.reason is Missing.UNAUTHORIZED
            assert "answered 401: no credentials are set. Set a bearer token, or user name" in nobody.detail
            with closing(PrometheusReader(PrometheusClient(running.url, timeout=10.0, access=user))) as reader:
                rotated(password, "wrong-word")
                wrong = await seen_by(reader)
                assert wrong.reason is Missing.UNAUTHORIZED
                assert "does not take this user name with this password. Correct them" in wrong.detail
                rotated(password, PASSWORD)
                assert (await seen_by(reader)).reason is ANSWERED

    async def test_its_certificate_must_be_of_an_authority_that_is_trusted(self, tmp_path: Path) -> None:
        ours, other = Authority(), Authority("other")
        ca, wrong_ca = written(tmp_path, "ca.crt", ours.pem), written(tmp_path, "other.crt", other.pem)
        with prometheus(tmp_path, web=tls(*ours.issue_files(tmp_path, "server"))) as running:
            assert (await seen(running.url, Access(ca_file=ca))).reason is ANSWERED
            # Those of the image do not know it.
            for access in (None, Access(ca_file=wrong_ca)):
                found = await seen(running.url, access)
                assert found.reason is Missing.TLS_FAILED
                assert "its certificate is refused (" in found.detail
                assert "Set the CA that signed it" in found.detail
            plain = await seen(running.url.replace("https", "http"))
            assert plain.reason is Missing.UNREACHABLE
            # That it speaks HTTPS is in what it says, if it does not end the connection before.
            assert "answered 400: " in plain.detail

    async def test_verification_is_left_out_only_where_that_is_asked_for(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with prometheus(tmp_path, web=tls(*Authority().issue_files(tmp_path, "server"))) as running:
            assert (await seen(running.url, Access(insecure_skip_verify=True))).reason is ANSWERED
            assert f"the certificate of {running.url} is not verified" in caplog.messages

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"days": -1}, "certificate has expired). Let it be renewed"),
            ({"address": "127.0.0.9"}, "Use a host name that it is valid for"),
        ],
        ids=["expired", "another address"],
    )
    async def test_what_is_wrong_with_its_certificate_is_said(
        self, tmp_path: Path, options: dict[str, Any], said: str
    ) -> None:
        ours = Authority()
        access = Access(ca_file=written(tmp_path, "ca.crt", ours.pem))
        with prometheus(tmp_path, web=tls(*ours.issue_files(tmp_path, "server", **options))) as running:
            found = await seen(running.url, access)
        assert found.reason is Missing.TLS_FAILED
        assert said in found.detail

    async def test_a_client_certificate_is_shown_and_a_wrong_or_missing_one_is_told(self, tmp_path: Path) -> None:
        ours, other = Authority(), Authority("other")
        ca = written(tmp_path, "ca.crt", ours.pem)
        client, foreign = ours.issue_files(tmp_path, "client"), other.issue_files(tmp_path, "foreign")
        clients = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": str(ca)}
        with prometheus(tmp_path, web=tls(*ours.issue_files(tmp_path, "server"), **clients)) as running:
            good = Access(ca_file=ca, client_certificate=client)
            assert (await seen(running.url, good)).reason is ANSWERED
            for access in (Access(ca_file=ca), Access(ca_file=ca, client_certificate=foreign)):
                found = await seen(running.url, access)
                assert found.reason is Missing.TLS_FAILED
                assert "it wants another client certificate" in found.detail
            # Rotated in place: a new connection has the new one.
            wrong = Access(ca_file=ca, client_certificate=foreign)
            with closing(PrometheusReader(PrometheusClient(running.url, timeout=10.0, access=wrong))) as reader:
                for spoilt in ("-----BEGIN PRIVATE KEY-----\nno\n", ours.issue("another")[1]):
                    rotated(foreign[1], spoilt)
                    found = await seen_by(reader)
                    assert found.reason is Missing.UNUSABLE_FILE
                    assert found.detail.startswith(f"{foreign[1]}: accepted: the PEM key, not encrypted, of")
                for path, good_one in zip(foreign, client, strict=True):
                    rotated(path, good_one.read_text())
                assert (await seen_by(reader)).reason is ANSWERED

    async def test_an_address_that_speaks_no_tls_is_told(self, tmp_path: Path) -> None:
        with prometheus(tmp_path) as running:
            found = await seen(running.url.replace("http", "https"))
        assert found.reason is Missing.TLS_FAILED
        assert "Check that the address speaks TLS" in found.detail


def tls(certificate: Path, key: Path, /, **more: str) -> dict[str, Any]:
    """Prometheus' configuration of TLS."""
    return {"tls_server_config": {"cert_file": str(certificate), "key_file": str(key), **more}}


@dataclass
class Gateway:
    """A reverse proxy before Prometheus, as of Mimir or OpenShift: a token, a tenant, or a login for people."""

    behind: str
    token: str = FIRST
    tenant: str | None = None
    #: Answers in place of the figures.
    instead: Callable[[web.Request], web.Response] | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    methods: set[str] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.headers))
        self.methods.add(request.method)
        if self.instead is not None:
            return self.instead(request)
        if request.headers.get("Authorization") == f"Bearer {WITHOUT_RIGHTS}":
            return web.Response(status=403, text=f"forbidden: {request.headers['Authorization']}")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            # As some do: what they were sent is in what they say.
            return web.Response(status=401, text=f"unknown: {request.headers.get('Authorization')}")
        if self.tenant is not None and request.headers.get("X-Scope-OrgID") != self.tenant:
            return web.Response(status=401, text="no org id")
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                f"{self.behind}{request.rel_url}",
                data=await request.read(),
                headers={"Content-Type": request.headers.get("Content-Type", "")},
            ) as found,
        ):
            return web.Response(status=found.status, body=await found.read(), content_type=found.content_type)


@asynccontextmanager
async def before(running: Prometheus, **options: Any) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway before a Prometheus, and its address."""
    gateway = Gateway(running.url, **options)
    async with served(gateway.answer) as url:
        yield gateway, url


@asynccontextmanager
async def served(answer: Any) -> AsyncIterator[str]:
    """What answers every path, and its address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Prometheus]:
    with prometheus(tmp_path) as one:
        yield one


class TestBehindAGateway:
    async def test_a_token_that_is_rotated_is_used_from_the_next_query_on(
        self, running: Prometheus, tmp_path: Path
    ) -> None:
        token = written(tmp_path, "token", f"{FIRST}\n")
        async with before(running) as (gateway, url):
            client = PrometheusClient(url, timeout=10.0, access=Access(bearer_token_file=token))
            with closing(PrometheusReader(client, timeout=10.0)) as reader:
                assert (await seen_by(reader)).reason is ANSWERED
                gateway.token = SECOND
                old = await seen_by(reader)
                assert old.reason is Missing.UNAUTHORIZED
                assert "it does not take the bearer token. Renew the token" in old.detail
                rotated(token, SECOND)
                gateway.asked.clear()
                assert (await seen_by(reader)).reason is ANSWERED
                assert {headers["Authorization"] for headers in gateway.asked} == {f"Bearer {SECOND}"}
                # While nobody has a new one there, the file is named; then it goes on.
                token.unlink()
                gone = await seen_by(reader)
                assert gone.reason is Missing.UNUSABLE_FILE
                assert gone.detail.startswith(f"{token}: No such file or directory")
                written(tmp_path, "token", SECOND)
                assert (await seen_by(reader)).reason is ANSWERED

    async def test_what_is_too_long_for_an_address_is_sent_in_a_body_and_nothing_else_is(
        self, running: Prometheus, tmp_path: Path
    ) -> None:
        access = Access(bearer_token_file=written(tmp_path, "token", FIRST))
        async with before(running) as (gateway, url):
            for shard, methods in ((Shard(), {"GET"}), (Shard(3, 12), {"GET", "POST"})):
                gateway.methods.clear()
                client = PrometheusClient(url, timeout=10.0, access=access)
                with closing(PrometheusReader(client, timeout=10.0, shard=shard)) as reader:
                    assert (await seen_by(reader)).reason is ANSWERED
                assert gateway.methods == methods

    async def test_whoever_is_known_and_may_not_query_is_told_so(self, running: Prometheus, tmp_path: Path) -> None:
        token = written(tmp_path, "token", WITHOUT_RIGHTS)
        async with before(running) as (_, url):
            found = await seen(url, Access(bearer_token_file=token))
        assert found.reason is Missing.FORBIDDEN
        assert "answered 403: whoever asks may not query. Let the account" in found.detail

    async def test_a_tenant_s_header_goes_with_every_query(self, running: Prometheus, tmp_path: Path) -> None:
        token = written(tmp_path, "token", FIRST)
        headers = written(tmp_path, "headers", f"X-Scope-OrgID: team-a\n\nX-Api-Key:{KEY_OF_GATEWAY}\n")
        async with before(running, tenant="team-a") as (gateway, url):
            both = Access(bearer_token_file=token, headers_file=headers)
            assert (await seen(url, both)).reason is ANSWERED
            assert {asked.get("X-Api-Key") for asked in gateway.asked} == {KEY_OF_GATEWAY}
            assert (await seen(url, Access(bearer_token_file=token))).reason is Missing.UNAUTHORIZED
            rotated(headers, "X-Scope-OrgID: team-b")
            assert (await seen(url, both)).reason is Missing.UNAUTHORIZED

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_nothing_is_sent_to_where_a_redirect_leads(
        self, running: Prometheus, tmp_path: Path, status: int
    ) -> None:
        there: list[dict[str, str]] = []

        async def login(request: web.Request) -> web.Response:
            there.append(dict(request.headers))
            return web.Response(text="<html>log in</html>", content_type="text/html")

        access = Access(bearer_token_file=written(tmp_path, "token", FIRST))
        async with served(login) as elsewhere:
            location = f"{elsewhere.replace('http://', f'http://x:{FIRST}@')}/start?rd={FIRST}"
            redirect = lambda _: web.Response(status=status, headers={"Location": location})  # noqa: E731 – one answer
            async with before(running, instead=redirect) as (_, url):
                found = await seen(url, access)
            assert found.reason is Missing.REDIRECTED
            assert f"answered {status}, a redirect to {elsewhere}, which is not followed." in found.detail
            assert "login page, set credentials" in found.detail
        assert there == []

    async def test_a_login_page_in_place_of_figures_is_told(self, running: Prometheus) -> None:
        page = lambda _: web.Response(text="<html>log in</html>", content_type="text/html")  # noqa: E731 – one answer
        async with before(running, instead=page) as (_, url):
            found = await seen(url)
        assert found.reason is Missing.BAD_ANSWER
        assert "answered with a page, not with figures: a login page, or another server" in found.detail

    async def test_what_repeats_credentials_is_not_repeated_and_what_does_not_is(
        self, running: Prometheus, tmp_path: Path
    ) -> None:
        def failing(request: web.Request) -> web.Response:
            about = request.headers.get("Authorization", "no store-gateway answers")
            return web.Response(status=502, text=f"upstream failed: {about}")

        password = Access(username=USER, password_file=written(tmp_path, "password", PASSWORD))
        api_key = Access(headers_file=written(tmp_path, "headers", f"Authorization-Of-Gateway: {KEY_OF_GATEWAY}"))
        async with before(running, instead=failing) as (gateway, url):
            found = await seen(url, password)
            assert found.reason is Missing.UNREACHABLE
            assert "answered 502: the answer is not shown, it repeats credentials" in found.detail
            assert "answered 502: upstream failed: no store-gateway answers" in (await seen(url)).detail
            gateway.instead = lambda request: web.Response(status=500, text=str(dict(request.headers)))
            assert "it repeats credentials" in (await seen(url, api_key)).detail
            assert f"Bearer {FIRST}" not in (await seen(url)).detail


class TestReplay:
    async def test_it_asks_as_the_operator_does(
        self,
        running: Prometheus,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        service = written(tmp_path, "chat.yaml", yaml.safe_dump(manifest()))
        monkeypatch.setenv("FLYBALL_PROMETHEUS_BEARER_TOKEN_FILE", str(written(tmp_path, "token", FIRST)))
        monkeypatch.setenv("FLYBALL_PROMETHEUS_HEADERS_FILE", str(written(tmp_path, "headers", "X-Scope-OrgID: a")))
        async with before(running, tenant="a") as (gateway, url):
            arguments = ["replay", "-f", str(service), "--prometheus", url, "--from", "1m"]
            assert await asyncio.to_thread(main, arguments) == 1
            # It was answered: there is just nothing in it.
            assert "no samples of team/chat" in capsys.readouterr().err
            gateway.token = SECOND
            assert await asyncio.to_thread(main, arguments) == 1
            said = capsys.readouterr().err
            assert "answered 401: it does not take the bearer token" in said
            assert not [secret for secret in SECRETS if secret in said]
        assert not [secret for secret in SECRETS if secret in str(os.environ)]
