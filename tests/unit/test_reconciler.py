"""The reconciler on a cluster in memory: what is made, what is left alone, what comes back."""

from __future__ import annotations

import json
from datetime import timedelta

from flyball_engine.launching import EXIT_REFUSED
from flyball_operator.api import names
from flyball_operator.kube.errors import InvalidObjectError
from flyball_operator.kube.resources import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    INFERENCE_SERVICES,
    OWNED,
    PODS,
    REVISIONS,
    SERVICES,
    Resource,
)
from flyball_operator.reconcile.plan.snapshot import Config
from support.memory_api import MemoryApi, Object
from support.memory_cluster import NAMESPACE, MemoryCluster, service


def image(name: str) -> Object:
    return {"spec__engine__image": name}


def edit_image(world: MemoryCluster, name: str) -> None:
    def change(found: Object) -> None:
        found["spec"]["engine"]["image"] = name

    world.change(change)


def versions(world: MemoryCluster, *resources: Resource) -> dict[str, str]:
    found = [item for resource in resources for item in world.api.find(resource)]
    return {item["metadata"]["name"] + item["kind"]: item["metadata"]["resourceVersion"] for item in found}


def test_a_service_gets_its_objects_and_serves() -> None:
    world = MemoryCluster()
    world.apply(service(spec__replicas=2))
    assert world.condition("Ready") == ("True", "Serving")
    assert world.condition("Progressing") == ("True", "RolloutComplete")
    assert {resource.plural: len(world.api.find(resource)) for resource in OWNED.values()} == {
        "deployments": 1,
        "leaderworkersets": 0,
        "services": 1,
        "poddisruptionbudgets": 1,
        "networkpolicies": 0,
        "configmaps": 0,
        "inferencepools": 0,
        "httproutes": 0,
        "controllerrevisions": 1,
        "persistentvolumeclaims": 0,
        "jobs": 0,
    }


def test_fields_dropped_from_the_spec_leave_the_deployment() -> None:
    world = MemoryCluster()
    world.apply(service(spec__podTemplate__nodeSelector={"gpu": "yes"}))

    def drop(found: Object) -> None:
        del found["spec"]["podTemplate"]

    world.change(drop)
    assert "nodeSelector" not in world.template()["spec"]


def test_what_somebody_else_changed_is_put_right() -> None:
    world = MemoryCluster()
    world.apply(service())

    def meddle(found: Object) -> None:
        found["spec"]["selector"] = {"app": "another"}

    world.api.edit(SERVICES, "chat", meddle)
    world.settle()
    assert world.api.one(SERVICES, "chat")["spec"]["selector"][names.LABEL_SERVICE] == "chat"


def test_an_object_whose_labels_somebody_took_is_known_by_its_name_and_gets_them_back() -> None:
    world = MemoryCluster()
    world.apply(service())
    before = world.api.one(DEPLOYMENTS, "chat")["metadata"]["labels"]

    def take_labels(found: Object) -> None:
        found["metadata"]["labels"] = {}

    world.api.edit(DEPLOYMENTS, "chat", take_labels)
    world.restart()
    world.settle()
    assert world.api.one(DEPLOYMENTS, "chat")["metadata"]["labels"] == before
    assert world.condition("Ready") == ("True", "Serving")


def test_a_restart_writes_nothing() -> None:
    world = MemoryCluster()
    world.apply(service(spec__podTemplate__resources={"requests": {"cpu": "2000m"}}))
    writes = world.api.writes
    world.restart()
    world.settle()
    assert world.api.writes == writes


def test_tuning_and_objectives_roll_nothing() -> None:
    world = MemoryCluster()
    world.apply(service())
    before = versions(world, DEPLOYMENTS, REVISIONS)

    def retune(found: Object) -> None:
        found["spec"]["tuning"] = {"mode": "Recommend", "bounds": {"maxNumActiveSeqs": {"max": 8}}}
        found["spec"]["objectives"] = []

    world.change(retune)
    assert versions(world, DEPLOYMENTS, REVISIONS) == before


