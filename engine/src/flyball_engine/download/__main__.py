"""The command `python3 -m flyball_engine.download --model=MODEL --revision=REVISION --folder=FOLDER`; see `--help`.

Effects are here: it waits for the lock, downloads, and says how far it has come.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from flyball_engine.download.bucket import Bucket
from flyball_engine.download.failure import DownloadError, explain, in_words, without_credentials
from flyball_engine.download.files import (
    MANIFEST,
    PARTS,
    Content,
    Manifest,
    content,
    damaged,
    locked,
    part_of,
    read_manifest,
    remove_others,
    size_of,
    write_manifest,
)
from flyball_engine.download.hub import Hub
from flyball_engine.download.progress import ProgressServer
from flyball_engine.download.source import PARALLEL, RemoteFile, Source
from flyball_engine.model_cache import LOCK_SECONDS, PROGRESS_PATH, DownloadExit, Progress
from flyball_engine.termination import write_termination_message

#: Seconds between two lines about how far the download has come.
PROGRESS_SECONDS: Final = 10.0
#: Exit code of a failure that no `DownloadExit` is for, such as of the device. It is tried again.
_UNKNOWN: Final = 1

_CODES: Final = "\n".join(f"  {code.value}  {code.name.lower().replace('_', ' ')}" for code in DownloadExit)
_HELP: Final = f"""Fills a folder with one model of a Hugging Face hub, or of an S3 bucket.

A file that is whole is not downloaded again. One that is not goes on where it ended. Each is compared with the checksum
that the hub or the bucket tells. The manifest {MANIFEST} is written last. Where it is there, the files are compared
with it, and only those that are missing or damaged are downloaded. A second process waits for the first.

HF_ENDPOINT is the address of the hub, and HF_TOKEN a token for it. AWS_ENDPOINT_URL_S3 is the address of an S3 server
that is not Amazon's, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are the credentials.

Exit codes:
  0   the folder holds the model
  1   another failure, such as of the device
{_CODES}"""


@dataclass(frozen=True)
class Wanted:
    """What is to be where."""

    model: str
    revision: str
    folder: Path
    lock_seconds: float
    progress_port: int | None = None
    make: Path | None = None

    @property
    def source(self) -> Source:
        """Where it comes from."""
        return Bucket(self.model) if self.model.startswith("s3://") else Hub(self.model, self.revision)


def say(message: str) -> None:
    """One line for whoever reads the container's log."""
    print(f"flyball: {message}", file=sys.stderr, flush=True)  # noqa: T201


def download(wanted: Wanted, variables: Mapping[str, str]) -> str:
    """Make the folder, which is ours alone, hold the model. Returns what was done, in one sentence."""
    if wanted.make is not None:
        wanted.make.mkdir(parents=True, exist_ok=True)
    known = read_manifest(wanted.folder)
    if known is not None and (known.model, known.revision) == (wanted.model, wanted.revision):
        say(f"comparing {len(known.files)} files, {known.size} bytes, with the manifest")
        wrong = damaged(wanted.folder, known)
        if not wrong:
            return f"the folder holds {_sentence(wanted, known)}; nothing was downloaded"
        say(f"downloading anew what is missing or damaged: {', '.join(wrong[:5])}")
        (wanted.folder / MANIFEST).unlink()
        for name in wrong:
            (wanted.folder / name).unlink(missing_ok=True)
    return f"downloaded {_sentence(wanted, _fill(wanted, variables))}"


def _sentence(wanted: Wanted, manifest: Manifest) -> str:
    return f"{manifest.model} {wanted.source.at} {manifest.commit}: {len(manifest.files)} files, {manifest.size} bytes"


def _fill(wanted: Wanted, variables: Mapping[str, str]) -> Manifest:
    source = wanted.source
    commit, files = source.list_files()
    # First of all: it may be in the way of what comes, as the volume's room or a name.
    if others := remove_others(wanted.folder, commit, [file.name for file in files]):
        say(f"removed what is no file of it {source.at} {commit}: {', '.join(others[:5])}")
    total = sum(file.size or 0 for file in files)
    have = size_of(wanted.folder)
    say(f"{wanted.model} {source.at} {commit}: {len(files)} files, {total} bytes, of which {have} are there")
    free = shutil.disk_usage(wanted.folder).free
    if total - have > free:
        message = f"no room on the volume: {total - have} bytes are to be downloaded, {free} are free"
        raise DownloadError(DownloadExit.DISK_FULL, message)
    with _telling(wanted, total, variables):
        found = _all_of(source, wanted.folder, commit, files)
    for file in files:
        if (part := part_of(wanted.folder, commit, file.name)).exists():
            _move(part, wanted.folder / file.name)
    manifest = Manifest(wanted.model, wanted.revision, commit, found)
    shutil.rmtree(wanted.folder / PARTS, ignore_errors=True)
    write_manifest(wanted.folder, manifest)
    return manifest


def _all_of(source: Source, folder: Path, commit: str, files: Sequence[RemoteFile]) -> dict[str, Content]:
    pool = ThreadPoolExecutor(PARALLEL)
    tasks = {file.name: pool.submit(_one, source, folder, commit, file) for file in files}
    done, _ = wait(tasks.values(), return_when=FIRST_EXCEPTION)
    # What is under way is not waited for after a failure: the process ends.
    pool.shutdown(wait=False, cancel_futures=True)
    for task in done:
        task.result()
    return {name: task.result() for name, task in tasks.items()}


