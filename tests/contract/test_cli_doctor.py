"""`flyball doctor` as it is typed: against an API server over HTTP, by a kubeconfig alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from flyball_operator.api import names
from flyball_operator.cli.doctor.collect import BINDINGS, POLICIES, bounded
from flyball_operator.cli.doctor.examine import CHECKS
from flyball_operator.cli.entry import main
from flyball_operator.kube.errors import ForbiddenError
from flyball_operator.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    INFERENCE_SERVICES,
    LEASES,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
)
from support.installations import HOME, TEAM, World
from support.stored_api import Command, StoredApi, served


def stored(world: World) -> StoredApi:
    """An API server that holds this world. Leases are those of the wall clock's year, so none has a time."""
    api = StoredApi()
    api.documents["/version"] = world.version
    objects: list[tuple[Any, Any]] = [(CRDS, world.crd), (NAMESPACES, world.home), (PODS, world.pod)]
    objects += [(NAMESPACES, {"metadata": {"name": "team-b"}})]
    objects += [(NAMESPACES, one) for one in world.others]
    objects += [(DEPLOYMENTS, one) for one in world.operators]
    objects += [(INFERENCE_SERVICES, one) for one in world.services]
    objects += [(NETWORK_POLICIES, one) for one in world.policies]
    objects += [(POLICIES, one) for one in world.admission]
    objects += [(BINDINGS, one) for one in world.bindings]
    objects += [(CONFIG_MAPS, world.keys)] if world.keys is not None else []
    for lease in world.leases.values():
        lease["spec"].pop("renewTime", None)
        objects.append((LEASES, lease))
    for resource, body in objects:
        api.put(resource, body)
    return api


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def doctor(world: World, command: Command) -> Command:
    """Runs the command; what it printed, and the server."""

    def run(*arguments: str, code: int = 0, forbidden: str = "", denied: tuple[str, str] | None = None) -> Any:
        api = stored(world)
        api.forbidden |= {forbidden} - {""}
        api.denied |= {denied} if denied else set()
        return command(api, "doctor", *arguments, code=code), api

    return run


def test_a_good_installation_ends_with_0_and_is_told_in_plain_lines(doctor: Any) -> None:
    said, api = doctor()
    heads = [line for line in said.out.splitlines() if not line.startswith(" ")]
    assert {line[:4] for line in heads} == {"OK  "}
    assert len(heads) == len(CHECKS)
    assert max(map(len, said.out.splitlines())) <= 80
    assert "\x1b" not in said.out
    assert api.reviewed == {f"system:serviceaccount:{HOME}:flyball"}


def test_a_namespace_that_is_not_there_ends_with_1(doctor: Any) -> None:
    said, _ = doctor("-n", "nowhere", code=1)
    assert (said.out, said.err) == ("", "flyball doctor: there is no namespace nowhere\n")


