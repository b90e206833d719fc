"""`flyball top` as it is typed: against an API server over HTTP, by a kubeconfig alone, and on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, good
from flyball_lab.harness.terminal import on_terminal
from flyball_lab.harness.waiting import eventually
from flyball_operator.cli import top
from flyball_operator.cli.entry import main
from flyball_operator.kube.api import NeverLeading, connected
from flyball_operator.kube.configuration import kubeconfig
from flyball_operator.kube.resources import INFERENCE_SERVICES, NAMESPACES
from support.stored_api import Command, StoredApi, served


def a_service(name: str, namespace: str = "team", *, ready: int = 1) -> Object:
    conditions = [{"type": "Ready", "status": "True", "reason": "Serving"}]
    labels = {"tier": "gold" if name == "chat" else "silver"}
    status = {"replicas": 1, "readyReplicas": ready, "conditions": conditions}
    return good(name, metadata__namespace=namespace, metadata__labels=labels) | {"status": status}


@pytest.fixture
def api() -> StoredApi:
    found = StoredApi()
    for service in (a_service("chat"), a_service("code"), a_service("mail", "other")):
        found.put(INFERENCE_SERVICES, service)
    return found


@pytest.fixture
def typed(api: StoredApi, command: Command) -> Command:
    return partial(command, api, "top")


def names(said: str) -> list[str]:
    return [line.split()[1] for line in said.splitlines()[1:]]


def test_without_a_terminal_the_table_is_printed_once(typed: Any, api: StoredApi) -> None:
    said = typed().out
    assert names(said) == ["mail", "chat", "code"]
    assert "\x1b" not in said
    assert [method for method, _ in api.requests] == ["GET"]


def test_namespace_and_labels_choose(typed: Any) -> None:
    assert names(typed("-n", "team").out) == ["chat", "code"]
    assert names(typed("-l", "tier=gold").out) == ["chat"]


def test_nothing_to_show_is_said(typed: Any, api: StoredApi) -> None:
    api.put(NAMESPACES, {"metadata": {"name": "empty"}})
    said = typed("-n", "empty")
    assert (said.out, said.err) == ("", "flyball top: no services in namespace empty\n")
    assert "no services with the labels tier=lead in any namespace" in typed("-l", "tier=lead").err
    said = typed("-n", "empty", "-o", "json")
    assert (json.loads(said.out), said.err) == ({"services": []}, "flyball top: no services in namespace empty\n")


def test_a_namespace_that_is_not_there_ends_with_1(typed: Any, api: StoredApi) -> None:
    said = typed("-n", "nowhere", code=1)
    assert (said.out, said.err) == ("", "flyball top: there is no namespace nowhere\n")
    api.forbidden.add("v1/namespaces/nowhere")
    assert typed("-n", "nowhere").err == "flyball top: no services in namespace nowhere\n"


def test_as_json(typed: Any) -> None:
    found = json.loads(typed("-o", "json", "--sort", "load").out)["services"]
    assert [one["name"] for one in found] == ["mail", "chat", "code"]
    assert found[0]["is_ready"] is True


def test_a_missing_right_ends_with_1(typed: Any, api: StoredApi) -> None:
    api.forbidden.add("inferenceservices")
    assert "is forbidden" in typed(code=1).err


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon", "4000"])
def test_a_wrong_interval_is_refused_with_what_is_accepted(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["top", f"--interval={interval}"])
    assert end.value.code == 2
    assert "accepted: 0.5 to 3600 seconds" in capsys.readouterr().err


@contextmanager
def followed(api: StoredApi, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with served(api, folder) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield


@asynccontextmanager
async def listed(namespace: str | None) -> AsyncIterator[top.Services]:
    """The services of a namespace, None for all, as they are at first."""
    configuration, _ = await kubeconfig(None)
    async with connected(configuration, "test", NeverLeading(), instance="test") as client:
        live = top.Services(client, namespace, "")
        await live.list()
        yield live


async def test_what_changes_is_taken_in_and_what_is_deleted_goes(
    api: StoredApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with followed(api, tmp_path, monkeypatch):
        async with listed("team") as live:
            changed = a_service("chat", ready=0)
            changed["metadata"]["resourceVersion"] = "17"
            for event in (
                {"type": "MODIFIED", "object": changed},
                {"type": "DELETED", "object": a_service("code")},
                {"type": "ADDED", "object": a_service("new")},
                {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "18"}}},
                None,
            ):
                api.watched.put(event)
            await live.watch()
    assert {name: found.ready for (_, name), found in live.rows.items()} == {"chat": 0, "new": 1}
    assert live.version == "18"
    assert api.requests[-1] == ("WATCH", INFERENCE_SERVICES.path("team"))


async def test_after_a_version_that_is_too_old_all_are_listed_anew(
    api: StoredApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with followed(api, tmp_path, monkeypatch):
        async with listed(None) as live:
            monkeypatch.setattr(top, "_AGAIN_SECONDS", 0)
            api.put(INFERENCE_SERVICES, a_service("late"))
            api.watched.put({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
            async with top._followed(live):
                await asyncio.to_thread(eventually, lambda: ("team", "late") in live.rows, expecting="a new list")
    assert not live.trouble


async def test_a_table_that_nothing_follows_any_more_ends(
    api: StoredApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with followed(api, tmp_path, monkeypatch):
        async with listed(None) as live:
            # As no API server sends it, but what stands between might.
            api.watched.put({"type": "MODIFIED"})
            with pytest.raises(KeyError):
                async with top._followed(live) as following, asyncio.timeout(60):
                    await top._show(live, following, argparse.Namespace(sort="name", interval=0.01))


def test_on_a_terminal_it_is_live_until_ctrl_c_and_leaves_the_terminal_as_it_was(
    api: StoredApi, tmp_path: Path
) -> None:
    with served(api, tmp_path) as path, on_terminal("top", "--interval", "0.5", KUBECONFIG=str(path)) as terminal:
        terminal.expect("3 services, 3 Ready", expecting="the table")
        assert "mail" in terminal.shown
        api.watched.put({"type": "DELETED", "object": a_service("mail", "other")})
        terminal.expect("2 services, 2 Ready", expecting="what the watch told")
        assert terminal.interrupt() == (130, "flyball: interrupted\n")
    assert terminal.shown.startswith("\x1b[?1049h")