def test_another_renderer_rolls_nothing_until_adopted() -> None:
    world = MemoryCluster()
    world.apply(service())
    template = world.template()
    world.config = Config(plugin_image="flyball/plugin:2", public_key="a new key")
    world.restart()
    world.settle()
    assert world.template() == template
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["revisionOutdated"] is True

    def adopt(found: Object) -> None:
        found["metadata"]["annotations"] = {names.ANNOTATION_ADOPT: "1"}

    world.change(adopt)
    assert world.template()["spec"]["initContainers"][0]["image"] == "flyball/plugin:2"
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["revisionOutdated"] is False


def test_with_scaling_the_deployment_has_as_many_pods_as_the_tuner_says_within_the_bounds() -> None:
    world = MemoryCluster()
    world.apply(service(spec__replicas=5))

    def scale(found: Object) -> None:
        del found["spec"]["replicas"]
        found["spec"]["scaling"] = {"minReplicas": 2, "maxReplicas": 8}

    def running() -> int:
        return int(world.api.one(DEPLOYMENTS, "chat")["spec"]["replicas"])

    world.change(scale)
    assert running() == 5, "until the tuner knows better, what runs"
    for said, wanted in ((3, 3), (1, 2), (9, 8)):
        world.change(lambda found, said=said: found["status"].update(scaling={"replicas": said}))  # type: ignore[misc]
        assert running() == wanted
        assert "replicas" not in world.api.one(INFERENCE_SERVICES, "chat")["spec"], "others scale by that"
    world.change(lambda found: found["spec"].pop("scaling"))
    assert running() == 8, "what runs is kept"


def test_replicas_left_out_are_kept_as_they_run() -> None:
    world = MemoryCluster()
    world.apply(service(spec__replicas=3))

    def leave_out(found: Object) -> None:
        del found["spec"]["replicas"]

    world.change(leave_out)
    assert world.api.one(DEPLOYMENTS, "chat")["spec"]["replicas"] == 3


def test_a_bad_image_brings_the_last_good_template_back() -> None:
    for replicas in (1, 2):
        world = MemoryCluster()
        world.apply(service(spec__replicas=replicas, **image("engine:good")))
        edit_image(world, "engine:bad")
        assert world.image() == "engine:good"
        assert world.condition("Progressing") == ("False", "RolledBack")
        assert "ImagePullFailed" in world.message("Progressing")
        assert world.condition("Ready") == ("False", "RolledBack")
        assert world.condition("Stalled") == ("True", "RolledBack")
        assert world.condition("Available") == ("True", "EarlierRevisionServes")
        edit_image(world, "engine:better")
        assert world.image() == "engine:better"
        assert world.condition("Progressing") == ("True", "RolloutComplete")
        assert world.condition("Ready") == ("True", "Serving")
        assert "Stalled" not in world.conditions()


def test_what_failed_is_tried_again_once_pods_shall_follow_one_another_otherwise() -> None:
    world = MemoryCluster()
    world.apply(service(**image("engine:good")))
    edit_image(world, "engine:bad")
    before = world.api.one(DEPLOYMENTS, "chat")["metadata"]["generation"]

    def in_place(found: Object) -> None:
        found["spec"]["rollout"] = {"maxSurge": 0, "maxUnavailable": 1}

    world.change(in_place)
    assert world.api.one(DEPLOYMENTS, "chat")["metadata"]["generation"] == before + 2, "there and back"
    assert world.condition("Ready") == ("False", "RolledBack")


