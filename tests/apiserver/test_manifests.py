"""The API as the real API server enforces it: what is refused, in which words, what is kept, who may write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from flyball_lab.harness.manifests import Object, Wrong, edited, good
from flyball_operator.api import names
from flyball_operator.api.crd import custom_resource_definition, schema_hash
from flyball_operator.api.parse import parse_service
from support.api import InferenceServices, RefusedError
from support.cluster import KubectlError, expect_established, kubectl
from support.specs import specs
from support.wrong_manifests import UNKNOWN_FIELDS, WRONG

RESOURCE = names.CRD_NAME
KSERVE = Path(__file__).resolve().parents[1] / "support/kserve_crd.yaml"
_FOLDER = Path(__file__).resolve().parents[2] / "docs/examples"
EXAMPLES = [*sorted(_FOLDER.glob("*.yaml")), _FOLDER / "existing-engines/service.yaml"]


def _blamed(case: Wrong, refusal: RefusedError) -> bool:
    """Whether a cause names the field, or something in it, and says what the case expects."""
    says = case.server or case.says
    return any(field.startswith(case.path) for field, _ in refusal.causes) and says in refusal.message


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_a_wrong_manifest_is_refused_by_name(services: InferenceServices, case: Wrong) -> None:
    with pytest.raises(RefusedError) as refusal:
        services.create(edited(good(), case.wrong), dry_run=True)
    assert refusal.value.status == 422
    assert case.path in refusal.value.message
    assert _blamed(case, refusal.value), refusal.value.message


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_its_neighbour_is_accepted(services: InferenceServices, case: Wrong) -> None:
    assert services.create(edited(good(), case.right), dry_run=True)


@pytest.mark.parametrize("path", UNKNOWN_FIELDS)
def test_an_unknown_field_is_refused_by_name(services: InferenceServices, path: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        services.create(edited(good(), {path: {}}), dry_run=True)
    assert f'unknown field "{path}"' in refusal.value.message


def test_the_schema_is_structural_and_accepted(crd: Path) -> None:
    found = json.loads(kubectl("get", "crd", RESOURCE, "-o", "json"))
    conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert found["metadata"]["annotations"][names.ANNOTATION_SCHEMA_HASH] == schema_hash()


def test_the_api_server_serves_the_schema_as_committed(crd: Path) -> None:
    """Nothing of it was dropped on the way in."""
    ours = custom_resource_definition()["spec"]["versions"][0]["schema"]
    served = json.loads(kubectl("get", "crd", RESOURCE, "-o", "json"))["spec"]["versions"][0]["schema"]
    assert served == ours


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(spec=specs())
def test_nothing_a_valid_spec_says_is_pruned(services: InferenceServices, spec: Object) -> None:
    stored = services.create(good() | {"spec": spec}, dry_run=True)
    identity = {"namespace": "n", "uid": "u", "name": "chat"}
    sent = parse_service({"metadata": identity, "spec": spec})
    assert parse_service({"metadata": identity, "spec": stored["spec"]}) == sent
    assert _within(spec, stored["spec"]) == []


def _within(part: Any, whole: Any, path: str = "spec") -> list[str]:
    """Paths of `part` that `whole` does not have or has otherwise."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return [lost for key in part for lost in _within(part[key], whole.get(key), f"{path}.{key}")]
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        pairs = zip(part, whole, strict=True)
        return [lost for index, (a, b) in enumerate(pairs) for lost in _within(a, b, f"{path}[{index}]")]
    return [] if part == whole else [path]


