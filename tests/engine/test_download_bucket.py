"""The download of a model from S3, by the client that engine images have, from a real server on loopback."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_engine.download.files import MANIFEST, PARTS
from flyball_engine.model_cache import DownloadExit
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.buckets import SECRET, Buckets, serving_buckets
from support.downloads import FILES, TAKEN, WEIGHTS, Downloads

SIZE = sum(len(FILES[name]) for name in TAKEN)


@pytest.fixture(scope="module")
def server(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buckets]:
    has_client = subprocess.run([vllm_python, "-c", "import boto3"], capture_output=True, check=False).returncode == 0
    if not has_client:
        pytest.skip("boto3 is in the environment of the images' vLLM alone, not in those of earlier ones")
    with serving_buckets(vllm_python, tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def bucket(server: Buckets, tmp_path: Path) -> str:
    """A bucket of this test's own, which has the model in the folder `team/tiny`, and another beside it."""
    name = f"models-{uuid.uuid4()}"
    server.upload(name, "team/tiny/", FILES, tmp_path)
    server.upload(name, "team/tiny-2/", {"config.json": b"of another"}, tmp_path)
    return name


@pytest.fixture
def downloads(vllm_python: str, tmp_path: Path) -> Downloads:
    return Downloads(vllm_python, tmp_path / "models/tiny", tmp_path / "termination-log")


def uri(bucket: str, folder: str = "/team/tiny") -> str:
    return f"s3://{bucket}{folder}"


@pytest.mark.parametrize("folder", ["/team/tiny", "/team/tiny/"])
def test_a_model_is_downloaded_once(downloads: Downloads, server: Buckets, bucket: str, folder: str) -> None:
    model = uri(bucket, folder)
    code, message = downloads.run(model=model, env=server.variables)
    assert code == 0
    assert message.startswith(f"downloaded {model} with content ")
    assert message.endswith(f": 2 files, {SIZE} bytes")
    assert downloads.whole()
    manifest = json.loads((downloads.folder / MANIFEST).read_text())
    # Weights in another format would double the download.
    assert {name: one["size"] for name, one in manifest["files"].items()} == {name: len(FILES[name]) for name in TAKEN}
    assert not (downloads.folder / PARTS).exists()
    nobody = server.variables | {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}
    code, message = downloads.run(model=model, env=nobody)
    assert code == 0, "what is there needs no server"
    assert "nothing was downloaded" in message


def test_a_whole_bucket_may_be_the_model(downloads: Downloads, server: Buckets, bucket: str, tmp_path: Path) -> None:
    alone = f"{bucket}-all"
    server.upload(alone, "", FILES, tmp_path)
    assert downloads.run(model=uri(alone, ""), env=server.variables)[0] == 0
    assert downloads.whole()


def test_only_what_is_damaged_comes_anew(downloads: Downloads, server: Buckets, bucket: str) -> None:
    downloads.run(model=uri(bucket), env=server.variables)
    (downloads.folder / "sub/model.safetensors").write_bytes(WEIGHTS[:-1] + b"?")
    before = (downloads.folder / "config.json").stat().st_ino
    assert downloads.run(model=uri(bucket), env=server.variables)[0] == 0
    assert downloads.whole()
    assert (downloads.folder / "config.json").stat().st_ino == before


def test_what_was_stopped_in_the_middle_goes_on(downloads: Downloads, server: Buckets, bucket: str) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000_000, 9_000_000))

    code, message = downloads.run(model=uri(bucket), env=server.variables, preexec_fn=small_files)
    assert code == DownloadExit.DISK_FULL
    assert "no room on the volume" in message
    asked = len(server.log.read_text().splitlines())
    code, message = downloads.run(model=uri(bucket), env=server.variables)
    assert (code, downloads.whole()) == (0, True)
    answers = server.log.read_text().splitlines()[asked:]
    assert any(" 206 " in line and "model.safetensors" in line for line in answers), "the rest alone was asked for"


def test_a_signal_ends_it_and_keeps_what_there_is(downloads: Downloads, server: Buckets, bucket: str) -> None:
    process = downloads.start(model=uri(bucket), env=server.variables)
    begun = lambda: process.poll() is not None or any(downloads.folder.glob(f"{PARTS}/*"))  # noqa: E731
    eventually(begun, expecting="it downloads, or has downloaded")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (0, 143)
    assert downloads.run(model=uri(bucket), env=server.variables)[0] == 0
    assert downloads.whole()


def test_content_that_is_not_what_was_uploaded_is_refused(downloads: Downloads, server: Buckets, bucket: str) -> None:
    with (server.root / bucket / "team/tiny/config.json").open("r+b") as file:
        file.write(b"[")
    code, message = downloads.run(model=uri(bucket), env=server.variables)
    assert code == DownloadExit.CHECKSUM_WRONG
    assert "config.json" in message or "checksum" in message
    assert not (downloads.folder / MANIFEST).exists()


