"""A real vLLM with a key from the environment and a certificate from a Secret's files, as pods have them; it is traced.

It runs as on a processor without AVX-512, and is looked at from its first request on: its start shows these, too.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from flyball_engine.batching.gate import AdmissionReason
from flyball_engine.contract import HEALTH_PATH, METRICS_PATH, READY_HEADER, Metric, MetricName, ObjectiveSpec
from flyball_engine.vllm.routes import GENERATING_PATHS
from flyball_lab.harness.engine import ControlClient, setpoint
from flyball_lab.harness.launcher import environment
from flyball_lab.harness.manifests import good
from flyball_lab.harness.vllm_server import MODEL_NAME, VllmServer, started
from flyball_lab.harness.waiting import eventually
from flyball_operator.api.parse import parse_service
from flyball_operator.reconcile.plan import pod
from flyball_operator.reconcile.plan.snapshot import Config
from support.certificates import Authority
from support.collector import Collector, collector
from support.https_client import HTTPSClient
from support.secret_volume import SecretVolume, tls_data

pytestmark = pytest.mark.engine

KEY = "a-key-of-clients"
#: An objective that every answer here meets.
ANY_FIRST_TOKEN = ObjectiveSpec(metric=Metric.TIME_TO_FIRST_TOKEN, threshold_seconds=3600.0)
#: Where pods have the Secret.
MOUNTED = "/flyball-tls"
#: The span of a client, and the trace that it is of.
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
#: What it answers to a client without the key.
NO_KEY = 401
#: What multiplied matrices, as oneDNN's log of what it ran names it.
MULTIPLIED = re.compile(r"^onednn_verbose,.*exec,cpu,matmul,([^,]+),", re.MULTILINE)


@dataclass
class Secured:
    """The server, its files, who issues them, a client that trusts the issuer, and who collects its traces."""

    server: VllmServer
    secret: SecretVolume
    authority: Authority
    client: HTTPSClient
    collector: Collector

    @contextmanager
    def control(self) -> Iterator[ControlClient]:
        """Its control port."""
        with closing(ControlClient(self.server.control_url, self.server.signer)) as control:
            yield control

    def probed(self) -> str:
        """What a readiness probe hears, empty where all is well."""
        answer = self.client.get(HEALTH_PATH, **{READY_HEADER: "yes"})
        assert answer.status_code in (200, 503)
        return "" if answer.status_code == 200 else answer.text


def tls_arguments(mounted: Path) -> list[str]:
    """What the operator adds to an engine with `spec.engine.tls`, with the Secret mounted here."""
    manifest = good(metadata__namespace="team", spec__engine__tls={"secretName": "chat-tls"})
    manifest["metadata"]["uid"] = "uid-1"
    template = pod.render(parse_service(manifest), Config(plugin_image="p:1", public_key="PEM"), "hash")
    (owned,) = (one for one in template["spec"]["containers"][0]["command"] if one.startswith("--owned="))
    arguments = json.loads(owned.removeprefix("--owned="))
    return [one.replace(MOUNTED, str(mounted)) for one in arguments if "ssl" in one]


@pytest.fixture(scope="module")
def secured(
    server_python: str, plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    """A governed server with both."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    trusted = ssl.create_default_context(cadata=authority.pem)
    secret = SecretVolume(folder / "tls", tls_data(authority.issue("first")))
    with pytest.MonkeyPatch.context() as without_avx512, collector() as traces:
        without_avx512.setenv("ATEN_CPU_CAPABILITY", "avx2")
        with started(
            server_python,
            folder,
            model=model,
            plugin=plugin,
            owned=["--max-num-seqs=8", "--max-num-batched-tokens=512", *tls_arguments(secret.folder)],
            user=[f"--otlp-traces-endpoint={traces.url}/v1/traces"],
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
            VLLM_API_KEY=KEY,
            ONEDNN_VERBOSE="1",
        ) as plain:
            server = replace(plain, url=plain.url.replace("http:", "https:"), trusted=trusted)
            server.expect_ready()
            yield Secured(server, secret, authority, HTTPSClient(server.url, trusted, MODEL_NAME), traces)


