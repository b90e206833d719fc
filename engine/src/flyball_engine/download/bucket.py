"""A folder of an S3 bucket, by the client that official engine images have: which files it has, and their content.

The client is told by variables where the server is and who asks: AWS_ENDPOINT_URL_S3, AWS_DEFAULT_REGION,
AWS_ACCESS_KEY_ID and the like, or by what a service account or a node gives it.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

from flyball_engine.download.failure import CREDENTIALS, DownloadError, in_words
from flyball_engine.download.files import opened_at_end
from flyball_engine.download.source import PARALLEL, RemoteFile, needed
from flyball_engine.model_cache import DownloadExit

_BLOCK: Final = 8 << 20
#: Seconds for a connection, and between two pieces of an answer: a server behind a slow disk may take a while.
_CONNECT_SECONDS: Final = 10.0
_READ_SECONDS: Final = 60.0
#: Requests in all for one answer; the client waits longer and longer between them.
_ATTEMPTS: Final = 5
#: No model has so many files. A prefix that has more is that of a whole bucket.
_MOST_FILES: Final = 10_000
_SERVERS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
#: What a node takes to give credentials may be more than the client's one second, on a node that has just started.
_PATIENCE: Final = {"AWS_METADATA_SERVICE_NUM_ATTEMPTS": "5", "AWS_METADATA_SERVICE_TIMEOUT": "2"}
#: Of an object that is encrypted with a key of a service the ETag is none of its content.
_NAMED_BY_CONTENT: Final = (None, "AES256")
_ETAG: Final = re.compile(r"[0-9a-f]{32}(-(?P<parts>[1-9][0-9]*))?")
#: Errors of the client, by name: of credentials that are missing, and of what may pass.
_NO_CREDENTIALS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError"})
_AWAY: Final = frozenset(
    {"ConnectionError", "HTTPClientError", "ResponseStreamingError", "IncompleteReadError", "CredentialRetrievalError"}
)
#: Codes of answers that have the status of a wrong request and are about who asks.
_OF_CREDENTIALS: Final = frozenset({"ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed"})


@dataclass(frozen=True)
class Bucket:
    """What lies in a bucket under a prefix. There is no revision: what names the content is that of all objects."""

    name: ClassVar[str] = "the bucket"
    at: ClassVar[str] = "with content"
    uri: str

    @property
    def _bucket(self) -> str:
        return self.uri.removeprefix("s3://").partition("/")[0]

    @property
    def _prefix(self) -> str:
        path = self.uri.removeprefix("s3://").partition("/")[2].strip("/")
        return f"{path}/" if path else ""

    @cached_property
    def _client(self) -> Any:
        try:
            import boto3  # noqa: PLC0415 - of the engine image
            from botocore.config import Config  # noqa: PLC0415
        except ImportError as error:
            message = "the engine image has no boto3, which reads from S3; the official images have it"
            raise DownloadError(DownloadExit.CLIENT_MISSING, message) from error
        _prepare_variables()
        # Servers of one's own seldom have a host for each bucket.
        style = {"addressing_style": "path"} if any(os.environ.get(name) for name in _SERVERS) else {}
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=2 * PARALLEL,
            s3=style,
        )
        with _told():
            return boto3.client("s3", config=config)

    def list_files(self) -> tuple[str, list[RemoteFile]]:
        """A name of the content of all, and the files that an engine may need."""
        names = list(self._names())
        wanted = needed(RemoteFile(name=name, size=None) for name in names)
        if not wanted:
            raise DownloadError(DownloadExit.MODEL_MISSING, f"{self.uri} has no file")
        with ThreadPoolExecutor(PARALLEL) as pool:
            files = list(pool.map(self._file, [file.name for file in wanted]))
        said = "".join(f"{file.name}\0{file.size}\0{file.version}\n" for file in sorted(files, key=_name))
        return hashlib.sha256(said.encode()).hexdigest()[:40], files

    def _names(self) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
        found = 0
        with _told():
            for page in pages:
                # What shows as a folder is an object of no bytes.
                keys = [str(one["Key"]) for one in page.get("Contents") or ()]
                yield from (key.removeprefix(self._prefix) for key in keys if not key.endswith("/"))
                found += len(keys)
                if found > _MOST_FILES:
                    message = f"{self.uri} has over {_MOST_FILES} files: name the folder of one model"
                    raise DownloadError(DownloadExit.MODEL_MISSING, message)

    def _file(self, name: str) -> RemoteFile:
        key = {"Bucket": self._bucket, "Key": f"{self._prefix}{name}"}
        with _told():
            found = self._client.head_object(**key)
            version, size = str(found["ETag"]), int(found["ContentLength"])
            etag = _ETAG.fullmatch(version.strip('"'))
            if found.get("ServerSideEncryption") not in _NAMED_BY_CONTENT or etag is None:
                return RemoteFile(name=name, size=size, version=version)
            part_bytes = 0
            if etag["parts"]:
                first = self._client.head_object(**key, PartNumber=1, IfMatch=version)
                part_bytes = int(first["ContentLength"])
                # Not every server tells the size of a part.
                if not part_bytes or math.ceil(size / part_bytes) != int(etag["parts"]):
                    return RemoteFile(name=name, size=size, version=version)
        return RemoteFile(name=name, size=size, etag=etag[0], part_bytes=part_bytes, version=version)

    def fetch(self, commit: str, file: RemoteFile, part: Path) -> None:  # noqa: ARG002 - the version names the content
        """Append to `part` what it lacks of the file. Of another content than was listed nothing is taken."""
        with opened_at_end(part, file.size) as (target, begin):
            have = begin
            while have != file.size:
                try:
                    with _told():
                        self._append(file, target, have)
                    return
                except DownloadError as error:
                    before, have = have, target.tell()
                    # A stream that breaks goes on, as long as it brings anything.
                    if error.code is not DownloadExit.HUB_UNREACHABLE or have <= before:
                        raise

    def _append(self, file: RemoteFile, target: BinaryIO, have: int) -> None:
        answer = self._client.get_object(
            Bucket=self._bucket,
            Key=f"{self._prefix}{file.name}",
            IfMatch=file.version,
            **({"Range": f"bytes={have}-"} if have else {}),
        )
        target.writelines(answer["Body"].iter_chunks(_BLOCK))


def _name(file: RemoteFile) -> str:
    return file.name


def _prepare_variables() -> None:
    """What the client would take otherwise than whoever set it meant."""
    for name in CREDENTIALS:
        # A Secret that was made of a file ends with a line break, which no header may have.
        if name in os.environ:
            os.environ[name] = os.environ[name].strip()
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    # The name that Python and the hub's client go by.
    if authority := os.environ.get("SSL_CERT_FILE"):
        os.environ.setdefault("AWS_CA_BUNDLE", authority)


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the client as a download tells them."""
    try:
        yield
    except DownloadError:
        raise
    except Exception as error:
        if (found := _failure(error)) is not None:
            raise found from error
        raise


