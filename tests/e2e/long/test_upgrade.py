"""From an earlier version of this repository to this one and back under load: no request and no pod is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flyball_lab.harness.streams import StreamLoad
from flyball_lab.harness.waiting import eventually
from flyball_lab.repository import ROOT
from support.cluster import Object, apply, delete
from support.live import MODEL, RELEASE, RESOURCE, Flyball, Service, images, inference_service

pytestmark = pytest.mark.cluster

#: The last commit of the version before: its API is this one's but for what was added since.
EARLIER = "0a3161adcae733f3cbf9f44f4ee76baa64071e6f"


@pytest.fixture
def earlier(flyball: Flyball, tmp_path: Path) -> Iterator[Flyball]:
    """The release as of that version, by its own chart and images; at the end, of this one again."""
    git = ("git", "-C", str(ROOT))
    if subprocess.run([*git, "cat-file", "-e", f"{EARLIER}^{{commit}}"], capture_output=True, check=False).returncode:
        pytest.skip(f"this clone has no commit {EARLIER}: git fetch --unshallow")
    folder = tmp_path / "earlier"
    subprocess.run([*git, "worktree", "add", "--detach", str(folder), EARLIER], check=True)
    try:
        refs = flyball.refs | images("operator", "plugin", root=folder)
        # It does not rotate keys: docs/operations.md says how it goes on with the present one.
        key = {"existingSecret": f"{RELEASE}-signing-key", "key": "current"}
        yield replace(flyball, refs=refs, root=folder, values={"signingKey": key})
        flyball.install()
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


@pytest.fixture
def older(earlier: Flyball) -> Iterator[Service]:
    """A service that the earlier version made."""
    earlier.install()
    service = Service("older", earlier.watched)
    apply(inference_service(service.name, image=earlier.refs["engine-cpu"]), namespace=service.namespace)
    service.expect_governed()
    yield service
    delete(RESOURCE, service.name, namespace=service.namespace)


@pytest.mark.timeout(3600)
def test_an_upgrade_and_a_downgrade_lose_no_request_and_no_pod(
    older: Service, earlier: Flyball, flyball: Flyball, note_figure: Callable[[str], None]
) -> None:
    before = identity(older.pod())
    load = StreamLoad(url=older.url(), model=MODEL, concurrency=4, prompt_tokens=(8, 40, 200), max_tokens=3)
    with load.running() as totals:
        for what, release in (("upgrade", flyball), ("downgrade", earlier), ("upgrade again", flyball)):
            finished = totals.finished
            take_over(older, release)
            assert identity(older.pod()) == before, what
            note_figure(f"{what}: {totals.finished - finished} requests finished meanwhile")
    totals.expect_nothing_lost()
    note_figure(f"{totals.finished} requests, none failed, refused or truncated; the same pod, never restarted")


def take_over(older: Service, release: Flyball) -> None:
    """This version is installed, leads, and looks after the service."""
    epoch = older.obeyed_epoch()
    release.install()
    eventually(lambda: older.obeyed_epoch() > epoch, expecting="the other version leads", within=300)
    older.expect_governed()


def identity(pod: Object) -> tuple[str, int]:
    """UID and restarts of the engine."""
    return pod["metadata"]["uid"], int(pod["status"]["containerStatuses"][0]["restartCount"])