def test_defaults_are_stored_except_for_replicas(services: InferenceServices) -> None:
    bare = services.create(good(), dry_run=True)["spec"]
    assert not {"batching", "rollout", "podTemplate"} & bare.keys(), "beside a workload they are refused"
    stored = services.create(good(spec__batching={}, spec__rollout={}), dry_run=True)["spec"]
    assert stored["batching"] == {"maxNumSeqs": 256, "maxNumBatchedTokens": 8192}
    assert stored["tuning"] == {
        "mode": "Auto",
        "overload": "Queue",
        "refusalStatus": 503,
        "order": "OnTime",
        "classHeader": "x-gateway-inference-objective",
    }
    assert stored["rollout"] == {"startupTimeout": "30m", "drainTimeout": "60s"}
    assert stored["objectives"][0]["target"] == "99"
    assert "replicas" not in stored


@pytest.mark.parametrize("part", ["epoch", "tuning.epoch"])
def test_a_replaced_leader_cannot_write_the_status(services: InferenceServices, part: str) -> None:
    name = "fenced-" + part.replace(".", "-")
    services.create(good(name))
    nested = {"epoch": _epoch} if part == "epoch" else {"tuning.epoch": _tuning_epoch}
    status = nested[part]
    services.apply_status(name, status(7), manager="old-leader")
    services.apply_status(name, status(7), manager="old-leader")
    services.apply_status(name, status(8), manager="old-leader")
    for stale in (status(7), {"url": "http://nowhere"}):
        with pytest.raises(RefusedError) as refusal:
            services.apply_status(name, stale, manager="old-leader")
        assert refusal.value.status == 422
        assert "a newer leader has written here" in refusal.value.message


def _epoch(epoch: int) -> Object:
    return {"epoch": epoch, "url": "http://nowhere"}


def _tuning_epoch(epoch: int) -> Object:
    return {"tuning": {"epoch": epoch}}


def test_a_spec_change_needs_no_status_and_keeps_it(services: InferenceServices) -> None:
    services.create(good("edited"))
    services.apply_status("edited", _epoch(3), manager="leader")
    changed = edited(services.read("edited"), {"spec.replicas": 3})
    assert services.replace(changed)["status"] == {"observedGeneration": 0, **_epoch(3)}


def test_two_managers_each_own_their_conditions(services: InferenceServices) -> None:
    services.create(good("two-managers"))
    when = "2026-01-01T00:00:00Z"
    for manager, kind in (("reconciler", "Ready"), ("tuner", "Tuned"), ("reconciler", "Ready")):
        condition = {"type": kind, "status": "True", "reason": "Test", "lastTransitionTime": when}
        services.apply_status("two-managers", {"conditions": [condition]}, manager=manager)
    kinds = {condition["type"] for condition in services.read("two-managers")["status"]["conditions"]}
    assert kinds == {"Ready", "Tuned"}


def test_scale_reads_and_writes_replicas(services: InferenceServices, work: str) -> None:
    services.create(good("scaled"))
    services.apply_status("scaled", {"replicas": 1, "selector": "a=b"}, manager="leader")
    kubectl("scale", f"{RESOURCE}/scaled", "--replicas=5", "-n", work)
    assert services.read("scaled")["spec"]["replicas"] == 5
    path = f"/apis/{names.API_VERSION}/namespaces/{work}/{names.PLURAL}/scaled/scale"
    scale = json.loads(kubectl("get", "--raw", path))
    assert (scale["spec"]["replicas"], scale["status"]) == (5, {"replicas": 1, "selector": "a=b"})


def test_replicas_set_by_an_autoscaler_survive_kubectl_apply(services: InferenceServices, work: str) -> None:
    manifest = json.dumps(good("autoscaled"))
    kubectl("apply", "-n", work, "-f", "-", stdin=manifest)
    kubectl("scale", f"{RESOURCE}/autoscaled", "--replicas=5", "-n", work)
    kubectl("apply", "-n", work, "-f", "-", stdin=manifest)
    assert services.read("autoscaled")["spec"]["replicas"] == 5


