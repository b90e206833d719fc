"""`flyball diff` as it is typed: against an API server over HTTP, by a kubeconfig alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flyball_lab.harness.manifests import DROP, Object, edited, good
from flyball_lab.repository import ROOT
from flyball_operator.api import names
from flyball_operator.cli.entry import main
from flyball_operator.cli.manifest_changes import LAST_APPLIED, merge_patch
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES
from flyball_operator.reconcile.plan.cause import Cause
from flyball_operator.reconcile.plan.history import History, to_annotations
from support.stored_api import Command, StoredApi, served

UID = "uid-1"
PLUGIN = "flyball/plugin:1"
MANIFEST = good(metadata__namespace="team", spec__replicas=2, spec__batching={"maxNumSeqs": 256})


def deployment(noted: History | None = None) -> Object:
    owner = {"kind": names.KIND, "name": "chat", "uid": UID, "controller": True}
    meta: Object = {"name": "chat", "namespace": "team", "ownerReferences": [owner]}
    meta["annotations"] = to_annotations(noted or History(asked="a", since="2026-11-20T10:00:00Z"))
    plugin = {"name": names.CONTAINER_PLUGIN, "image": PLUGIN}
    return {"metadata": meta, "spec": {"replicas": 2, "template": {"spec": {"initContainers": [plugin]}}}}


@pytest.fixture
def api() -> StoredApi:
    found = StoredApi()
    setpoint = {"maxNumActiveSeqs": 48, "maxNumScheduledTokens": 1024}
    held = edited(
        MANIFEST,
        {
            "metadata.uid": UID,
            "metadata.resourceVersion": "7",
            "metadata.generation": 3,
            "metadata.annotations": {LAST_APPLIED: json.dumps(MANIFEST)},
        },
    )
    found.put(INFERENCE_SERVICES, held | {"status": {"tuning": {"setpoint": setpoint}}})
    found.put(DEPLOYMENTS, deployment())
    return found


@pytest.fixture
def typed(api: StoredApi, command: Command, tmp_path: Path) -> Command:
    """Runs the command on a manifest; what it printed."""

    def run(manifest: object, *arguments: str, code: int) -> Any:
        path = tmp_path / "chat.yaml"
        path.write_text(yaml.safe_dump(manifest))
        held = json.dumps(api.documents)
        said = command(api, "diff", "-f", str(path), *arguments, code=code)
        assert json.dumps(api.documents) == held, "a diff stores nothing"
        return json.loads(said.out) if "json" in arguments else said

    return run


def test_the_same_manifest_changes_nothing(typed: Any) -> None:
    assert typed(MANIFEST, code=0).out == "team/chat: nothing changes\n"
    document = typed(MANIFEST, "-o", "json", code=0)
    assert (document["changed"], document["fields"], document["pods"]["replaced"]) == (False, [], False)


def test_what_kubectl_get_prints_changes_nothing(typed: Any, api: StoredApi) -> None:
    assert typed(api.documents[INFERENCE_SERVICES.path("team", "chat")], code=0).out.endswith("nothing changes\n")


def test_an_objective_reaches_running_engines(typed: Any) -> None:
    manifest = edited(MANIFEST, {"spec.objectives.0.threshold": "400ms"})
    said = typed(manifest, code=1).out
    assert "spec.objectives[ttft].threshold: 500ms -> 400ms" in said
    assert "pods: none is replaced" in said
    assert "limits are chosen anew" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_ceiling_replaces_pods_and_says_what_of_their_template(typed: Any) -> None:
    found = typed(edited(MANIFEST, {"spec.batching.maxNumSeqs": 512}), "-o", "json", code=1)
    assert found["fields"] == [{"field": "spec.batching.maxNumSeqs", "before": 256, "after": 512}]
    pods = found["pods"]
    assert (pods["replaced"], pods["why"]) == (True, "their template changes")
    assert pods["fields"] == ["spec.containers[engine].command"]
    assert (pods["max_surge"], pods["max_unavailable"]) == (1, 0)
    assert found["limits"] == ["maxNumActiveSeqs: the least to 512 instead of the least to 256"]
    said = typed(edited(MANIFEST, {"spec.batching.maxNumSeqs": 512}), code=1).out
    assert "pods: all are replaced, because their template changes" in said


def test_a_lower_ceiling_says_that_pods_that_run_keep_their_limits(typed: Any) -> None:
    found = typed(edited(MANIFEST, {"spec.batching.maxNumSeqs": 32}), "-o", "json", code=1)
    assert found["limits"] == [
        "maxNumActiveSeqs: the least to 32 instead of the least to 256",
        "maxNumActiveSeqs is 48 now, and is brought within these bounds once no pod with more is left",
    ]


def test_a_field_at_its_default_replaces_no_pod(typed: Any) -> None:
    found = typed(edited(MANIFEST, {"spec.batching.maxNumBatchedTokens": 8192}), "-o", "json", code=1)
    assert found["pods"]["replaced"] is False


def test_narrower_bounds_say_what_becomes_of_the_limits_in_force(typed: Any) -> None:
    manifest = edited(MANIFEST, {"spec.tuning": {"bounds": {"maxNumActiveSeqs": {"max": 32}}, "mode": "Recommend"}})
    found = typed(manifest, "-o", "json", code=1)
    assert found["pods"]["replaced"] is False
    assert found["limits"] == [
        "maxNumActiveSeqs: the least to 32 instead of the least to 256",
        "maxNumActiveSeqs is 48 now, and is brought within these bounds at the operator's next look",
        "mode Recommend instead of Auto",
    ]


def test_a_field_that_the_manifest_no_longer_has_is_removed_and_what_others_wrote_stays(
    typed: Any, api: StoredApi
) -> None:
    held = api.documents[INFERENCE_SERVICES.path("team", "chat")]
    held["metadata"]["annotations"][names.ANNOTATION_TUNING] = "Paused"
    found = typed(edited(MANIFEST, {"spec.batching": DROP}), "-o", "json", code=1)
    assert found["fields"] == [{"field": "spec.batching", "before": {"maxNumSeqs": 256}, "after": None}]
    assert found["pods"]["replaced"] is False, "256 is the default"


def test_replicas_scale_and_replace_nobody(typed: Any) -> None:
    found = typed(edited(MANIFEST, {"spec.replicas": 5}), "-o", "json", code=1)
    assert (found["pods"]["replicas_before"], found["pods"]["replicas_after"]) == (2, 5)
    assert found["pods"]["replaced"] is False


def test_the_annotation_that_adopts_replaces_pods(typed: Any) -> None:
    found = typed(edited(MANIFEST, {"metadata.annotations": {names.ANNOTATION_ADOPT: "1"}}), "-o", "json", code=1)
    assert found["pods"]["why"] == "the annotation serving.flyball.dev/adopt changes"
    assert found["pods"]["fields"] == []


def test_other_steps_are_another_attempt_at_a_template_that_failed(typed: Any, api: StoredApi) -> None:
    manifest = edited(MANIFEST, {"spec.rollout": {"maxSurge": 2}})
    assert typed(manifest, "-o", "json", code=1)["pods"]["replaced"] is False
    api.put(DEPLOYMENTS, deployment(History(asked="a", since="s", failed=Cause("OutOfMemory", "killed"))))
    assert "that failed is tried again" in typed(manifest, code=1).out


def test_a_new_service_is_created(typed: Any, api: StoredApi) -> None:
    said = typed(edited(MANIFEST, {"metadata.name": "new"}), code=1).out
    assert said == "team/new: would be created, with 2 pods\n"
    assert ("POST", INFERENCE_SERVICES.path("team")) in api.requests


def test_a_service_that_was_applied_by_the_server_is_applied_so_again(typed: Any, api: StoredApi) -> None:
    del api.documents[INFERENCE_SERVICES.path("team", "chat")]["metadata"]["annotations"]
    assert typed(edited(MANIFEST, {"spec.replicas": 5}), "-o", "json", code=1)["changed"] is True


def test_the_namespace_is_the_manifests_else_the_options(typed: Any) -> None:
    bare = edited(MANIFEST, {"metadata.namespace": DROP})
    assert typed(bare, "-n", "team", code=0).out == "team/chat: nothing changes\n"
    assert "metadata.namespace is team, --namespace is other" in typed(MANIFEST, "-n", "other", code=2).err


def test_what_the_api_server_refuses_ends_with_2(typed: Any, api: StoredApi) -> None:
    api.invalid = 'spec.batching.maxNumSeqs: Invalid value: "x"'
    assert "spec.batching.maxNumSeqs: Invalid value" in typed(edited(MANIFEST, {"spec.replicas": 5}), code=2).err


def test_of_a_patch_that_is_refused_only_the_reason_is_shown(typed: Any, api: StoredApi) -> None:
    quoted = json.dumps(json.dumps({"spec": {"args": ["x" * 2000], "scaling": {"maxreplicas": 3}}}))
    reason = 'strict decoding error: unknown field "spec.scaling.maxreplicas"'
    api.invalid = f' "" is invalid: patch: Invalid value: {quoted}: {reason}'
    assert typed(edited(MANIFEST, {"spec.replicas": 5}), code=2).err == f"flyball diff: {reason} (HTTP 422)\n"


def test_an_example_of_two_documents_has_one_service(
    api: StoredApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(api, tmp_path, namespace="new") as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        assert main(["diff", "-f", str(ROOT / "docs/examples/model-cache.yaml")]) == 1
    assert capsys.readouterr().out == "new/chat: would be created, with 2 pods\n"


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({"kind": "Deployment"}, "kind is 'Deployment', accepted: InferenceService"),
        ({"kind": "InferenceService", "metadata": {}}, "no metadata.name"),
        ({"kind": "InferenceService", "metadata": {"name": ""}}, "metadata.name: '' is no name of an object"),
        ({"kind": "InferenceService", "metadata": {"name": "a/b"}}, "metadata.name: 'a/b' is no name of an object"),
        (edited(MANIFEST, {"metadata.namespace": "../x"}), "metadata.namespace: '../x' is no name of an object"),
        (None, "is empty"),
    ],
)
def test_what_is_no_manifest_ends_with_2(typed: Any, manifest: object, says: str) -> None:
    assert says in typed(manifest, code=2).err


def test_a_missing_right_and_a_missing_file_end_with_2(typed: Any, api: StoredApi) -> None:
    api.forbidden.add("inferenceservices")
    assert "is forbidden" in typed(MANIFEST, code=2).err
    assert main(["diff", "-f", "/nowhere.yaml"]) == 2


def test_a_merge_patch_is_what_is_wanted_and_null_for_what_was_applied_last() -> None:
    last = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    assert merge_patch(last, {"b": {"c": 3}, "e": [2], "f": {"g": 1}}) == {
        "a": None,
        "b": {"d": None, "c": 3},
        "e": [2],
        "f": {"g": 1},
    }


def test_an_edit_of_a_service_whose_pods_others_make_replaces_none(typed: Any, api: StoredApi) -> None:
    workload = {"selector": {"matchLabels": {"app": "llm"}}}
    bare = {"spec.model": DROP, "spec.engine": DROP, "spec.replicas": DROP, "spec.batching": DROP}
    foreign = edited(MANIFEST, bare | {"metadata.name": "llm", "spec.workload": workload})
    assert "would be created" in typed(foreign, code=1).out
    api.put(INFERENCE_SERVICES, edited(foreign, {"metadata.uid": "uid-2", "metadata.resourceVersion": "8"}))
    bounded = edited(foreign, {"spec.tuning.bounds.maxNumActiveSeqs.max": 64})
    found = typed(bounded, "-o", "json", code=1)
    assert not found["pods"]["replaced"]
    assert found["limits"] == ["maxNumActiveSeqs: the least to 64 instead of the least to 1048576"]


@pytest.mark.parametrize(("replicas", "judged", "first"), [(2, 1, "first 1 pod"), (20, 2, "first 2 pods")])
def test_a_canary_says_how_many_pods_are_replaced_first(typed: Any, replicas: int, judged: int, first: str) -> None:
    changes = {"spec.engine.image": "vllm/next:1", "spec.rollout": {"canary": {}}, "spec.replicas": replicas}
    manifest = edited(MANIFEST, changes)
    assert f"pods: {first}, judged by the objectives as spec.rollout.canary says\n" in typed(manifest, code=1).out
    pods = typed(manifest, "-o", "json", code=1)["pods"]
    assert pods["judged"] == judged
    assert max(pods["max_surge"], pods["max_unavailable"]) == judged


def test_a_canary_judges_nothing_where_no_pod_is_replaced(typed: Any) -> None:
    manifest = edited(MANIFEST, {"spec.rollout": {"canary": {}}})
    assert "judged" not in typed(manifest, code=1).out


def learnt(api: StoredApi, **tuning: Any) -> None:
    """Status tells of a model, and of the load of a core."""
    model = {"t0": "0.008", "c1": "0.00002", "c2": "0.00002", "g": "1e-9", "kappa": 1, "trusted": True, "steps": 9000}
    load = {"arrivals": "40", "prompt": "400", "uncached": "400", "output": "64", "attention": "200", "context": "430"}
    load |= {"decodes": "30", "kvTokens": "100000", "drafted": "1", "made": "1"}
    held = api.documents[INFERENCE_SERVICES.path("team", "chat")]
    held["status"]["tuning"] |= {"model": model, "workload": load} | tuning


def test_what_the_law_makes_of_another_objective_is_predicted(typed: Any, api: StoredApi) -> None:
    learnt(api)
    found = typed(edited(MANIFEST, {"spec.objectives.0.threshold": "50ms"}), "-o", "json", code=1)["prediction"]
    assert (found["unknown"], found["not_live"], found["load"]["arrivals"]) == ("", "", "40")
    (ttft, *_) = found["objectives"]
    assert (ttft["name"], ttft["before"]["threshold"], ttft["after"]["threshold"]) == ("ttft", "500ms", "50ms")
    assert (ttft["before"]["kept"], ttft["after"]["kept"]) == (True, False)
    deadlines = [(one["before"], one["after"]) for one in found["limits"] if one["name"] == "Deadline of a first token"]
    assert deadlines == [("500ms", "50ms")]


def test_the_prediction_for_people_fits_the_terminal(typed: Any, api: StoredApi) -> None:
    learnt(api)
    said = typed(edited(MANIFEST, {"spec.objectives.0.threshold": "50ms"}), code=1).out
    assert "prediction: by the load that status tells, 40/s per core of 400+64 tokens\n" in said
    assert ", kept -> " in said
    assert "of 50ms, missed\n" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_ceiling_bounds_what_the_law_would_choose(typed: Any, api: StoredApi) -> None:
    learnt(api)
    found = typed(edited(MANIFEST, {"spec.batching.maxNumSeqs": 8}), "-o", "json", code=1)["prediction"]
    (seqs, *_) = found["limits"]
    assert (seqs["name"], seqs["after"]) == ("Requests at once", "8")
    assert int(seqs["before"]) > 8


def test_fewer_pods_have_more_of_the_load_each(typed: Any, api: StoredApi) -> None:
    learnt(api)
    found = typed(edited(MANIFEST, {"spec.replicas": 1}), "-o", "json", code=1)["prediction"]
    (ttft, *_) = found["objectives"]
    assert ttft["before"]["threshold"] == ttft["after"]["threshold"]
    assert ttft["before"]["predicted"] != ttft["after"]["predicted"]


def test_an_objective_that_is_new_or_goes_is_compared_with_none(typed: Any, api: StoredApi) -> None:
    learnt(api)
    (old,) = MANIFEST["spec"]["objectives"][:1]
    other = [{"name": "per-token", "metric": "TimePerOutputToken", "threshold": "50ms"}]
    found = typed(edited(MANIFEST, {"spec.objectives": other}), "-o", "json", code=1)["prediction"]["objectives"]
    by_name = {one["name"]: one for one in found}
    assert by_name[old["name"]]["after"] is None
    assert by_name["per-token"]["before"] is None
    assert by_name["per-token"]["after"]["kept"] is True


def test_in_other_modes_the_law_chooses_but_engines_are_not_told(typed: Any, api: StoredApi) -> None:
    learnt(api)
    found = typed(edited(MANIFEST, {"spec.tuning": {"mode": "Recommend"}}), "-o", "json", code=1)["prediction"]
    assert found["not_live"].startswith("mode Recommend")


@pytest.mark.parametrize(
    "change",
    [{"spec.model.uri": "hf://another/model"}, {"spec.engine.image": "another:1"}, {"spec.parallelism": {"data": 2}}],
)
def test_of_another_engine_nothing_is_predicted(typed: Any, api: StoredApi, change: dict[str, Any]) -> None:
    learnt(api)
    found = typed(edited(MANIFEST, change), "-o", "json", code=1)["prediction"]
    assert found["unknown"].endswith("so the step-time model is learnt anew")
    assert not found["limits"]


def test_without_a_model_or_a_load_it_says_why_nothing_is_predicted(typed: Any, api: StoredApi) -> None:
    manifest = edited(MANIFEST, {"spec.objectives.0.threshold": "400ms"})
    assert "prediction: none, because status has no step-time model" in typed(manifest, code=1).out
    learning = {"type": "Tuned", "status": "False", "reason": "Learning", "message": "too few steps"}
    api.documents[INFERENCE_SERVICES.path("team", "chat")]["status"]["conditions"] = [learning]
    found = typed(manifest, "-o", "json", code=1)["prediction"]
    assert found["unknown"] == "status has no step-time model that is trusted: Learning: too few steps"
    learnt(api, workload=None)
    assert "no load yet" in typed(manifest, "-o", "json", code=1)["prediction"]["unknown"]
    new = typed(edited(MANIFEST, {"metadata.name": "new"}), "-o", "json", code=1)["prediction"]
    assert new["unknown"].startswith("the service is new")
