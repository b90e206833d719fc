"""The control port as strangers meet it, and as it meets what is no setpoint: real HTTP, plain cores behind it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from flyball_engine.contract import HEALTH_PATH, MAX_BODY_BYTES, SETPOINT_PATH, Refusal
from flyball_lab.harness.engine import SetpointSigner, setpoint
from flyball_lab.harness.waiting import eventually
from support.control_port import Port, an_engine, control_port
from support.wrong_inputs.control import BODIES


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    with control_port(an_engine(tmp_path)) as running:
        yield running


def test_what_is_no_setpoint_is_refused_by_field(port: Port) -> None:
    for body, says in BODIES:
        expect_invalid(port, body, says)


def expect_invalid(port: Port, body: bytes, says: Sequence[str]) -> None:
    status, error = port.client.refuse(body)
    assert (status, error.error) == (422, Refusal.INVALID), body
    assert [words for words in says if words not in error.message] == [], f"{body!r}: {error.message}"
    assert port.client.read().accepted is None


def test_a_refused_write_changes_nothing(port: Port) -> None:
    before = port.client.read()
    port.client.refuse(b"{}")
    port.client.refuse(setpoint(1, service="another"))
    assert port.client.read() == before


class TestTokens:
    body = setpoint(1).model_dump_json().encode()

    def expect_bad_token(self, port: Port, token: str) -> None:
        status, error = port.client.refuse(self.body, token=token)
        assert (status, error.error) == (401, Refusal.BAD_TOKEN)
        assert port.client.read().accepted is None

    def test_of_another_key(self, port: Port) -> None:
        self.expect_bad_token(port, SetpointSigner().token(self.body))

    def test_for_another_service(self, port: Port) -> None:
        self.expect_bad_token(port, port.signer.token(self.body, audience="another"))

    def test_for_another_body(self, port: Port) -> None:
        self.expect_bad_token(port, port.signer.token(self.body + b" "))

    def test_that_expired(self, port: Port) -> None:
        self.expect_bad_token(port, port.signer.token(self.body, lifetime=-31))

    def test_within_the_leeway_of_clocks(self, port: Port) -> None:
        assert port.client.put_raw(self.body, token=port.signer.token(self.body, lifetime=-20)).status_code == 200

    def test_of_another_issuer(self, port: Port) -> None:
        self.expect_bad_token(port, port.signer.token(self.body, iss="someone"))

    def test_with_claims_too_many(self, port: Port) -> None:
        self.expect_bad_token(port, port.signer.token(self.body, admin=True))

    @pytest.mark.parametrize("token", ["x", "a.b.c", "eyJhbGciOiJub25lIn0.e30."])
    def test_that_is_none(self, port: Port, token: str) -> None:
        self.expect_bad_token(port, token)

    @pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic Zm9v"}])
    def test_left_out(self, port: Port, headers: dict[str, str]) -> None:
        status, error = port.client.refuse(self.body, headers=headers)
        assert (status, error.error) == (401, Refusal.BAD_TOKEN)

    def test_signed_with_the_public_key_as_a_secret(self, port: Port) -> None:
        import jwt  # noqa: PLC0415 – only here

        claims = jwt.decode(port.signer.token(self.body), options={"verify_signature": False})
        forged = jwt.encode(claims, "x" * 64, algorithm="HS256")
        self.expect_bad_token(port, forged)

    @pytest.mark.parametrize("pem", [None, "nonsense"])
    def test_without_a_usable_public_key_no_write_is_accepted(self, tmp_path: Path, pem: str | None) -> None:
        with control_port(an_engine(tmp_path), public_pem=pem) as port:
            self.expect_bad_token(port, port.signer.token(self.body))


def test_a_body_too_large_is_refused_while_it_is_read(port: Port) -> None:
    status, error = port.client.refuse(b" " * (MAX_BODY_BYTES + 1))
    assert (status, error.error) == (413, Refusal.TOO_LARGE)


def test_a_body_that_never_ends_is_refused(tmp_path: Path) -> None:
    with control_port(an_engine(tmp_path), body_timeout=0.2) as port, socket.create_connection(port.address) as client:
        lines = [
            f"PUT {SETPOINT_PATH} HTTP/1.1",
            "Host: x",
            "Content-Length: 100",
            f"Authorization: Bearer {port.signer.token(b'')}",
        ]
        client.sendall("\r\n".join([*lines, "", "{"]).encode())
        client.settimeout(20)
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert port.client.read().accepted is None


def test_a_client_that_says_nothing_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_engine.control.server._HEAD_TIMEOUT_SECONDS", 0.2)
    with control_port(an_engine(tmp_path)) as port, socket.create_connection(port.address) as silent:
        silent.sendall(b"GET / HT")
        silent.settimeout(20)
        assert silent.recv(1) == b"", "the connection ends"


def test_silent_clients_hold_the_port_for_moments_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_engine.control.server._HEAD_TIMEOUT_SECONDS", 1.0)
    with control_port(an_engine(tmp_path)) as port:
        crowd = [socket.create_connection(port.address) for _ in range(70)]

        def served() -> bool:
            # On a busy machine we, too, may be taken for silent.
            health = httpx.get(f"http://{port.address[0]}:{port.address[1]}{HEALTH_PATH}", timeout=60, trust_env=False)
            return health.status_code == 200

        eventually(served, expecting="it serves beside them")
        for client in crowd:
            client.close()


class TestPublicKeys:
    """A signing key is changed while the engine runs, by a file that the kubelet keeps current."""

    present, later = SetpointSigner(), SetpointSigner()

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "public-keys.pem"

    @pytest.fixture
    def port(self, tmp_path: Path, file: Path) -> Iterator[Port]:
        with control_port(an_engine(tmp_path), public_pem=self.present.public_pem, keys_file=file) as running:
            yield running

    def writes(self, port: Port, generation: int) -> tuple[int, int]:
        """The status that a write of each key gets."""
        statuses = []
        for signer in (self.present, self.later):
            body = setpoint(generation).model_dump_json().encode()
            statuses.append(port.client.put_raw(body, token=signer.token(body)).status_code)
        return statuses[0], statuses[1]

    def test_a_key_follows_another_without_a_restart(self, port: Port, file: Path) -> None:
        assert self.writes(port, 1) == (200, 401)
        file.write_text(self.present.public_pem + self.later.public_pem)
        assert self.writes(port, 2) == (200, 200)
        file.write_text(self.later.public_pem)
        assert self.writes(port, 3) == (401, 200)

    def test_the_key_of_the_pod_template_counts_again_where_the_file_goes(self, port: Port, file: Path) -> None:
        file.write_text(self.later.public_pem)
        assert self.writes(port, 1) == (401, 200)
        file.unlink()
        assert self.writes(port, 2) == (200, 401)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "no public key is configured"),
            ("nonsense", "the public key is no PEM"),
            (present.public_pem + "\nnonsense", "the public key is no PEM"),
            (present.public_pem * 3, "3 public keys are configured, at most 2 are accepted"),
            ("\x00" * 100, "the public key is no PEM"),
        ],
    )
    def test_a_file_without_usable_keys_accepts_nobody_and_is_named(
        self, port: Port, file: Path, text: str, says: str
    ) -> None:
        file.write_text(text)
        body = setpoint(1).model_dump_json().encode()
        status, error = port.client.refuse(body, token=self.present.token(body))
        assert (status, error.error) == (401, Refusal.BAD_TOKEN)
        assert f"{file}: {says}" in error.message

    def test_a_token_that_is_otherwise_wrong_is_told_so_whichever_key_signed_it(self, port: Port, file: Path) -> None:
        file.write_text(self.present.public_pem + self.later.public_pem)
        body = setpoint(1).model_dump_json().encode()
        for signer in (self.present, self.later):
            _, error = port.client.refuse(body, token=signer.token(body, lifetime=-31))
            assert "expired" in error.message
