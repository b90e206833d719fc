"""The operator process asks Prometheus with what its settings name, and a password that is rotated needs no restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flyball_lab.harness.prometheus import prometheus
from support.cluster import apply, namespace
from support.operators import expect_condition, idle_service, serve
from support.prometheus_user import NAME, PASSWORD, WEB
from support.tenants import operator


def test_a_wrong_password_is_told_in_the_condition_and_one_that_is_mended_is_used(crd: Path, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wrong-word")
    access: dict[str, Any] = {"prometheus_username": NAME, "prometheus_password_file": str(file)}
    with (
        prometheus(tmp_path, web=WEB) as running,
        namespace("flyball-password") as place,
        operator(place, tmp_path, prometheus_url=running.url, **access) as process,
    ):
        apply(idle_service(), namespace=place)
        serve(place)
        said = expect_condition(place, "MetricsAvailable", "False", "PrometheusUnauthorized", within=180)
        assert "does not take this user name with this password" in said
        file.write_text(PASSWORD)
        expect_condition(place, "MetricsAvailable", "False", "NotScraped", within=180)
        log = process.log.read_text()
        assert "wrong-word" not in said + log
        assert PASSWORD not in log
