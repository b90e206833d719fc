"""What a real Prometheus discovers of an engine's pod through the real API server."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from flyball_engine.contract import API_PORT, CONTROL_PORT
from flyball_lab.harness.prometheus import prometheus
from flyball_lab.harness.tuners import inference_service
from flyball_lab.harness.waiting import eventually
from flyball_operator.prometheus.queries import UID
from flyball_operator.reconcile.plan import pod as pods
from flyball_operator.reconcile.plan.snapshot import Config
from support.cluster import kubectl
from support.discovery import annotation_job

#: Of loopback, where nobody listens.
ADDRESS = "127.94.3.7"


def test_the_annotation_job_finds_the_engines_ports_and_nothing_of_the_init_container(
    work: str, tmp_path: Path
) -> None:
    template = pods.render(inference_service(), Config(plugin_image="plugin:1", public_key="PEM"), "hash")
    # Nobody runs it: what discovery reads is the object.
    spec = template["spec"] | {"schedulerName": "nobody"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": "chat-0"}, "spec": spec}
    kubectl("create", "-n", work, "--warnings-as-errors", "-f", "-", stdin=json.dumps(pod))
    status = {"phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}
    kubectl(
        "patch", "pod", "chat-0", "-n", work, "--subresource=status", "--type=merge",
        "-p", json.dumps({"status": status}),
    )  # fmt: skip
    found = {"role": "pod", "kubeconfig_file": os.environ["KUBECONFIG"], "namespaces": {"names": [work]}}
    job = replace(annotation_job([]), discovery={"kubernetes_sd_configs": [found]})
    with prometheus(tmp_path, jobs=[job]) as running:
        targets = eventually(running.targets, expecting="targets of the pod")
    assert sorted(target["url"] for target in targets) == [
        f"http://{ADDRESS}:{port}/metrics" for port in sorted((API_PORT, CONTROL_PORT))
    ]
    assert {(target["namespace"], target["pod"], target[UID]) for target in targets} == {(work, "chat-0", "uid-1")}