def test_what_an_earlier_operator_gave_up_is_left_as_it_is() -> None:
    world = MemoryCluster()
    world.apply(service(**image("engine:good")))
    edit_image(world, "engine:bad")

    def of_earlier_operator(found: Object) -> None:
        failed = json.loads(found["metadata"]["annotations"][names.ANNOTATION_FAILED])
        del failed["steps"]
        found["metadata"]["annotations"][names.ANNOTATION_FAILED] = json.dumps(failed)

    before = world.image(), world.condition("Progressing")
    world.api.edit(DEPLOYMENTS, "chat", of_earlier_operator)
    generation = world.api.one(DEPLOYMENTS, "chat")["metadata"]["generation"]
    world.restart()
    world.settle()
    assert (world.image(), world.condition("Progressing")) == before
    assert world.api.one(DEPLOYMENTS, "chat")["metadata"]["generation"] == generation


def test_the_same_bad_spec_is_not_tried_again_but_after_another_it_is() -> None:
    world = MemoryCluster()
    world.apply(service(**image("engine:good")))
    edit_image(world, "engine:bad")
    before = versions(world, DEPLOYMENTS)
    world.restart()
    world.settle()
    assert versions(world, DEPLOYMENTS) == before
    edit_image(world, "engine:good")
    assert world.condition("Progressing") == ("True", "RolloutComplete")
    created = world.api.one(DEPLOYMENTS, "chat")["metadata"]["generation"]
    edit_image(world, "engine:bad")
    assert world.api.one(DEPLOYMENTS, "chat")["metadata"]["generation"] == created + 2
    assert world.image() == "engine:good"


def test_without_an_earlier_good_one_the_failure_is_told_and_kubernetes_keeps_trying() -> None:
    world = MemoryCluster()
    world.apply(service(**image("engine:bad")))
    assert world.condition("Progressing") == ("False", "ImagePullFailed")
    assert world.condition("Ready") == ("False", "ImagePullFailed")
    edit_image(world, "engine:good")
    assert world.condition("Ready") == ("True", "Serving")


def test_a_foreign_object_of_the_name_is_never_touched() -> None:
    for resource in (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS):
        world = MemoryCluster()
        foreign = {
            "apiVersion": "v1",
            "kind": "Foreign",
            "metadata": {"name": "chat", "namespace": "ns", "ownerReferences": []},
            "spec": {"replicas": 1},
        }
        world.api.put(resource, foreign)
        kept = dict(world.api.one(resource, "chat"))
        world.apply(service())
        assert world.condition("Accepted") == ("False", "NameConflict")
        assert world.api.one(resource, "chat") == kept
        assert not [what for what in world.api.counts if "events" not in what[1]]
        world.api.remove(resource, "chat")
        world.settle()
        assert world.condition("Ready") == ("True", "Serving")


def set_budget(world: MemoryCluster, budget: Object) -> None:
    def change(found: Object) -> None:
        found["spec"]["podDisruptionBudget"] = budget

    world.change(change)


def test_a_budget_is_as_asked_and_rolls_no_pod() -> None:
    world = MemoryCluster()
    world.apply(service(spec__replicas=4))
    before = versions(world, REVISIONS), world.template()
    assert world.api.one(DISRUPTION_BUDGETS, "chat")["spec"]["maxUnavailable"] == 1
    set_budget(world, {"maxUnavailable": "50%"})
    assert world.api.one(DISRUPTION_BUDGETS, "chat")["spec"]["maxUnavailable"] == "50%"
    assert (versions(world, REVISIONS), world.template()) == before
    assert world.condition("Ready") == ("True", "Serving")


