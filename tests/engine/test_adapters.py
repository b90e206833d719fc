"""A real vLLM with two API servers loads and unloads LoRA adapters while it serves, by the list in its pod."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from flyball_engine.adapters import AdapterReport, AdapterState
from flyball_lab.harness.engine import ControlClient
from flyball_lab.harness.vllm_server import MODEL_NAME, started
from flyball_lab.harness.waiting import eventually
from support.hub import Hub, serving
from support.installed import Installed
from support.lora import PodList, adapter_files, write_adapter
from support.served import Served

pytestmark = pytest.mark.engine

#: Requests, each over a connection of its own, of which some reach each of two API servers.
MANY = 12
#: Versions whose prefix cache would take prompts of one adapter for those of another of its name.
CACHED_BY_NAME = ("0.26.0", "0.29.0")


class Adapted:
    """A server and the list of its adapters; `folder` is for their files, `hub` has one of the name org/tiny."""

    def __init__(self, served: Served, pod: PodList, folder: Path, hub: Hub) -> None:
        self.served, self.list, self.folder, self.hub = served, pod, folder, hub

    def write(self, name: str, *, seed: int, rank: int = 8) -> str:
        """An adapter in a folder of the pod; its uri."""
        return write_adapter(self.folder / name, adapter_files(seed, rank=rank))

    def answer(self, model: str) -> httpx.Response:
        """What a short completion is answered with, over a connection of its own."""
        body = {"model": model, "prompt": "def main(argv):", "max_tokens": 8, "temperature": 0}
        return httpx.post(f"{self.served.server.url}/v1/completions", json=body, timeout=60, trust_env=False)

    def text(self, model: str) -> str:
        """What every API server answers of this model: the same."""
        texts = {self.answer(model).raise_for_status().json()["choices"][0]["text"] for _ in range(MANY)}
        assert len(texts) == 1, f"API servers answer {model} in different ways: {texts}"
        return str(texts.pop())

    def names(self) -> set[str]:
        """Names in /v1/models that some API server has."""
        asked = [
            httpx.get(f"{self.served.server.url}/v1/models", timeout=60, trust_env=False).json() for _ in range(MANY)
        ]
        return {one["id"] for answer in asked for one in answer["data"]}

    def reports(self) -> dict[str, AdapterReport]:
        """What the control port says of each."""
        found = self.served.control.read().adapters
        assert found is not None
        return {report.adapter.name: report for report in found}

    def expect(self, **states: AdapterState) -> dict[str, AdapterReport]:
        """Wait until these adapters and no others are so far, in all API servers."""
        wanted = {name.replace("_", "-"): state for name, state in states.items()}
        eventually(
            lambda: {name: report.state for name, report in self.reports().items()} == wanted,
            expecting=f"adapters {wanted}",
            within=120,
        )
        return self.reports()

    def expect_unknown(self, model: str) -> None:
        """Wait until no API server knows it: each looks at the list by itself."""
        eventually(
            lambda: {self.answer(model).status_code for _ in range(MANY)} == {404}, expecting=f"nobody knows {model}"
        )


@pytest.fixture(scope="module")
def adapted(
    server_python: str, forking_plugin: Path, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("adapters")
    pod = PodList(folder / "adapters.json")
    pod.say()
    # As pods have them, but for the number of adapters that vLLM keeps.
    owned = ["--max-num-seqs=64", "--max-num-batched-tokens=512", "--enable-prefix-caching", "--enable-lora"]
    user = ["--max-loras=2", "--max-cpu-loras=4", "--api-server-count=2"]
    with (
        serving(Hub(files=adapter_files(7))) as hub,
        started(
            server_python,
            tmp_path_factory.mktemp("server"),
            model=model,
            plugin=forking_plugin,
            owned=owned,
            user=user,
            HF_ENDPOINT=hub.address,
            # As where the model is in a cache.
            HF_HUB_OFFLINE="1",
            TMPDIR=str(tmp_path_factory.mktemp("tmp")),
            FLYBALL_ADAPTERS_FILE=str(pod.path),
        ) as server,
    ):
        server.expect_ready()
        with closing(ControlClient(server.control_url, server.signer)) as control:
            eventually(control.read, expecting="the first API server has the control port")
            yield Adapted(Served(server, control), pod, folder, hub)


@pytest.fixture(autouse=True)
def no_adapters(adapted: Adapted) -> None:
    """Each test begins without adapters."""
    adapted.list.say()
    adapted.expect()


def test_an_adapter_is_loaded_named_and_unloaded_while_it_serves(adapted: Adapted) -> None:
    before = adapted.text(MODEL_NAME)
    adapted.expect_unknown("sql")
    adapted.list.say(sql=adapted.write("sql", seed=1))
    adapted.expect(sql=AdapterState.LOADED)
    assert adapted.names() == {MODEL_NAME, "sql"}
    assert adapted.text("sql") != before
    assert adapted.text(MODEL_NAME) == before
    adapted.list.say()
    adapted.expect()
    adapted.expect_unknown("sql")
    assert adapted.names() == {MODEL_NAME}


def test_each_name_has_its_own_weights_in_every_api_server(adapted: Adapted) -> None:
    """Numbered in each API server by itself, two names could be mixed up between them."""
    one, two = adapted.write("one", seed=2), adapted.write("two", seed=3)
    adapted.list.say(one=one, two=two)
    adapted.expect(one=AdapterState.LOADED, two=AdapterState.LOADED)
    assert len({adapted.text(name) for name in ("one", "two", MODEL_NAME)}) == 3


def test_another_uri_of_a_name_is_another_adapter(adapted: Adapted, installed: Installed) -> None:
    adapted.list.say(law=adapted.write("law-1", seed=4))
    adapted.expect(law=AdapterState.LOADED)
    before = adapted.text("law")
    adapted.list.say(law=adapted.write("law-2", seed=5))
    if installed.support.vllm in CACHED_BY_NAME:
        reports = adapted.expect(law=AdapterState.FAILED)
        assert "prefix cache knows adapters by name alone" in reports["law"].message
        assert adapted.text("law") == before
        return
    eventually(
        lambda: all(adapted.answer("law").json()["choices"][0]["text"] != before for _ in range(MANY)),
        expecting="every API server answers with the new one",
    )
    adapted.expect(law=AdapterState.LOADED)
    assert adapted.text("law") != before, "no prompt of the old one is taken from the prefix cache"


def test_an_adapter_of_a_hub_is_downloaded_by_its_revision_where_the_model_needs_no_network(adapted: Adapted) -> None:
    adapted.list.say(tiny="hf://org/tiny@main", lost="hf://org/lost@main")
    reports = adapted.expect(tiny=AdapterState.LOADED, lost=AdapterState.FAILED)
    assert "org/lost" in reports["lost"].message
    assert adapted.text("tiny") != adapted.text(MODEL_NAME)
    assert any(path.endswith("/revision/main") for path, _ in adapted.hub.asked)


def test_what_cannot_be_loaded_is_named_with_why_and_holds_up_no_other(adapted: Adapted) -> None:
    broken = adapter_files(6)
    broken["adapter_model.safetensors"] = broken["adapter_model.safetensors"][:-1000]
    adapted.list.say(
        good=adapted.write("good", seed=6),
        broken=write_adapter(adapted.folder / "broken", broken),
        large=adapted.write("large", seed=6, rank=64),
        missing="file:///nowhere/at-all",
        chat=adapted.write("chat", seed=6),
    )
    failed = AdapterState.FAILED
    reports = adapted.expect(good=AdapterState.LOADED, broken=failed, large=failed, missing=failed, chat=failed)
    assert "vLLM refuses it" in reports["broken"].message
    assert "max_lora_rank" in reports["large"].message
    assert reports["missing"].message.startswith("/nowhere/at-all has no adapter_config.json")
    assert "name of the model itself" in reports["chat"].message
    assert adapted.names() == {MODEL_NAME, "good"}


def test_requests_and_their_tokens_are_counted_by_adapter(adapted: Adapted) -> None:
    adapted.list.say(counted=adapted.write("counted", seed=8))
    adapted.expect(counted=AdapterState.LOADED)
    for _ in range(MANY):
        adapted.answer("counted").raise_for_status()
        adapted.answer(MODEL_NAME).raise_for_status()
        adapted.answer("nobody-s")
    requests = 'flyball_adapter_requests_total{adapter="counted",outcome="finished"}'
    tokens = 'flyball_adapter_generated_tokens_total{adapter="counted"}'

    def counts() -> dict[str, float]:
        lines = httpx.get(f"{adapted.served.server.control_url}/metrics", timeout=60, trust_env=False).text.splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines)
            if name.startswith("flyball_adapter")
        }

    eventually(lambda: counts()[requests] == MANY, expecting=f"{MANY} requests of both API servers are counted")
    assert counts()[tokens] == 8 * MANY
    assert {name.partition('adapter="')[2].partition('"')[0] for name in counts()} == {"counted"}


def test_nobody_else_can_load_one(adapted: Adapted) -> None:
    """Whoever reaches the port could."""
    body = {"lora_name": "mine", "lora_path": adapted.write("mine", seed=9).removeprefix("file://")}
    answer = httpx.post(f"{adapted.served.server.url}/v1/load_lora_adapter", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 404
