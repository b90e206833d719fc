"""`flyball plan` over a real Prometheus: plain vLLM, Flyball's plugin, and a fleet that says nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flyball_engine.contract import Metric
from flyball_lab.harness.manifests import good
from flyball_lab.harness.plant import PlantPhase
from flyball_lab.harness.prometheus import prometheus
from flyball_operator.cli.entry import main
from flyball_operator.cli.time_range import rfc3339
from flyball_operator.kube.resources import INFERENCE_SERVICES
from support.fleet import Governed, Plain, filled
from support.stored_api import StoredApi, served

#: The look-back, and more than a scrape before it.
SECONDS = 310
CHAT = {Metric.TIME_TO_FIRST_TOKEN: 0.5, Metric.TIME_PER_OUTPUT_TOKEN: 0.06}
OBJECTIVES = ("--ttft", "500ms", "--tpot", "60ms")
#: As the InferenceService has them.
SPEC_OBJECTIVES = [
    {"name": "first-token", "metric": "TimeToFirstToken", "threshold": "500ms", "target": "95"},
    {"name": "per-token", "metric": "TimePerOutputToken", "threshold": "60ms", "target": "95"},
]
#: A fleet that was quiet, and then got more than it carries with so few places.
SWARM = Plain([PlantPhase(SECONDS / 2, 3, 120, 40), PlantPhase(SECONDS / 2, 14, 120, 40)], 1, namespace="full", seqs=4)
STEADY = Plain([PlantPhase(SECONDS, 4, 120, 40)], 2)
IDLE = Plain([PlantPhase(SECONDS, 1e-9, 120, 40)], 1, namespace="idle")
ROOMY = Governed([PlantPhase(SECONDS, 9, 120, 40)], 3, CHAT, namespace="own")
#: The same pods as a job sees them that scrapes vLLM's own port, and gives them no UID.
ROOMY_TWICE = Plain([PlantPhase(SECONDS, 0.2, 120, 40)], 3, namespace="own", name="chat")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The options that name a Prometheus that scraped all of them, and when."""
    folder = tmp_path_factory.mktemp("fleet")
    end = filled(folder, (SWARM, STEADY, IDLE, ROOMY, ROOMY_TWICE), seconds=SECONDS)
    with prometheus(folder) as running:
        yield "--prometheus", running.url, "--since", "5m", "--to", rfc3339(end)


Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(scraped: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> Plan:
    """The services of the plan by name."""

    def run(*arguments: str) -> dict[str, Any]:
        assert main(["plan", *scraped, "-o", "json", *arguments]) == 0
        return {one["service"]: one for one in json.loads(capsys.readouterr().out)["services"]}

    return run


def test_plain_vllm_and_the_plugin_in_one_fleet(plan: Plan) -> None:
    found = plan(*OBJECTIVES, "--gpus-per-replica", "2")
    model = "Qwen/Qwen3-8B"
    assert {name: len(one["windows"]) for name, one in found.items()} == dict.fromkeys(found, 5), "none is left out"
    assert set(found) == {f"full/{model}", f"team/{model}", f"idle/{model}", "own/uid-1"}

    swarm = found[f"full/{model}"]
    assert swarm["source"] == "vllm"
    assert swarm["limit"] == "max_num_seqs", "four ran at once, and others waited"
    assert swarm["replicas"]["advised"] > swarm["replicas_now"] == 1

    steady = found[f"team/{model}"]
    assert (steady["limit"], steady["replicas_now"], steady["replicas"]["advised"]) == ("nothing", 2, 2)
    assert steady["peak_requests_per_second"] == pytest.approx(5, abs=1.5)
    assert [one["met_ratio"][0] for one in steady["objectives"]] == pytest.approx([1.0, 1.0], abs=0.05)

    assert found[f"idle/{model}"]["limit"] == "idle"

    roomy = found["own/uid-1"]
    assert (roomy["source"], roomy["limit"], roomy["replicas_now"]) == ("plugin", "nothing", 3)
    assert roomy["replicas"]["advised"] < 3, "a step-time model says what was never tried"
    assert roomy["saved_gpus"] == 2 * roomy["saved_replicas"] > 0
    assert roomy["model_error_ratio"] < 0.1


def test_a_window_in_which_pods_came_from_none_is_left_out(plan: Plan, scraped: tuple[str, ...]) -> None:
    earlier = datetime.fromisoformat(scraped[-1]) - timedelta(seconds=30)
    found = plan(*OBJECTIVES, "--to", earlier.isoformat())
    assert {(len(one["windows"]), one["windows_left_out"]) for one in found.values()} == {(4, 1)}


def test_labels_make_up_services(plan: Plan) -> None:
    assert set(plan(*OBJECTIVES, "--by", "model_name")) == {"Qwen/Qwen3-8B", "own/uid-1"}
    assert set(plan(*OBJECTIVES, "-n", "full")) == {"full/Qwen/Qwen3-8B"}


def test_without_options_services_have_their_own_objectives_and_devices(
    scraped: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = StoredApi()
    service = good("chat", metadata__namespace="own", metadata__uid="uid-1", spec__objectives=SPEC_OBJECTIVES)
    service["spec"]["accelerator"] = {"resourceName": "nvidia.com/gpu"}
    api.put(INFERENCE_SERVICES, service)
    api.put(INFERENCE_SERVICES, good("mail", metadata__namespace="team", metadata__uid="uid-2"))
    with served(api, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        shown = []
        for output in ("json", "text", "html"):
            assert main(["plan", *scraped, "-o", output]) == 0
            shown.append(capsys.readouterr().out)
    document, text, page = json.loads(shown[0]), shown[1], shown[2]
    found = {one["service"]: one for one in document["services"]}
    assert [one["name"] for one in found["own/chat"]["objectives"]] == ["first-token", "per-token"]
    assert found["own/chat"]["saved_gpus"] > 0
    assert "no objectives are known" in found["team/Qwen/Qwen3-8B"]["replicas"]["why"]
    assert document["not_scraped"] == ["team/mail"]
    assert "own/chat (by Flyball's plugin)" in text
    assert page.count("<figure>") == len(found) + 1, "each has its load, and own/chat its objectives"
    assert max(map(len, text.splitlines())) <= 80


def test_what_there_is_nothing_to_plan_by(
    scraped: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert main(["plan", *OBJECTIVES, *arguments]) == 1
        return capsys.readouterr().err

    assert "no request came in namespace idle from " in refused(*scraped, "-n", "idle")
    young = refused(*scraped, "--since", "24h")
    assert "pods were there through no whole window of 60m from " in young
    assert "accepted: a shorter --since" in young
    assert "http://127.0.0.1:1 cannot be reached" in refused("--prometheus", "http://127.0.0.1:1")
    with prometheus(tmp_path) as empty:
        said = refused("--prometheus", empty.url)
    assert "has no metrics of vLLM from " in said
    assert "accepted: a Prometheus that scrapes port 8000 of vLLM" in said
    assert len(said.splitlines()) == 1