def test_where_no_budget_is_asked_for_ours_goes_and_one_of_the_users_stays() -> None:
    world = MemoryCluster()
    world.apply(service())
    set_budget(world, {"enabled": False})
    assert world.api.find(DISRUPTION_BUDGETS) == []
    theirs = {"metadata": {"name": "chat", "namespace": NAMESPACE}, "spec": {"minAvailable": 1}}
    world.api.put(DISRUPTION_BUDGETS, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", **theirs})
    kept = dict(world.api.one(DISRUPTION_BUDGETS, "chat"))
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")
    assert world.api.one(DISRUPTION_BUDGETS, "chat") == kept
    set_budget(world, {})
    assert world.condition("Accepted") == ("False", "NameConflict")


def test_a_changed_pod_template_rolls_the_pods() -> None:
    world = MemoryCluster()
    world.apply(service())
    first = world.template()

    def mount(found: Object) -> None:
        found["spec"]["podTemplate"] = {
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}],
            "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
        }

    world.change(mount)
    assert world.template()["metadata"]["annotations"] != first["metadata"]["annotations"]
    assert "cache" in {volume["name"] for volume in world.template()["spec"]["volumes"]}
    assert world.condition("Progressing") == ("True", "RolloutComplete")


class RefusingApi(MemoryApi):
    """Refuses Deployments of one priority class, as the API server refuses what only it knows to be wrong."""

    WORDS = 'Deployment.apps "chat" is invalid: spec.template.spec.volumes[3].csi.driver: Invalid value'

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        if resource == DEPLOYMENTS and body["spec"]["template"]["spec"].get("priorityClassName") == "wrong":
            raise InvalidObjectError(self.WORDS)
        return await super().apply(resource, body, subresource=subresource)


def test_what_the_api_server_refuses_of_a_template_is_told_in_its_words_and_mended_by_another_spec() -> None:
    world = MemoryCluster(RefusingApi())
    world.apply(service())
    first = world.template()

    def ask(priority: str) -> None:
        def change(found: Object) -> None:
            found["spec"]["podTemplate"] = {"priorityClassName": priority}

        world.change(change)

    ask("wrong")
    for kind, status in (("Accepted", "False"), ("Ready", "False"), ("Stalled", "True")):
        assert world.condition(kind) == (status, "RefusedByServer")
        assert RefusingApi.WORDS in world.message(kind)
    assert world.template() == first
    ask("right")
    assert world.condition("Ready") == ("True", "Serving")
    assert world.template()["spec"]["priorityClassName"] == "right"


def test_orphans_of_an_earlier_service_are_left_alone_until_removed() -> None:
    world = MemoryCluster()
    world.apply(service())
    world.delete(cascade="orphan")
    world.apply(service())
    assert world.condition("Accepted") == ("False", "NameConflict")
    assert "cascade=orphan" in world.message("Accepted")
    for resource in (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS):
        world.api.remove(resource, "chat")
    world.settle()
    assert world.condition("Ready") == ("True", "Serving")


def test_deleted_and_made_again_the_new_one_has_its_own_selector() -> None:
    world = MemoryCluster()
    world.apply(service())
    old = world.api.one(INFERENCE_SERVICES, "chat")["metadata"]["uid"]
    world.delete()
    assert not any(world.api.find(resource) for resource in OWNED.values())
    world.apply(service())
    selector = world.api.one(DEPLOYMENTS, "chat")["spec"]["selector"]["matchLabels"]
    assert selector[names.LABEL_SERVICE_UID] not in ("", old)


def test_old_revisions_are_collected_but_never_the_last_good_one() -> None:
    world = MemoryCluster()
    world.apply(service(**image("engine:0")))
    for number in range(1, 10):
        edit_image(world, f"engine:{number}")
    assert len(world.api.find(REVISIONS)) == 6
    for number in range(10):
        edit_image(world, f"engine:bad-{number}")
    assert world.image() == "engine:9"
    assert len(world.api.find(REVISIONS)) == 7


def test_a_spec_that_does_not_parse_is_said_and_changes_nothing() -> None:
    world = MemoryCluster()
    world.apply(service())
    before = versions(world, DEPLOYMENTS, SERVICES)

    def break_it(found: Object) -> None:
        found["spec"]["batching"] = {"maxNumSeqs": -1}

    world.change(break_it)
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert "maxNumSeqs" in world.message("Accepted")
    assert world.condition("Ready") == ("False", "InvalidSpec")
    assert world.condition("Available") == ("True", "EarlierRevisionServes")
    assert "revision 1 serves" in world.message("Available")
    assert versions(world, DEPLOYMENTS, SERVICES) == before


