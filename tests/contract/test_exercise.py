"""`flyball-bench` as a command, on a served simulated engine with a signed control port.

vLLM's load generator is not in this environment: a stand-in with its options makes the requests. The real one is used
on the engine level. The simulated engine has no batching strategies, so what is switched here is Continuous alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flyball_engine.contract import Env
from flyball_lab.benchmark.main import main
from flyball_lab.benchmark.report import Report
from flyball_lab.harness.engine import SERVICE, ControlClient, SetpointSigner, setpoint
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from support.exercises import Ended, flyball_bench

#: Seconds on this engine are few, and the points shall be done in one.
SMALL = ("--input-tokens=16", "--output-tokens=4", "--requests=2", "--workloads=uniform", "--tokenizer=none")


Refused = Callable[..., None]


def written(pem: bytes, folder: Path) -> Path:
    """A file with this key."""
    path = folder / "key.pem"
    path.write_bytes(pem)
    return path


def a_program(folder: Path, script: str) -> Path:
    """Of the shell."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@dataclass
class Rig:
    """The engine, and the exercise pointed at it."""

    url: str
    control: ControlClient
    control_url: str
    key: Path
    out: Path

    def run(self, *arguments: str, **how: Any) -> Ended:
        where = (f"--url={self.url}", f"--control={self.control_url}", f"--out={self.out}")
        return flyball_bench("run", *where, *SMALL, *arguments, **how)

    def sweep(self, *arguments: str, **how: Any) -> Ended:
        """With a key, so that settings are switched."""
        return self.run(f"--signing-key={self.key}", "--strategies=Continuous", *arguments, **how)

    def hold(self, limit: int) -> None:
        """Put a limit in force, whatever was before."""
        held = self.control.read().accepted
        epoch, generation = held.order() if held else (1, 0)
        self.control.put(setpoint(generation + 1, epoch=epoch, limits={"max_num_active_seqs": limit}))

    def limit(self) -> int | None:
        """That in force."""
        return self.control.read().cores[0].effective.max_num_active_seqs

    @contextmanager
    def slowed_down(self, factor: float) -> Iterator[None]:
        """Meanwhile a point takes so long that it is met half-way, however busy the machine is."""
        self._slow_down(factor)
        try:
            yield
        finally:
            self._slow_down(1)

    def _slow_down(self, factor: float) -> None:
        answer = httpx.put(f"{self.url}/simulator/slow-down", json={"factor": factor}, timeout=60, trust_env=False)
        assert answer.status_code < 300, answer.text

    def report(self) -> Report:
        return Report.model_validate_json((self.out / "report.json").read_bytes())

    def measured(self) -> list[int]:
        """Concurrency of each point kept, in order."""
        lines = (self.out / "results.jsonl").read_text().splitlines()
        return [json.loads(line)["point"]["concurrency"] for line in lines]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ControlClient, str, Path]]:
    signer, port, control = SetpointSigner(), free_port(), free_port()
    key = written(signer.private_pem, tmp_path_factory.mktemp("key"))
    settings: dict[str, str] = {
        Env.SERVICE_UID: SERVICE,
        Env.PUBLIC_KEY: signer.public_pem,
        Env.CONTROL_PORT: str(control),
    }
    serve = ("-m", "flyball_lab.simulator", "serve", "--preset=cpu-small", "--start-seconds=0", f"--port={port}")
    process = subprocess.Popen([sys.executable, *serve], env={**os.environ, **settings})
    url, control_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}"

    def up() -> bool:
        assert process.poll() is None
        return httpx.get(f"{url}/health", timeout=60, trust_env=False).status_code == 200

    client = ControlClient(control_url, signer)
    try:
        eventually(up, expecting="the engine serves")
        yield url, client, control_url, key
    finally:
        client.close()
        process.terminate()
        process.wait(20)


@pytest.fixture
def rig(engine: tuple[str, ControlClient, str, Path], tmp_path: Path) -> Rig:
    url, control, control_url, key = engine
    return Rig(url, control, control_url, key, tmp_path / "out")