def _failure(error: Exception) -> DownloadError | None:
    named = {one.__name__ for one in type(error).__mro__}
    words = in_words(error)
    if named & _NO_CREDENTIALS:
        return DownloadError(DownloadExit.NO_ACCESS, f"the bucket needs credentials: {words}")
    if named & _AWAY:
        return DownloadError(DownloadExit.HUB_UNREACHABLE, f"the server of the bucket cannot be reached: {words}")
    if "FlexibleChecksumError" in named:
        return DownloadError(DownloadExit.CHECKSUM_WRONG, f"a checksum that the server tells is another: {words}")
    response: Any = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    status = int((response.get("ResponseMetadata") or {}).get("HTTPStatusCode") or 0)
    code = str((response.get("Error") or {}).get("Code") or "")
    found = _meaning(status, code)
    return None if found is None else DownloadError(found[0], f"{found[1]}: {words}")


def _meaning(status: int, code: str) -> tuple[DownloadExit, str] | None:
    """What an answer comes to, by its HTTP status and S3's own code."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or code in _OF_CREDENTIALS:
        return DownloadExit.NO_ACCESS, "the bucket gives no access"
    if status == HTTPStatus.NOT_FOUND:
        return DownloadExit.MODEL_MISSING, "there is no such bucket or object"
    if status == HTTPStatus.MOVED_PERMANENTLY:
        return DownloadExit.MODEL_MISSING, "the bucket is in another region: set spec.model.s3.region"
    if status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        return DownloadExit.CHECKSUM_WRONG, "an object was changed while it was downloaded"
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return DownloadExit.HUB_UNREACHABLE, "the server of the bucket does not answer as it should"
    return None
