"""How an API server is reached: what the environment and `~/.netrc` have to do with it. Over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flyball_lab.harness.ports import free_port
from flyball_operator.kube.api import NeverLeading, connected
from flyball_operator.kube.configuration import kubeconfig
from flyball_operator.kube.resources import PODS
from support.stored_api import StoredApi, point_at, proxied, served


@pytest.fixture
def kubeconfig_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of an API server without objects, in the environment."""
    with served(StoredApi(), tmp_path) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield path


async def expect_an_answer() -> None:
    """The API server of the environment's kubeconfig lists its pods."""
    configuration, _ = await kubeconfig(None)
    async with connected(configuration, "flyball-test", NeverLeading(), instance="test") as api:
        assert (await api.list(PODS, "team"))[0] == []


@pytest.mark.usefixtures("kubeconfig_path")
async def test_a_netrc_that_has_a_password_for_every_host_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    await expect_an_answer()


async def test_requests_go_by_the_proxy_that_the_environment_names(
    kubeconfig_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied(kubeconfig_path, monkeypatch)
    await expect_an_answer()


@pytest.mark.usefixtures("kubeconfig_path")
async def test_a_host_that_the_environment_excepts_is_reached_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    await expect_an_answer()


@pytest.mark.parametrize("excepted", ["fd00::1", "[fd00::1]:6443"])
async def test_an_ipv6_host_is_excepted_by_its_address(
    kubeconfig_path: Path, monkeypatch: pytest.MonkeyPatch, excepted: str
) -> None:
    point_at(kubeconfig_path, "http://[fd00::1]:6443")
    monkeypatch.setenv("http_proxy", "http://proxy.invalid")
    monkeypatch.setenv("no_proxy", excepted)
    configuration, _ = await kubeconfig(None)
    assert configuration.proxy is None