def _move(part: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)


def _one(source: Source, folder: Path, commit: str, file: RemoteFile) -> Content:
    target, part = folder / file.name, part_of(folder, commit, file.name)
    # What is there may be of another content that is as large.
    if file.named and target.is_file() and file.is_like(found := content(target, part_bytes=file.part_bytes)):
        return found
    before: Content | None = None
    # Once more from the beginning where the content is another: a part may be damaged.
    for _ in range(2):
        source.fetch(commit, file, part)
        found = content(part, part_bytes=file.part_bytes)
        alike = file.is_like(found)
        if not alike and not file.surely_named and found == before and found.size == file.size:
            say(f"{file.name}: its ETag is not that of parts of one size; it arrived twice alike, so it is taken")
            alike = True
        if alike:
            with part.open("rb+") as whole:
                os.fsync(whole.fileno())
            # Its name among the parts has the commit's, so it is known again after a restart.
            if file.named:
                _move(part, target)
            return found
        before = found
        say(f"{file.name}: {found.size} bytes with SHA-256 {found.sha256} are not what {source.name} tells")
        part.unlink()
    message = f"{file.name} arrived twice with another content than {source.name} says ({file.size} bytes)"
    raise DownloadError(DownloadExit.CHECKSUM_WRONG, message)


@contextmanager
def _telling(wanted: Wanted, total: int, variables: Mapping[str, str]) -> Iterator[None]:
    """Tell how far it is while the block lasts: in the log, for a process that is killed, and to whoever asks."""
    ended, server = threading.Event(), ProgressServer()

    def look() -> Progress:
        progress = Progress(min(size_of(wanted.folder), total), total)
        server.tell(progress)
        return progress

    def tell() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            progress = look()
            message = f"{progress.done} of {total} bytes of {wanted.model} are there"
            say(message)
            # For a process that is killed.
            write_termination_message(message, variables)

    look()
    watcher = threading.Thread(target=tell, daemon=True)
    watcher.start()
    try:
        with ExitStack() as stack:
            if wanted.progress_port is not None:
                try:
                    stack.enter_context(server.serving(wanted.progress_port))
                except OSError as error:
                    say(f"nobody can ask how far it is: port {wanted.progress_port}: {error.strerror}")
            yield
    finally:
        ended.set()
        watcher.join()


def _options(argv: Sequence[str]) -> Wanted:
    parser = argparse.ArgumentParser(
        prog="python3 -m flyball_engine.download",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, metavar="MODEL", help="ORG/NAME of a hub, or s3://BUCKET/PREFIX")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a hub's model; default main")
    parser.add_argument("--folder", required=True, type=Path, help="is made where it is not there")
    parser.add_argument(
        "--lock-seconds",
        type=float,
        default=LOCK_SECONDS,
        metavar="SECONDS",
        help=f"longest wait for another download of this folder; default {LOCK_SECONDS}",
    )
    parser.add_argument(
        "--progress-port",
        type=int,
        metavar="PORT",
        help=f"answer there how far it is, at {PROGRESS_PATH}; by default nowhere",
    )
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="make this folder, too, where it is not there")
    given = parser.parse_args(argv)
    return Wanted(given.model, given.revision, given.folder, given.lock_seconds, given.progress_port, make=given.make)


def _end(message: str, code: int, variables: Mapping[str, str]) -> NoReturn:
    say(message)
    if (why := write_termination_message(message, variables)) is not None:
        say(why)
    # At once: threads may be in the middle of files, and what they have is kept.
    os._exit(code)


class _Record(logging.LogRecord):
    """A line of the client's log, which has addresses as they were asked for."""

    def getMessage(self) -> str:  # noqa: N802 - logging's name
        return without_credentials(super().getMessage())


def main(argv: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Download, and end with what became of it."""
    wanted = _options(argv)
    logging.setLogRecordFactory(_Record)
    # As process 1 we would otherwise not hear it.
    signal.signal(signal.SIGTERM, lambda *_: _end("stopped; the next run goes on from here", 143, variables))
    # Where a file may grow no further, writing shall fail and be told, not kill.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with locked(wanted.folder, wanted.lock_seconds):
            _download_and_end(wanted, variables)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        _fail(error, wanted, variables)


def _download_and_end(wanted: Wanted, variables: Mapping[str, str]) -> NoReturn:
    """With the lock: threads may write until the process has ended."""
    try:
        done = download(wanted, variables)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        _fail(error, wanted, variables)
    _end(done, 0, variables)


def _fail(error: Exception, wanted: Wanted, variables: Mapping[str, str]) -> NoReturn:
    kept = f"{size_of(wanted.folder)} bytes are kept for the next run"
    if (failure := explain(error)) is not None:
        _end(f"{failure}; {kept}", failure.code, variables)
    say(without_credentials("".join(traceback.format_exception(error))))
    _end(f"{in_words(error)}; {kept}", _UNKNOWN, variables)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
