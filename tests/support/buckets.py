"""A real S3 server on loopback (versitygw, whose objects are files of a folder), and what is put into its buckets."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from flyball_lab.harness.ports import free_port
from flyball_lab.harness.waiting import eventually
from support.binaries import binary

KEY, SECRET, REGION = "reader", "not-to-be-told", "us-east-1"
#: The least that S3 takes for a part that is not the last.
PART_BYTES = 5 << 20

#: Larger files in parts, as every tool uploads weights.
UPLOAD = """
import boto3, json, sys
from boto3.s3.transfer import TransferConfig
bucket, folder, part_bytes = json.loads(sys.argv[1])
client = boto3.client("s3")
try:
    client.create_bucket(Bucket=bucket)
except client.exceptions.BucketAlreadyOwnedByYou:
    pass
sizes = TransferConfig(multipart_threshold=part_bytes, multipart_chunksize=part_bytes)
for name, path in json.loads(sys.stdin.read()).items():
    client.upload_file(path, bucket, f"{folder}{name}", Config=sizes)
"""


@dataclass
class Buckets:
    """The server. `python`: one with its client. `root`: the folder whose folders are buckets. `log`: its requests."""

    address: str
    python: str
    root: Path
    log: Path

    @property
    def variables(self) -> dict[str, str]:
        """What tells a client of the server, and who asks."""
        return {
            "AWS_ENDPOINT_URL_S3": self.address,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            # Else it asks for the credentials of a machine at Amazon, and waits.
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def upload(self, bucket: str, folder: str, files: Mapping[str, bytes], scratch: Path) -> None:
        """Put files into a folder of a bucket; `scratch`: a folder for them until they are there."""
        paths = {}
        for number, (name, body) in enumerate(files.items()):
            path = scratch / f"object-{number}"
            path.write_bytes(body)
            paths[name] = str(path)
        self.ask(UPLOAD, json.dumps([bucket, folder, PART_BYTES]), said=json.dumps(paths))

    def ask(self, script: str, *arguments: str, said: str = "") -> str:
        """Run a script with the client; returns what it prints."""
        done = subprocess.run(
            [self.python, "-c", script, *arguments],
            input=said,
            env=self.variables | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def serving_buckets(python: str, folder: Path) -> Iterator[Buckets]:
    """The server, as long as the block lasts."""
    root, log, port = folder / "buckets", folder / "requests.log", free_port()
    root.mkdir()
    address = f"127.0.0.1:{port}"
    command = [binary("versitygw"), "--port", address, "--access", KEY, "--secret", SECRET, "--region", REGION]
    with log.open("wb") as to:
        process = subprocess.Popen([*command, "posix", str(root)], stdout=to, stderr=to)
    try:
        eventually(partial(_answers, f"http://{address}/"), expecting="the S3 server answers")
        yield Buckets(f"http://{address}", python, root, log)
    finally:
        process.terminate()
        process.wait(20)


def _answers(address: str) -> bool:
    httpx.get(address, timeout=5, trust_env=False)
    return True
