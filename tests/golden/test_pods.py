"""The pod templates that services get: a change of one of these files reaches a service with its next edit, or `adopt`.

A service that runs keeps the template of its revision. So a spec that uses nothing new keeps its spec hash, whatever
the API gains.
"""

from __future__ import annotations

import json

import pytest
import yaml

from flyball_lab.harness.manifests import Object
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.api.objects import Object as Rendered
from flyball_operator.api.parse import parse_service
from flyball_operator.reconcile.plan import (
    deployment,
    disruption_budget,
    http_route,
    inference_pool,
    model_job,
    pod,
    service,
    worker,
)
from flyball_operator.reconcile.plan.revision import spec_hash
from flyball_operator.reconcile.plan.snapshot import Config

FOLDER = ROOT / "tests/golden/pods"
CONFIG = Config(plugin_image="flyball/plugin:1", public_key="PEM")
SERVICES = {
    **{path.stem: path for path in sorted((ROOT / "docs/examples").glob("*.yaml"))},
    "demo": ROOT / "engine/lab/src/flyball_lab/demo/chat.yaml",
    **{path.name.removesuffix(".service.yaml"): path for path in sorted(FOLDER.glob("*.service.yaml"))},
}


def rendered(manifest: Object) -> list[Rendered]:
    """What a service gets that concerns its pods, or the way to them."""
    identity = {"namespace": "team", "uid": "6d0f6d62-0000-4000-8000-000000000000", "generation": 1}
    found = parse_service({**manifest, "metadata": {**manifest["metadata"], **identity}})
    template = pod.render(found, CONFIG, spec_hash(found))
    surge, unavailable = deployment.rollout_steps(found, deployment.wanted_replicas(found, None))
    strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    return [
        template,
        *([worker.render(template)] if found.spec.parallelism.core_spans_nodes else []),
        strategy,
        service.render(found, template),
        *([budget] if (budget := disruption_budget.render(found)) else []),
        *([model_job.render(found, CONFIG)] if found.spec.model.cache else []),
        *(one for one in (inference_pool.render(found), http_route.render(found)) if one is not None),
    ]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_gets_the_pods_it_always_got(name: str, rewrite: bool) -> None:
    text = SERVICES[name].read_text().replace("ENGINE_IMAGE", "engine:1")
    # By way of JSON: parts that stand twice would be anchors.
    (manifest,) = (found for found in yaml.safe_load_all(text) if found["kind"] == names.KIND)
    found = yaml.safe_dump_all(json.loads(json.dumps(rendered(manifest))), width=120)
    path = FOLDER / f"{name}.yaml"
    if rewrite:
        path.write_text(found)
    assert found == path.read_text()


def test_every_file_is_of_a_service(rewrite: bool) -> None:
    wanted = {FOLDER / f"{name}{suffix}.yaml" for name in SERVICES for suffix in ("", ".service")}
    stale = set(FOLDER.glob("*.yaml")) - wanted
    if rewrite:
        for path in stale:
            path.unlink()
    assert rewrite or not stale
