"""The download of a model, by the client that the engine image has, from a small hub on loopback."""

from __future__ import annotations

import fcntl
import json
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flyball_engine.download.files import MANIFEST, PARTS, part_of
from flyball_engine.model_cache import PROGRESS_PATH, DownloadExit, progress_of
from flyball_lab.harness.ports import free_port
from flyball_lab.harness.vllm_server import MODEL_NAME, started
from flyball_lab.harness.waiting import eventually
from support.downloads import FILES, TAKEN, WEIGHTS, Downloads
from support.hub import COMMIT, Hub, serving


@pytest.fixture
def downloads(vllm_python: str, tmp_path: Path) -> Downloads:
    # A name as folders of buckets have it: an engine must take it.
    return Downloads(vllm_python, tmp_path / "models/s3+models+tiny", tmp_path / "termination-log")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(FILES)) as served:
        yield served


def test_a_model_is_downloaded_once(downloads: Downloads, hub: Hub) -> None:
    code, message = downloads.run(hub.address)
    assert code == 0
    size = sum(len(FILES[name]) for name in TAKEN)
    assert message == f"downloaded org/tiny at commit {COMMIT}: 2 files, {size} bytes"
    assert downloads.whole()
    # Weights in another format would double the download.
    assert not hub.gets("pytorch_model.bin")
    manifest = json.loads((downloads.folder / MANIFEST).read_text())
    assert {name: one["size"] for name, one in manifest["files"].items()} == {name: len(FILES[name]) for name in TAKEN}
    assert not (downloads.folder / PARTS).exists()
    asked = len(hub.asked)
    code, message = downloads.run(hub.address)
    assert (code, len(hub.asked)) == (0, asked)
    assert "nothing was downloaded" in message


def test_only_what_is_damaged_comes_anew(downloads: Downloads, hub: Hub) -> None:
    downloads.run(hub.address)
    (downloads.folder / "sub/model.safetensors").write_bytes(WEIGHTS[:-1] + b"?")
    assert downloads.run(hub.address)[0] == 0
    assert downloads.whole()
    assert [len(hub.gets(name)) for name in TAKEN] == [1, 2]


def test_a_download_says_how_far_it_is(downloads: Downloads, hub: Hub) -> None:
    hub.holds["sub/model.safetensors"] = 12_000_000
    port = free_port()
    process = downloads.start(hub.address, arguments=[f"--progress-port={port}"])
    answer = eventually(
        lambda: httpx.get(f"http://127.0.0.1:{port}{PROGRESS_PATH}", timeout=5, trust_env=False),
        expecting="the download answers",
    )
    found = progress_of(answer.content)
    assert found is not None
    assert found.total == sum(len(FILES[name]) for name in TAKEN)
    hub.go_on.set()
    process.communicate(timeout=60)
    assert (process.returncode, downloads.whole()) == (0, True)


def test_a_port_that_is_taken_is_told_and_holds_nothing_up(downloads: Downloads, hub: Hub) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = downloads.start(hub.address, arguments=[f"--progress-port={port}"])
        _, said = process.communicate(timeout=300)
    assert (process.returncode, downloads.whole()) == (0, True)
    assert f"nobody can ask how far it is: port {port}" in said


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_stopped_in_the_middle_goes_on(downloads: Downloads, hub: Hub, sent: signal.Signals) -> None:
    hub.holds["sub/model.safetensors"] = 12_000_000
    process = downloads.start(hub.address)

    def in_the_middle() -> bool:
        part = part_of(downloads.folder, COMMIT, "sub/model.safetensors")
        return part.exists() and part.stat().st_size > 0 and (downloads.folder / "config.json").exists()

    # The client writes in blocks of 10 MB.
    eventually(lambda: len(hub.gets("sub/model.safetensors")) == 1, expecting="the file is asked for")
    eventually(in_the_middle, expecting="a part of the weights")
    process.send_signal(sent)
    process.communicate(timeout=60)
    assert process.returncode == (143 if sent == signal.SIGTERM else -sent)
    assert not (downloads.folder / MANIFEST).exists()
    hub.go_on.set()
    assert downloads.run(hub.address)[0] == 0
    assert downloads.whole()
    first, second = hub.gets("sub/model.safetensors")
    assert first == ""
    assert second.startswith("bytes=")
    assert len(hub.gets("config.json")) == 1


def test_nothing_is_kept_of_a_commit_that_the_revision_meant_before(downloads: Downloads, hub: Hub) -> None:
    hub.files = {
        "config.json": FILES["config.json"],
        "model.safetensors.index.json": b'{"weight_map": {}}',
        "model-00001-of-00002.safetensors": WEIGHTS[:10],
        "model-00002-of-00002.safetensors": WEIGHTS,
    }
    hub.damaged["model-00002-of-00002.safetensors"] = 2
    assert downloads.run(hub.address)[0] == DownloadExit.CHECKSUM_WRONG
    assert (downloads.folder / "model-00001-of-00002.safetensors").exists()
    # The shards are one file now, in a folder.
    hub.commit, hub.files = "ab" * 20, FILES
    assert downloads.run(hub.address)[0] == 0
    assert downloads.whole()
    found = {str(path.relative_to(downloads.folder)) for path in downloads.folder.rglob("*") if path.is_file()}
    assert found == {".flyball-lock", MANIFEST, *TAKEN}