def test_an_object_that_is_changed_meanwhile_is_not_mixed_with_what_was_listed(
    server: Buckets, bucket: str, tmp_path: Path
) -> None:
    script = """
import pathlib, sys
sys.path.insert(0, sys.argv[3])
from flyball_engine.download.bucket import Bucket
from flyball_engine.download.failure import DownloadError
import boto3
name, part = sys.argv[1], pathlib.Path(sys.argv[2])
source = Bucket(f"s3://{name}/team/tiny")
commit, files = source.list_files()
(file,) = [one for one in files if one.name == "config.json"]
boto3.client("s3").put_object(Bucket=name, Key="team/tiny/config.json", Body=b"of another model altogether")
assert source.list_files()[0] != commit
try:
    source.fetch(commit, file, part)
except DownloadError as error:
    print(error.code.name, error)
"""
    said = server.ask(script, bucket, str(tmp_path / "part"), str(ROOT / "engine/src"))
    assert said.startswith("CHECKSUM_WRONG an object was changed while it was downloaded: ")
    assert (tmp_path / "part").read_bytes() == b""


def test_parts_of_different_sizes_are_no_reason_to_download_for_ever(
    downloads: Downloads, server: Buckets, bucket: str
) -> None:
    """Nobody tells how large each part was. What arrives twice alike is what is there."""
    script = """
import boto3, sys
client, name = boto3.client("s3"), dict(Bucket=sys.argv[1], Key="team/uneven/model.safetensors")
upload = client.create_multipart_upload(**name)["UploadId"]
body = open(sys.argv[2], "rb").read()
ends, parts, at = (5 << 20, 11 << 20, len(body)), [], 0
for number, end in enumerate(ends, 1):
    made = client.upload_part(**name, UploadId=upload, PartNumber=number, Body=body[at:end])
    parts.append({"PartNumber": number, "ETag": made["ETag"]})
    at = end
client.complete_multipart_upload(**name, UploadId=upload, MultipartUpload={"Parts": parts})
"""
    weights = downloads.log.parent / "weights"
    weights.write_bytes(WEIGHTS)
    server.ask(script, bucket, str(weights))
    process = downloads.start(model=uri(bucket, "/team/uneven"), env=server.variables)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert (downloads.folder / "model.safetensors").read_bytes() == WEIGHTS
    assert "it arrived twice alike" in said


def test_a_line_break_behind_a_credential_is_no_part_of_it(downloads: Downloads, server: Buckets, bucket: str) -> None:
    """So Secrets are that were made of a file."""
    ends = {name: f"{value}\n" for name, value in server.variables.items() if name.startswith("AWS_SECRET")}
    assert downloads.run(model=uri(bucket), env=server.variables | ends)[0] == 0


@pytest.mark.parametrize(
    ("folder", "changes", "code", "said"),
    [
        ("/team/nothing", {}, DownloadExit.MODEL_MISSING, "has no file"),
        ("-other/team/tiny", {}, DownloadExit.MODEL_MISSING, "there is no such bucket or object"),
        ("/team/tiny", {"AWS_SECRET_ACCESS_KEY": "x"}, DownloadExit.NO_ACCESS, "the bucket gives no access"),
        ("/team/tiny", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, DownloadExit.NO_ACCESS, "credentials"),
    ],
    ids=["no such folder", "no such bucket", "wrong secret", "no credentials"],
)
def test_what_is_wrong_is_told(
    downloads: Downloads, server: Buckets, bucket: str, folder: str, changes: dict[str, str], code: int, said: str
) -> None:
    found, message = downloads.run(model=uri(bucket, folder), env=server.variables | changes)
    assert (found, said in message) == (code, True), message
    assert SECRET not in message


def test_a_server_that_is_away_is_said_to_be_so(downloads: Downloads, server: Buckets) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{taken.getsockname()[1]}"}
        code, message = downloads.run(model="s3://models/tiny", env=server.variables | away)
    assert code == DownloadExit.HUB_UNREACHABLE
    assert "the server of the bucket cannot be reached" in message


def test_an_image_without_the_client_is_named(downloads: Downloads, server: Buckets) -> None:
    without = "import sys; sys.modules['boto3'] = None"
    run = "from flyball_engine.download.__main__ import main, os; main(sys.argv[1:], os.environ)"
    code, message = downloads.run(model="s3://models/tiny", env=server.variables, module=("-c", f"{without}; {run}"))
    assert code == DownloadExit.CLIENT_MISSING
    assert message.startswith("the engine image has no boto3")