def test_nothing_is_written_and_no_secret_is_read(doctor: Any) -> None:
    _, api = doctor()
    assert {method for method, _ in api.requests} == {"GET", "POST"}
    assert {path for method, path in api.requests if method == "POST"} == {
        "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    }
    assert not [path for _, path in api.requests if "/secrets" in path]


def test_what_is_broken_ends_with_1_and_the_document_names_it(doctor: Any, world: World) -> None:
    world.keys = None
    said, _ = doctor("-o", "json", code=1)
    document = json.loads(said.out)
    assert document["healthy"] is False
    (found,) = [one for one in document["checks"] if one["level"] == "FAIL"]
    assert found["check"] == "signing-key"
    assert f"{TEAM}/{names.PUBLIC_KEYS} is not there" in found["message"]


def test_a_right_that_the_account_lacks_is_named(doctor: Any) -> None:
    said, _ = doctor(code=1, denied=("patch", "deployments"))
    assert f"not granted: patch deployments.apps in namespace {TEAM}" in " ".join(said.out.split())


@pytest.mark.parametrize("verb", CONFIG_MAPS.verbs)
def test_a_right_on_the_public_keys_is_asked_for_where_the_operator_keeps_the_key(
    doctor: Any, world: World, verb: str
) -> None:
    said, _ = doctor(code=1, denied=(verb, "configmaps"))
    which = "" if verb == "create" else f" {names.PUBLIC_KEYS}"
    assert f"not granted: {verb} configmaps.core{which} in namespace {TEAM}" in " ".join(said.out.split())
    world.set(FLYBALL_SIGNING_KEY_SECRET="", FLYBALL_SIGNING_KEY_FILE="/key.pem")
    doctor(denied=(verb, "configmaps"))


@pytest.mark.parametrize(
    ("forbidden", "check", "right"),
    [
        (
            "customresourcedefinitions",
            "crd",
            f"get customresourcedefinitions.apiextensions.k8s.io {names.CRD_NAME} in all namespaces",
        ),
        ("deployments", "operator", "list deployments.apps in all namespaces"),
        ("leases", "leases", f"get leases.coordination.k8s.io flyball in namespace {HOME}"),
        ("subjectaccessreviews", "rights", "create subjectaccessreviews.authorization.k8s.io in all namespaces"),
        (
            "validatingadmissionpolicies",
            "admission-policies",
            "list validatingadmissionpolicies.admissionregistration.k8s.io in all namespaces",
        ),
        ("inferenceservices", "namespaces", "list inferenceservices.serving.flyball.dev in all namespaces"),
        ("configmaps", "signing-key", f"get configmaps.core {names.PUBLIC_KEYS} in namespace {TEAM}"),
        ("networkpolicies", "network-policies", f"list networkpolicies.networking.k8s.io in namespace {TEAM}"),
        ("pods", "plugin", f"list pods.core in namespace {TEAM}"),
    ],
)
def test_what_the_person_may_not_read_is_not_checked_and_the_missing_right_is_named(
    doctor: Any, forbidden: str, check: str, right: str
) -> None:
    said, _ = doctor("-o", "json", code=1, forbidden=forbidden)
    document = json.loads(said.out)
    assert document["healthy"] is False
    skipped = {one["check"]: one for one in document["checks"] if one["level"] == "SKIP"}
    assert "is forbidden" in skipped[check]["message"]
    assert f"grant the right: {right}" in skipped[check]["mend"]


async def test_one_refused_call_ends_the_others_before_it_is_told() -> None:
    async def ask(number: int) -> None:
        if number == 1:
            raise ForbiddenError("no")
        await asyncio.Event().wait()

    with pytest.raises(ForbiddenError):
        await bounded(ask, range(40))
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_it_looks_at_the_services_of_one_namespace_only(doctor: Any) -> None:
    said, _ = doctor("-n", "team-b")
    assert "services: there are none" in said.out


def test_without_services_no_namespace_of_theirs_is_read(doctor: Any) -> None:
    said, api = doctor("--no-services")
    assert not [path for _, path in api.requests if TEAM in path or path.endswith("/inferenceservices")]
    assert "services: " not in said.out


def test_a_namespace_of_the_operator_that_is_not_there_is_the_first_finding(doctor: Any) -> None:
    said, _ = doctor("--operator-namespace", "flybal-system", code=1)
    assert said.out.startswith("FAIL  operator: there is no namespace flybal-system\n")
    assert "install the chart" not in said.out


def test_it_looks_for_operators_in_one_namespace_only(doctor: Any, world: World) -> None:
    world.others.append({"metadata": {"name": "elsewhere"}})
    said, _ = doctor("--operator-namespace", "elsewhere", code=1)
    assert "FAIL  operator: no operator was found in namespace elsewhere" in said.out
    assert "WARN  namespaces" in said.out
    assert "kubectl delete lease" not in said.out


def test_an_api_server_that_is_away_ends_with_1_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(StoredApi(), tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "flyball doctor: GET /version" in said.err


def test_another_form_than_text_and_json_is_refused_with_what_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "-o", "yaml"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "-o/--output" in said
    assert "choose from" in said


def test_a_wrong_address_of_metrics_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--metrics", "flyball-metrics:8080"])
    assert ended.value.code == 2
    assert "'flyball-metrics:8080' is no URL, accepted: http://HOST:PORT/metrics" in capsys.readouterr().err