def test_the_second_waits_for_the_first(downloads: Downloads, hub: Hub) -> None:
    hub.holds["sub/model.safetensors"] = 10
    first = downloads.start(hub.address)
    eventually(lambda: len(hub.gets("sub/model.safetensors")) == 1, expecting="the first downloads")
    second = downloads.start(hub.address)
    hub.go_on.set()
    for process in (first, second):
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert downloads.whole()
    assert [len(hub.gets(name)) for name in TAKEN] == [1, 1]


def test_who_waits_too_long_says_so(downloads: Downloads, hub: Hub) -> None:
    downloads.folder.mkdir(parents=True)
    with (downloads.folder / ".flyball-lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, message = downloads.run(hub.address, arguments=["--lock-seconds=0"])
    assert code == DownloadExit.NOT_LOCKED
    assert "has not ended in 0 s" in message


def test_a_file_that_is_damaged_on_its_way_comes_again(downloads: Downloads, hub: Hub) -> None:
    hub.damaged["sub/model.safetensors"] = 1
    assert downloads.run(hub.address)[0] == 0
    assert downloads.whole()


def test_a_file_that_is_larger_than_the_client_takes_at_once_comes_all_the_same(downloads: Downloads, hub: Hub) -> None:
    # 50 GB in the client.
    smaller = "import sys, huggingface_hub.constants as found; found.MAX_HTTP_DOWNLOAD_SIZE = 1_000_000"
    run = "from flyball_engine.download.__main__ import main, os; main(sys.argv[1:], os.environ)"
    assert downloads.run(hub.address, module=("-c", f"{smaller}; {run}"))[0] == 0
    assert downloads.whole()


@pytest.mark.parametrize("name", TAKEN)
def test_a_checksum_that_stays_wrong_fails(downloads: Downloads, hub: Hub, name: str) -> None:
    hub.damaged[name] = 2
    code, message = downloads.run(hub.address)
    assert code == DownloadExit.CHECKSUM_WRONG
    assert name in message
    assert not (downloads.folder / MANIFEST).exists()
    assert downloads.run(hub.address)[0] == 0


def test_a_missing_revision_and_a_missing_model_are_told_apart(downloads: Downloads, hub: Hub) -> None:
    code, message = downloads.run(hub.address, revision="v9")
    assert (code, "RevisionNotFoundError" in message) == (DownloadExit.REVISION_MISSING, True)
    code, message = downloads.run(hub.address, model="org/other")
    assert (code, "org/other" in message) == (DownloadExit.MODEL_MISSING, True)


def test_a_token_is_asked_for_and_taken_from_the_environment(downloads: Downloads, hub: Hub) -> None:
    hub.token = "hf_right"
    code, message = downloads.run(hub.address)
    assert code == DownloadExit.NO_ACCESS
    assert message.startswith("the hub gives no access")
    assert downloads.run(hub.address, env={"HF_TOKEN": "hf_wrong"})[0] == DownloadExit.NO_ACCESS
    assert downloads.run(hub.address, env={"HF_TOKEN": "hf_right"})[0] == 0
    assert "hf_right" not in downloads.log.read_text()


@pytest.mark.parametrize("status", [403, 500, 503])
def test_a_refusal_is_no_outage(downloads: Downloads, hub: Hub, status: int) -> None:
    hub.away = status
    wanted = DownloadExit.NO_ACCESS if status == 403 else DownloadExit.HUB_UNREACHABLE
    assert downloads.run(hub.address)[0] == wanted


def test_a_hub_that_is_away_is_said_to_be_so(downloads: Downloads) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, message = downloads.run(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert code == DownloadExit.HUB_UNREACHABLE
    assert message.startswith("the hub cannot be reached")


@pytest.mark.parametrize("away", [0, 404, 500])
def test_a_password_in_the_address_of_the_hub_is_not_told(downloads: Downloads, hub: Hub, away: int) -> None:
    hub.away = away
    process = downloads.start(hub.address.replace("://", "://user:hunter2@"))
    _, said = process.communicate(timeout=300)
    assert (process.returncode == 0) == (not away)
    assert "hunter2" not in said + downloads.log.read_text()


def test_a_disk_that_is_full_is_said_to_be_so(downloads: Downloads, hub: Hub) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    code, message = downloads.run(hub.address, preexec_fn=small_files)
    assert code == DownloadExit.DISK_FULL
    assert "no room on the volume" in message
    # With room, it goes on with what there is.
    assert downloads.run(hub.address)[0] == 0
    assert downloads.whole()


def test_vllm_serves_the_folder_without_a_hub(
    server_python: str,
    forking_plugin: Path,
    model: Path,
    downloads: Downloads,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = {str(path.relative_to(model)): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    with serving(Hub(files)) as hub:
        assert downloads.run(hub.address)[0] == 0
        asked = len(hub.asked)
        found = {path: path.stat().st_mtime_ns for path in downloads.folder.rglob("*")}
        # Not below the test's own folder: vLLM has sockets there, whose paths may have 107 characters.
        folder = tmp_path_factory.mktemp("served")
        # Servers of tests are offline (HF_HUB_OFFLINE).
        with started(
            server_python, folder, model=downloads.folder, plugin=forking_plugin, HF_ENDPOINT=hub.address
        ) as server:
            server.expect_ready()
            body = {"model": MODEL_NAME, "prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False)
            assert answer.json()["usage"]["completion_tokens"] == 3
        assert len(hub.asked) == asked
    # Pods mount it read-only.
    assert {path: path.stat().st_mtime_ns for path in downloads.folder.rglob("*")} == found