@pytest.mark.begins_server
def test_it_answers_a_request_of_its_own_and_then_waits_for_its_setpoint(secured: Secured) -> None:
    eventually(lambda: "no setpoint yet" in secured.probed(), expecting="an answer", every=0.2)
    with secured.control() as control:
        control.put(setpoint(1))
        eventually(lambda: secured.probed() == "", expecting="the engine to be Ready")
        assert summed(secured.client.get(METRICS_PATH).text, "vllm:generation_tokens_total") == 2
        assert summed(control.metrics(), MetricName.REQUESTS) == 0, "it is nobody's request"


def summed(page: str, metric: str) -> float:
    """A counter, over all labels."""
    lines = [line for line in page.splitlines() if line.startswith(metric)]
    assert lines, f"no {metric}"
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_without_avx512_vllm_is_told_of_none(
    server_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    ask = "import torch; found = torch.cpu.get_capabilities(); print([name for name, there in found.items() if there])"
    told = subprocess.run(
        [server_python, "-c", ask], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert "avx2" in told.stdout
    assert "avx512" not in told.stdout
    assert "amx" not in told.stdout


def test_without_avx512_the_small_model_has_kernels_of_its_numbers(secured: Secured) -> None:
    assert secured.client.complete(key=KEY) == 200
    used = set(MULTIPLIED.findall(secured.server.log.read_text(errors="replace")))
    # Of bfloat16 oneDNN multiplies nothing there: torch does, in plain loops.
    assert used, "none of oneDNN's multiplications"
    # That of vLLM 0.26 has one for all that multiply float32.
    assert all(each.endswith("avx2") or each == "gemm:jit:f32" for each in used), used


def test_probes_and_scrapes_need_no_key_and_clients_do(secured: Secured) -> None:
    client = secured.client
    assert client.get("/health").status_code == 200
    assert "vllm:num_requests_running" in client.get("/metrics").text
    assert client.get("/v1/models").status_code == NO_KEY
    for path in GENERATING_PATHS:
        if path.startswith("/v1/"):
            assert client.complete(path) == client.complete(path, key="another") == NO_KEY, path
    assert client.complete(key=KEY) == 200


def test_the_key_does_not_guard_all_that_generates(secured: Secured) -> None:
    client = secured.client
    # SECURITY.md says so. Where this fails, vLLM guards it, too.
    assert client.complete("/invocations") == 200


def test_who_has_no_key_is_no_refusal_of_an_overload(secured: Secured) -> None:
    client = secured.client
    with secured.control() as control:
        control.put(setpoint(2, objectives=(ANY_FIRST_TOKEN,)))

        def counted(of: str) -> float:
            lines = (line for line in control.metrics().splitlines() if line.startswith("flyball_objective_"))
            return sum(float(line.rpartition(" ")[2]) for line in lines if of in line)

        before = counted('violated"'), counted('met"')
        assert client.complete() == NO_KEY
        assert client.complete(key=KEY) == 200
        eventually(lambda: counted('met"') == before[1] + 1, expecting="the answer is counted")
        assert counted('violated"') == before[0]


def test_a_request_at_the_gate_is_a_span_beside_vllms_own(secured: Secured) -> None:
    assert secured.client.complete(key=KEY, traceparent=f"00-{TRACE}-{PARENT}-01") == 200
    traced = secured.collector.spans
    eventually(lambda: {"flyball.gate", "llm_request"} <= traced(TRACE).keys(), expecting="both spans")
    gate = traced(TRACE)["flyball.gate"]
    assert gate.parent_span_id.hex() == PARENT
    found = {one.key: one.value.string_value for one in gate.attributes}
    assert found["flyball.gate.reason"] == AdmissionReason.NO_DEADLINE


def test_the_key_and_the_private_key_are_in_no_log(secured: Secured) -> None:
    log = secured.server.log.read_text(errors="replace")
    assert KEY not in log
    assert "PRIVATE KEY" not in log


def test_the_port_speaks_tls_alone_and_the_control_port_http(secured: Secured) -> None:
    plain = secured.server.url.replace("https:", "http:")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{plain}/health", timeout=30, trust_env=False)
    with secured.control() as control:
        assert "flyball_running" in control.metrics()


def test_each_renewed_certificate_is_served_without_a_restart(secured: Secured) -> None:
    client = secured.client
    assert client.presented() == "first"
    # VLLM by itself serves the first renewal, and none after it.
    for name in ("second", "third"):
        secured.secret.update(tls_data(secured.authority.issue(name)))
        eventually(lambda name=name: client.presented() == name, expecting=f"{name} is served")  # type: ignore[misc]
    assert secured.server.process.poll() is None