def test_a_misspelt_annotation_is_named_with_the_accepted_ones() -> None:
    world = MemoryCluster()
    world.apply(service())

    def annotate(**annotations: str) -> None:
        keys = {f"{names.GROUP}/{name}": value for name, value in annotations.items()}
        world.change(lambda found: found["metadata"].update(annotations={"example.com/other": "1", **keys}))

    annotate(tuning="Paused", adopt="1")
    assert world.condition("Accepted") == ("True", "Accepted")
    annotate(tunning="Paused")
    assert world.condition("Accepted") == ("True", "UnknownAnnotation")
    assert world.message("Accepted") == (
        "annotation serving.flyball.dev/tunning is not known and does nothing; accepted under serving.flyball.dev/: "
        "serving.flyball.dev/adopt, serving.flyball.dev/tuning, serving.flyball.dev/tuning-reason"
    )
    assert world.condition("Ready") == ("True", "Serving")
    warned = [event for event in world.api.find(EVENTS) if event["reason"] == "UnknownAnnotation"]
    assert [event["type"] for event in warned] == ["Warning"]
    annotate()
    assert world.condition("Accepted") == ("True", "Accepted")


def test_governed_engines_need_a_plugin_image_and_a_key() -> None:
    published = MemoryCluster(config=Config(plugin_image="flyball/plugin:1", publishes_keys=True))
    published.apply(service())
    assert published.condition("Accepted") == ("True", "Accepted")
    world = MemoryCluster(config=Config())
    world.apply(service())
    assert world.condition("Accepted") == ("False", "OperatorMisconfigured")

    def plain(found: Object) -> None:
        found["spec"]["engine"]["governed"] = False
        found["spec"]["tuning"] = {"mode": "Disabled"}
        del found["spec"]["objectives"]

    world.change(plain)
    assert world.condition("Ready") == ("True", "Serving")
    assert "initContainers" not in world.template()["spec"]


def test_available_is_not_the_deployments_word() -> None:
    world = MemoryCluster()
    world.apply(service(spec__replicas=0))
    assert world.condition("Available") == ("False", "ScaledToZero")


def stranger(world: MemoryCluster, status: Object) -> None:
    """A bare pod in the service's namespace with all that its pods carry, but without their controller."""
    like = world.template()["metadata"]
    world.api.put(PODS, {"metadata": {**like, "name": "stranger", "namespace": NAMESPACE}, "status": status})
    world.settle()


def test_a_ready_pod_that_only_has_the_labels_makes_no_service_available() -> None:
    world = MemoryCluster()
    world.apply(service(**image("bad/engine:1")))
    stranger(world, {"conditions": [{"type": "Ready", "status": "True"}]})
    assert world.condition("Available") == ("False", "ImagePullFailed")
    assert world.condition("Ready") == ("False", "ImagePullFailed")


def test_a_pod_that_only_has_the_labels_fails_no_rollout() -> None:
    world = MemoryCluster()
    world.apply(service())
    edit_image(world, "bad/engine:2")
    ended = {"terminated": {"exitCode": EXIT_REFUSED, "message": "a stranger's word"}}
    stranger(world, {"containerStatuses": [{"name": "engine", "ready": False, "state": ended}]})
    assert world.condition("Progressing") == ("False", "RolledBack")
    assert "ImagePullFailed" in world.message("Progressing")


def test_a_clock_that_is_set_back_holds_no_figures_back() -> None:
    world = MemoryCluster()
    world.apply(service())
    world.now -= timedelta(hours=3)
    world.api.edit(INFERENCE_SERVICES, "chat", lambda found: found["status"].update(replicas=7))
    world.settle()
    assert world.api.one(INFERENCE_SERVICES, "chat")["status"]["replicas"] == 1