def test_nobody_else_scales_what_the_operator_scales(services: InferenceServices, work: str) -> None:
    stored = services.create(good("by-the-operator", spec__scaling={"maxReplicas": 4}))["spec"]
    assert stored["scaling"] == {
        "minReplicas": 1,
        "maxReplicas": 4,
        "scaleUp": {"stabilizationWindowSeconds": 0},
        "scaleDown": {"stabilizationWindowSeconds": 300},
    }
    with pytest.raises(KubectlError, match="may not stand beside"):
        kubectl("scale", f"{RESOURCE}/by-the-operator", "--replicas=5", "-n", work)
    assert "replicas" not in services.read("by-the-operator")["spec"]


def test_an_autoscaler_reads_the_number_once_there_is_one(place: str) -> None:
    hpa = yaml.safe_load((EXAMPLES[0].parent / "autoscaler/hpa.yaml").read_text())
    # In a namespace of its own: all other tests try services of this name.
    InferenceServices(place).create(good(hpa["spec"]["scaleTargetRef"]["name"]))
    kubectl("apply", "-n", place, "-f", "-", stdin=json.dumps(hpa))
    kubectl("scale", f"{RESOURCE}/chat", "--replicas=2", "-n", place)
    path = f"/apis/{names.API_VERSION}/namespaces/{place}/{names.PLURAL}/chat/scale"
    assert json.loads(kubectl("get", "--raw", path))["spec"]["replicas"] == 2


STATUS: Object = {
    "replicas": 2,
    "readyReplicas": 1,
    "objectivesMet": "1/2",
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "RollingOut"},
        {"type": "Available", "status": "True", "reason": "EarlierRevisionServes"},
    ],
    "tuning": {"epoch": 1, "setpoint": {"maxNumActiveSeqs": 48, "maxNumScheduledTokens": 2048}},
}


def test_kubectl_get_shows_what_matters(services: InferenceServices, work: str) -> None:
    services.create(good("shown"))
    services.apply_status("shown", STATUS, manager="leader")
    heading, row = kubectl("get", RESOURCE, "shown", "-n", work).splitlines()
    columns = "NAME, READY, AVAILABLE, REPLICAS, SERVING, OBJECTIVES, ACTIVE SEQS, SCHEDULED TOKENS, MODE, AGE"
    assert re.split(r"\s{2,}", heading) == columns.split(", ")
    assert row.split()[:-1] == ["shown", "False", "True", "2", "1", "1/2", "48", "2048", "Auto"]
    assert "shown" in kubectl("get", names.SHORT_NAMES[0], "-n", work)
    assert "shown" in kubectl("get", "flyball", "-n", work)


def test_kubectl_get_works_beside_kserve(services: InferenceServices, work: str) -> None:
    services.create(good("ours"))
    kubectl("apply", "-f", str(KSERVE))
    try:
        expect_established(KSERVE)
        theirs = {"apiVersion": "serving.kserve.io/v1beta1", "kind": names.KIND, "metadata": {"name": "theirs"}}
        kubectl("apply", "-n", work, "-f", "-", stdin=json.dumps(theirs))
        assert "ours" in kubectl("get", RESOURCE, "-n", work)
        assert "theirs" not in kubectl("get", RESOURCE, "-n", work)
        assert "theirs" in kubectl("get", "inferenceservices.serving.kserve.io", "-n", work)
        assert "ours" in kubectl("get", names.SHORT_NAMES[0], "-n", work)
        assert "theirs" in kubectl("get", "isvc", "-n", work)
    finally:
        kubectl("delete", "-f", str(KSERVE), "--timeout=60s")


def test_kubectl_explain_explains_every_field(crd: Path) -> None:
    text = kubectl("explain", names.PLURAL, "--recursive", "--api-version", names.API_VERSION)
    assert "maxNumScheduledTokens" in text
    leaf = kubectl("explain", f"{names.PLURAL}.spec.rollout.drainTimeout", "--api-version", names.API_VERSION)
    assert "Time that running requests get to finish" in leaf


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_of_the_documentation_are_accepted(services: InferenceServices, path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        if manifest["kind"] == names.KIND:
            assert services.create(manifest, dry_run=True)
        else:
            kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest))
