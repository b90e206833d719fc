"""Operators, CRDs and objects of neighbouring versions on the real API server: what a later one adds blocks nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball_lab.harness.manifests import Object, edited, good
from flyball_lab.harness.waiting import eventually
from flyball_operator.api import names
from flyball_operator.api.crd import custom_resource_definition
from flyball_operator.api.desire import read_desire
from support.api import InferenceServices, RefusedError
from support.cluster import apply, get, kubectl, patch
from support.kubelet import play_kubelet
from support.operators import IMAGE, RESOURCE, expect_condition, idle_service, made, one, serve
from support.tenants import granted, operator

NEWER = "flyball.test/plugin:2"


@pytest.fixture
def changed_crd(crd: Path) -> Iterator[Any]:
    """Serves the CRD as another version has it; at the end, ours again."""

    def serve_otherwise(change: Any) -> None:
        other = custom_resource_definition()
        other["metadata"]["annotations"][names.ANNOTATION_SCHEMA_HASH] = "another"
        change(other["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
        _put(other)

    yield serve_otherwise
    _put(custom_resource_definition())


def _put(crd: Object) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=test-crd", "-f", "-", stdin=json.dumps(crd))


def add_a_field(spec: Object) -> None:
    spec["batching"]["properties"]["maxNumLater"] = {"type": "integer"}


def test_an_operator_works_with_a_later_crd_and_a_field_that_it_does_not_know(
    place: str, tmp_path: Path, changed_crd: Any
) -> None:
    with operator(place, tmp_path) as process:
        apply(idle_service(), namespace=place)
        made(place)
        serve(place)
        before = one("deployment", place)["metadata"]["generation"]
        changed_crd(add_a_field)
        # What the later schema adds may be served a moment later.
        eventually(lambda: set_later_field(place), expecting="the later field is kept")
        seen = one(RESOURCE, place)["metadata"]["generation"]
        eventually(lambda: one(RESOURCE, place)["status"]["observedGeneration"] == seen, expecting="the edit is seen")
        assert one("deployment", place)["metadata"]["generation"] == before
        process.expect_ready()
    # It starts with it, too, and acts.
    with operator(place, tmp_path):
        patch(RESOURCE, "chat", {"spec": {"replicas": 2}}, namespace=place)
        eventually(lambda: one("deployment", place)["spec"]["replicas"] == 2, expecting="the edit is carried out")
    assert one(RESOURCE, place)["spec"]["batching"]["maxNumLater"] == 3


def set_later_field(place: str) -> bool:
    patch(RESOURCE, "chat", {"spec": {"batching": {"maxNumLater": 3}}}, namespace=place)
    return bool(one(RESOURCE, place)["spec"]["batching"].get("maxNumLater") == 3)


def test_an_earlier_crd_is_told_by_what_it_lacks(place: str, tmp_path: Path, changed_crd: Any) -> None:
    changed_crd(lambda spec: spec["podTemplate"]["properties"].pop("runtimeClassName"))
    lacks = "does not have, or has otherwise: spec.podTemplate.runtimeClassName; upgrade the CRD"
    with granted(place, (place,)) as release:
        process = release.process(tmp_path)
        try:
            eventually(lambda: lacks in process.readyz()[1], expecting="what the CRD lacks, in readiness")
        finally:
            process.stop()


@pytest.mark.long
def test_a_stored_value_that_a_later_crd_refuses_stays_until_it_is_edited(place: str, changed_crd: Any) -> None:
    def without_range(spec: Object) -> None:
        target = spec["objectives"]["items"]["properties"]["target"]
        target["x-kubernetes-validations"] = target["x-kubernetes-validations"][:1]

    services = InferenceServices(place)
    changed_crd(without_range)
    share = good(spec__objectives__0__target="0.99")
    # The earlier schema may be served a moment later.
    eventually(lambda: accepted(services, share), expecting="the earlier CRD takes it")
    _put(custom_resource_definition())
    other = share | {"metadata": {"name": "other"}}
    eventually(lambda: not accepted(services, other, dry_run=True), expecting="ours does not")
    services.apply_status("chat", {"epoch": 1, "url": "http://nowhere"}, manager="leader")
    patch(RESOURCE, "chat", {"spec": {"replicas": 2}}, namespace=place)
    stored = services.read("chat")
    assert (stored["spec"]["replicas"], stored["status"]["epoch"]) == (2, 1)
    assert "in percent" in read_desire(stored).error
    with pytest.raises(RefusedError, match=r"spec\.objectives\[0\]\.target: .*in percent, such as 99 for 99 %"):
        services.replace(edited(stored, {"spec.objectives.0.target": "0.98"}))
    assert services.replace(edited(stored, {"spec.objectives.0.target": "98"}))


def accepted(services: InferenceServices, manifest: Object, *, dry_run: bool = False) -> bool:
    try:
        services.create(manifest, dry_run=dry_run)
    except RefusedError:
        return False
    return True


def test_services_adopt_a_new_operators_template_one_after_the_other(place: str, tmp_path: Path) -> None:
    both = ("chat", "second")
    with operator(place, tmp_path):
        for name in both:
            apply(idle_service(name), namespace=place)
        play_all(place, dict.fromkeys(both, "flyball.test/plugin:1"))
    with operator(place, tmp_path, plugin_image=NEWER, adopt=json.dumps({"maxConcurrent": 1})) as process:
        first = eventually(lambda: adopted(place), expecting="one adopts", within=240)
        assert len(first) == 1
        (other,) = set(both) - first
        expect_condition(place, "TemplateOutdated", "True", "WaitsForTurn", name=other)
        assert 'flyball_operator_services_by_template{standing="adopting"} 1.0' in process.metrics()
        assert adopted(place) == first
        play_all(place, dict.fromkeys(both, NEWER))
        figure = 'flyball_operator_services_by_template{standing="current"} 2.0'

        def both_adopted() -> bool:
            # A pod that came after all had the newer plugin is played, too: else its service adopts for ever.
            play_kubelet(place, image=IMAGE)
            return figure in process.metrics()

        eventually(both_adopted, expecting="both have adopted", every=0.5)


def test_a_template_is_replaced_once_it_is_old_enough(place: str, tmp_path: Path) -> None:
    with operator(place, tmp_path):
        apply(idle_service(), namespace=place)
        play_all(place, {"chat": "flyball.test/plugin:1"})
    with operator(place, tmp_path, plugin_image=NEWER, adopt=json.dumps({"maxConcurrent": 1, "after": "24h"})):
        expect_condition(place, "TemplateOutdated", "True", "NotOldEnough")
        assert plugin(place, "chat") == "flyball.test/plugin:1"
    with operator(place, tmp_path, plugin_image=NEWER, adopt=json.dumps({"maxConcurrent": 1, "after": "1s"})):
        play_all(place, {"chat": NEWER})


def adopted(place: str) -> set[str]:
    """Services whose Deployment has the newer plugin."""
    return {name for name in ("chat", "second") if plugin(place, name) == NEWER}


def plugin(place: str, name: str) -> str:
    found = get("deployment", name, namespace=place)
    return str(found["spec"]["template"]["spec"]["initContainers"][0]["image"]) if found else ""


def play_all(place: str, wanted: dict[str, str]) -> None:
    """Play the kubelet until all services serve with these plugins."""

    def whole() -> bool:
        play_kubelet(place, image=IMAGE)
        for name, image in wanted.items():
            found = get("deployment", name, namespace=place) or {"status": {}}
            counts = {found["status"].get(field, 0) for field in ("replicas", "updatedReplicas", "availableReplicas")}
            if counts != {1} or plugin(place, name) != image:
                return False
        return True

    eventually(whole, expecting=f"all serve with {wanted}", within=240, every=0.5)