def test_a_sweep_is_measured_kept_and_reported_and_the_engine_is_put_back(rig: Rig) -> None:
    rig.hold(7)
    ended = rig.sweep("--concurrency=1,8", "--label=first").expect(
        0, "Continuous · first", "output tokens/s", "The knee is", "the engine's setpoint is put back"
    )
    assert "[2/2]" in ended.err
    (line,) = rig.report().series
    assert [one.point.concurrency for one in line.measurements] == [1, 8]
    assert all(one.completed and not one.failed and one.e2e.p50 for one in line.measurements)
    assert (rig.out / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert rig.limit() == 7, "as it was before"


def test_arrivals_are_measured_and_not_measured_again(rig: Rig) -> None:
    arrivals = ("--rate=20", "--seconds=1", "--burstiness=0.5")
    rig.sweep(*arrivals).expect(0, "open loop, burstiness 0.5", "rate", "no advice from an open loop")
    (line,) = rig.report().series
    (one,) = line.measurements
    assert (one.point.rate, one.point.concurrency, one.completed, one.failed) == (20.0, None, 20, 0)
    rig.run(*arrivals, "--strategies=Continuous", f"--signing-key={rig.key}", "--python=/nowhere").expect(
        0, "1 of 1 points are measured already"
    )


def test_a_second_run_measures_what_is_missing_alone_and_a_fresh_one_everything(rig: Rig) -> None:
    rig.run("--concurrency=1").expect(0)
    rig.run("--concurrency=1,2").expect(0, "1 of 2 points are measured already")
    assert rig.measured() == [1, 2]
    again = rig.run("--concurrency=1,2", "--python=/nowhere").expect(0, "2 of 2 points are measured already")
    assert "as configured" in again.out, "reported all the same, and no generator was needed"
    rig.run("--concurrency=1", "--fresh").expect(0)
    assert rig.measured() == [1]
    assert (rig.out / "results.jsonl.old").exists()


def test_an_interrupted_run_keeps_what_it_measured_and_reports_it_and_puts_the_engine_back(rig: Rig) -> None:
    rig.hold(7)
    rig.sweep("--concurrency=1", "--output-tokens=40").expect(0)
    with rig.slowed_down(20):
        ended = rig.sweep("--concurrency=1,2", "--output-tokens=40", at=" at 2: measuring")
    ended.expect(130, "interrupted; what was measured is kept", "put back", "written: ")
    assert rig.measured() == [1]
    assert len(rig.report().series[0].measurements) == 1
    assert rig.limit() == 7


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_vllm_is_imported_ends_the_generator_at_once(
    rig: Rig, tmp_path: Path, by: signal.Signals, code: int
) -> None:
    # It hears no end of its orders, nor that it is told to end.
    began = tmp_path / "pid"
    importing = a_program(tmp_path, f"trap '' TERM; echo $$ > {began}.new; mv {began}.new {began}; exec sleep 600")

    def interrupt(process: subprocess.Popen[str]) -> None:
        eventually(began.exists, expecting="vLLM is being imported")
        process.send_signal(by)

    ended = rig.sweep("--concurrency=1", f"--python={importing}", at="importing vLLM", do=interrupt)
    ended.expect(code, "flyball-bench: interrupted", "the engine's setpoint is put back")
    assert "Traceback" not in ended.err
    with pytest.raises(ProcessLookupError):
        os.kill(int(began.read_text()), 0)


def test_a_disk_without_room_for_the_generators_log_spoils_no_point(rig: Rig) -> None:
    rig.out.mkdir()
    (rig.out / "generator.log").symlink_to("/dev/full")
    rig.run("--concurrency=1").expect(0, "written: ")
    assert rig.measured() == [1]


def test_a_point_of_which_every_request_fails_is_not_kept_and_ends_the_run(rig: Rig) -> None:
    # Longer than the model: the engine refuses each of them.
    rig.run("--concurrency=1", "--input-tokens=100000").expect(1, "every request failed", "HTTP 400")
    assert not (rig.out / "results.jsonl").exists()


def test_somebody_elses_setpoint_ends_the_run_and_stays(rig: Rig) -> None:
    def meddle(_: subprocess.Popen[str]) -> None:
        held = rig.control.read().accepted
        epoch = held.epoch if held else 0
        rig.control.put(setpoint(1, epoch=epoch + 1, limits={"max_num_active_seqs": 3}))

    with rig.slowed_down(4):
        ended = rig.sweep("--concurrency=1", "--output-tokens=40", at=" at 1: measuring", do=meddle)
    ended.expect(1, "--control", "could NOT be put back")
    assert rig.limit() == 3


class TestBeforeTheFirstPoint:
    """Whatever cannot work ends the run with 2, named, and nothing is measured."""

    @pytest.fixture
    def refused(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., None]]:
        """Run it in this process, which is quicker: it must end like this, and say all of these."""

        def run(arguments: Sequence[str], *said: str) -> None:
            where = [f"--url={rig.url}", f"--control={rig.control_url}", f"--out={rig.out}", *SMALL]
            assert main(["run", *where, *arguments]) == 2
            error = capsys.readouterr().err
            for text in said:
                assert text in error

        yield run
        assert not (rig.out / "results.jsonl").exists()

    def test_a_strategy_that_the_engine_lacks_is_refused_with_its_reason(self, rig: Rig, refused: Refused) -> None:
        lacking = "--strategies: this engine has no Static: the simulated engine has none yet; accepted: Continuous"
        refused([f"--signing-key={rig.key}", "--strategies=all"], lacking)

    def test_strategies_without_a_key_are_refused(self, refused: Refused) -> None:
        refused(["--strategies=Continuous"], "--strategies: needs --signing-key", "only concurrency is swept")

    def test_a_key_that_the_engine_does_not_accept(self, tmp_path: Path, refused: Refused) -> None:
        stranger = written(SetpointSigner().private_pem, tmp_path)
        refused([f"--signing-key={stranger}", "--strategies=Continuous"], "refuses the setpoint (BadToken)")

    def test_a_key_of_another_kind(self, tmp_path: Path, refused: Refused) -> None:
        key = generate_private_key(SECP256R1())
        other = written(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), tmp_path)
        refused([f"--signing-key={other}"], "--signing-key", "accepted: a PEM file with an Ed25519 private key")

    def test_another_service(self, refused: Refused) -> None:
        refused(["--service=other"], "--service", f"accepted: {SERVICE}")

    def test_a_model_that_is_not_served(self, refused: Refused) -> None:
        refused(["--model=gpt"], "--model: 'gpt' is not served", "accepted: simulated")

    def test_an_endpoint_that_is_not_there(self, refused: Refused) -> None:
        refused([f"--url=http://127.0.0.1:{free_port()}"], "--url", "does not answer")

    def test_an_endpoint_that_is_something_else(self, rig: Rig, refused: Refused) -> None:
        refused([f"--url={rig.control_url}"], "--url", "is no list of models (HTTP 404)")

    def test_a_control_port_that_is_something_else(self, rig: Rig, refused: Refused) -> None:
        refused([f"--control={rig.url}"], "--control", "is no control port")

    def test_a_python_without_vllm(self, refused: Refused) -> None:
        refused([], "--python", "No module named 'vllm'", "accepted: a Python interpreter that has vLLM")

    def test_a_python_that_is_none(self, refused: Refused) -> None:
        refused(["--python=/nowhere"], "--python: '/nowhere' is no program")

    @pytest.mark.parametrize(
        ("script", "says"), [("exit 0", "ended: it said nothing"), ("echo hello; cat", "'hello' is no answer of it")]
    )
    def test_a_program_that_is_no_python(self, tmp_path: Path, refused: Refused, script: str, says: str) -> None:
        program = a_program(tmp_path, script)
        named = f"--python: {program} does not run vLLM's load generator"
        refused([f"--python={program}"], named, says, "accepted: a Python interpreter that has vLLM")

    def test_a_program_for_another_machine(self, tmp_path: Path, refused: Refused) -> None:
        program = a_program(tmp_path, "")
        program.write_bytes(b"\x7fELF and nothing else")
        refused([f"--python={program}"], f"--python: {program}: Exec format error", "accepted: a Python interpreter")

    def test_a_model_of_which_nobody_says_where_it_is_from(self, rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["run", f"--url={rig.url}", f"--out={rig.out}"]) == 2
        lacking = "--tokenizer: the endpoint does not say what its model was loaded from; accepted: a folder, or a name"
        assert lacking in capsys.readouterr().err

    def test_results_that_are_none(self, rig: Rig, refused: Refused) -> None:
        rig.out.mkdir()
        (rig.out / "results.jsonl").write_text("something else\n")
        refused([], "results.jsonl, line 1")
        (rig.out / "results.jsonl").unlink()
