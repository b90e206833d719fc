"""Settings come from the environment, and wrong ones are refused by name."""

from __future__ import annotations

import base64
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from kubernetes.aio import client

from flyball_operator.app.main import ExitCode, main
from flyball_operator.app.settings import Settings
from flyball_operator.prometheus.access import secrets_of
from support.certificates import Authority
from support.wrong_inputs.command_lines import SETTINGS


def settings(monkeypatch: pytest.MonkeyPatch, **values: str) -> Settings:
    for name, value in values.items():
        monkeypatch.setenv(f"FLYBALL_{name.upper()}", value)
    return Settings()


@pytest.mark.parametrize(
    ("namespaces", "watched"),
    [("", ("home",)), ("a, b,a", ("a", "b")), ("*", (None,))],
)
def test_namespaces(monkeypatch: pytest.MonkeyPatch, namespaces: str, watched: tuple[str | None, ...]) -> None:
    assert settings(monkeypatch, namespaces=namespaces, pod_namespace="home").watched == watched


@pytest.mark.parametrize(
    "selector",
    [
        "team=ml",
        "team==ml,tier!=gold",
        "serving.flyball.dev/team in (a, b),!old",
        "tier notin (x), kubernetes.io/metadata.name",
        "empty=",
    ],
)
def test_namespaces_by_their_labels(monkeypatch: pytest.MonkeyPatch, selector: str) -> None:
    made = settings(monkeypatch, watch_namespace_selector=selector, pod_namespace="home")
    assert (made.watch_namespace_selector, made.watched) == (selector, ())


@pytest.mark.parametrize("selector", ["team in ()x", "a/b/c", "team=m l", "=x", "-a", "team>", "a=" + "x" * 64, " "])
def test_what_is_no_label_selector_is_refused(monkeypatch: pytest.MonkeyPatch, selector: str) -> None:
    with pytest.raises(ValueError, match="is no requirement of a label selector; accepted: such as team=ml"):
        settings(monkeypatch, watch_namespace_selector=selector)


def test_namespaces_are_named_or_selected_and_not_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="goes not with FLYBALL_NAMESPACES; accepted: one of them"):
        settings(monkeypatch, watch_namespace_selector="team=ml", namespaces="team")


SECRET = "eyJhbGciOiJSUzI1NiJ9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that settings name."""
    made = tmp_path_factory.mktemp("settings")
    authority = Authority()
    _, key = authority.issue_files(made, "tls")
    authority.issue_files(made, "other")
    encrypted = serialization.load_pem_private_key(key.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    )
    contents = {
        "good": f"{SECRET}\n".encode(),
        "empty": b" \n",
        "two-words": f"Bearer {SECRET}".encode(),
        "two-lines": f"{SECRET}\n{SECRET}".encode(),
        "binary": SECRET.encode() + b"\xff\xfe",
        "large": SECRET.encode() * 4000,
        "authorization": f"authorization: Bearer {SECRET}".encode(),
        "host": b"X-Scope-OrgID: team-a\nHost: elsewhere",
        "twice": b"X-Scope-OrgID: team-a\nx-scope-orgid: team-b",
        "ca.crt": authority.pem.encode(),
        "encrypted.key": encrypted,
    }
    for name, content in contents.items():
        (made / name).write_bytes(content)
    return made


@pytest.mark.parametrize(("given", "says"), [pytest.param(*case, id=case[0]) for case in SETTINGS])
def test_a_wrong_setting_ends_the_process_and_is_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    given: str,
    says: tuple[str, ...],
) -> None:
    monkeypatch.chdir(folder)
    for variable in given.split(" "):
        monkeypatch.setenv(*f"FLYBALL_{variable}".split("=", 1))
    assert main() == ExitCode.MISCONFIGURED
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("FLYBALL_")
    for words in says:
        assert words in said
    assert SECRET not in said
    assert "secret" not in said


def test_what_prometheus_is_asked_with_is_read_from_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)
    token = settings(monkeypatch, prometheus_bearer_token_file="good", prometheus_ca_file="ca.crt").prometheus_access
    assert token.headers() == {"Authorization": f"Bearer {SECRET}"}
    assert token.ca_file == Path("ca.crt")
    monkeypatch.delenv("FLYBALL_PROMETHEUS_BEARER_TOKEN_FILE")
    (folder / "tenant").write_text("X-Scope-OrgID: team-a\n")
    user = settings(
        monkeypatch,
        prometheus_username="me",
        prometheus_password_file="good",
        prometheus_headers_file="tenant",
        prometheus_client_cert_file="tls.crt",
        prometheus_client_key_file="tls.key",
    ).prometheus_access
    pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert user.headers() == {"Authorization": f"Basic {pair}", "X-Scope-OrgID": "team-a"}
    assert set(secrets_of(user.headers())) == {SECRET, pair}, "the name of a tenant is none"
    assert user.client_certificate == (Path("tls.crt"), Path("tls.key"))
    assert not user.insecure_skip_verify


def test_a_key_that_the_operator_keeps_is_rotated_every_thirty_days_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch, signing_key_secret="mine").rotation_period == timedelta(days=30)
    assert settings(monkeypatch, signing_key_rotation_period="90m").rotation_period == timedelta(minutes=90)
    assert settings(monkeypatch, signing_key_rotation_period="0s").rotation_period == timedelta(0)


def test_a_signing_key_that_is_none_ends_the_process_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def reachable() -> client.Configuration:
        return client.Configuration()

    monkeypatch.setattr("flyball_operator.app.main.load_configuration", reachable)
    monkeypatch.setattr("flyball_operator.app.main.configure_logging", lambda *_: None)
    key = tmp_path / "key.pem"
    key.write_text("no key")
    monkeypatch.setenv("FLYBALL_SIGNING_KEY_FILE", str(key))
    assert main() == ExitCode.MISCONFIGURED
    assert str(key) in caplog.text
    assert "Traceback" not in caplog.text
