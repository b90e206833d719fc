"""Services adopt a new operator's template by themselves: so many at a time, in a window, until one fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from flyball_operator.api import names
from flyball_operator.api.objects import timestamp
from flyball_operator.api.service_key import Key
from flyball_operator.api.v1alpha1 import ConditionType
from flyball_operator.app.main import ExitCode, main
from flyball_operator.kube.errors import ClusterError, ForbiddenError, InvalidObjectError
from flyball_operator.kube.resources import DEPLOYMENTS, INFERENCE_SERVICES, REVISIONS, Resource
from flyball_operator.reconcile.adoptions import Adoptions
from flyball_operator.reconcile.plan.adoption import (
    SLOT_SECONDS,
    AdoptionPolicy,
    OutdatedReason,
    Standing,
    Window,
    turn,
)
from flyball_operator.reconcile.plan.revision import is_older
from flyball_operator.reconcile.plan.rollout import RolloutDecision, decide
from flyball_operator.reconcile.plan.snapshot import RESYNC_SECONDS, Config
from support.memory_api import MemoryApi, Object
from support.memory_cluster import CONFIG, NAMESPACE, PULL_FAILED, MemoryCluster, service

NIGHT = Window(start="22:00", duration="4h", days=("Fri", "Sat"))
#: A Friday.
FRIDAY = datetime(2026, 1, 2, tzinfo=UTC)
#: Of a pod whose engine takes its time.
STARTING: Object = {"containerStatuses": [{"name": "engine", "ready": False, "state": {"running": {}}}]}
#: Of a pod for which no node has a device.
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
UNSCHEDULED: Object = {"conditions": [NO_NODE]}
NEWER = Config(plugin_image="flyball/plugin:2", public_key="PEM")


@pytest.mark.parametrize(
    ("hours", "is_open"),
    [(21.9, False), (22, True), (25.9, True), (26, False), (22 - 24, False), (25 - 24, False), (46, True), (71, False)],
)
def test_a_window_goes_over_midnight_with_the_day_it_began_on(hours: float, is_open: bool) -> None:
    assert NIGHT.is_open(FRIDAY + timedelta(hours=hours)) is is_open


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"start": "24:00"}, "a time of day in UTC"),
        ({"duration": "25h"}, "at most 24h"),
        ({"duration": "0s"}, "at most 24h"),
        ({"days": ["Monday"]}, "at least one of Mon"),
        ({"days": []}, "at least one of Mon"),
    ],
)
def test_a_wrong_window_is_told_with_what_is_accepted(wrong: Object, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Window(**({"start": "22:00", "duration": "4h"} | wrong))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"maxConcurrent": -1}', "greater than or equal to 0"),
        ('{"most": 1}', "not permitted"),
        ('{"maxConcurrent": 1, "after": "30d"}', "a duration such as"),
        ('{"maxConcurrent": 1, "window": {"start": "25:00", "duration": "4h"}}', "a time of day in UTC"),
        ("{", "line 1 column 2"),
    ],
)
def test_a_wrong_setting_ends_the_process_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    monkeypatch.setenv("FLYBALL_ADOPT", text)
    assert main() == ExitCode.MISCONFIGURED
    answer = capsys.readouterr().err
    assert answer.startswith("FLYBALL_ADOPT")
    assert told in answer


def test_who_may_adopt() -> None:
    two = AdoptionPolicy(max_concurrent=2)
    adopting, failed = {"ns/a": Standing.ADOPTING}, {"ns/b": Standing.FAILED}
    for policy, others, all_seen, now, reason in (
        (AdoptionPolicy(), {}, True, FRIDAY, OutdatedReason.ADOPT_BY_ANNOTATION),
        (two, adopting | failed, True, FRIDAY, OutdatedReason.ADOPTION_STOPPED),
        (two, {"ns/a": Standing.ADOPTING, "ns/b": Standing.ADOPTING}, True, FRIDAY, OutdatedReason.WAITS_FOR_TURN),
        (two, adopting, False, FRIDAY, OutdatedReason.WAITS_FOR_TURN),
        (AdoptionPolicy(max_concurrent=2, window=NIGHT), adopting, True, FRIDAY, OutdatedReason.OUTSIDE_WINDOW),
    ):
        given = turn(policy, others, all_seen=all_seen, now=now)
        assert (given.now, given.reason) == (False, reason)
    assert turn(two, adopting | {"ns/c": Standing.UNSETTLED}, all_seen=True, now=FRIDAY).now


class Fleet:
    """Services `a`, `b` and `c` that serve, and a newer operator that lets them adopt. `most`: at one time so far."""

    def __init__(self, policy: AdoptionPolicy, api: MemoryApi | None = None) -> None:
        self.cluster = MemoryCluster(api)
        for name in ("a", "b", "c"):
            self.cluster.apply(service(name))
        self.policy, self.most = policy, 0
        self.lead(NEWER)

    def lead(self, config: Config) -> None:
        """Another process leads, with this configuration."""
        self.cluster.config = config
        self.adoptions = Adoptions(self.policy, self._known)
        self.cluster.restart(adoptions=self.adoptions)

    def look(self) -> None:
        """Everything settles, one look after the other."""
        for _ in range(8):
            self.cluster.act()
            self.most = max(self.most, self.adoptions.counts()["adopting"])
            self.cluster.controllers()
        self.cluster.settle()

    def new(self) -> set[str]:
        """Services whose pods are made from the present operator's template."""
        return {
            found["metadata"]["name"]
            for found in self.cluster.api.find(DEPLOYMENTS)
            if plugin(found["spec"]["template"]) == self.cluster.config.plugin_image
        }

    def templates(self) -> dict[str, Object]:
        """The pod template of each service."""
        return {found["metadata"]["name"]: found["spec"]["template"] for found in self.cluster.api.find(DEPLOYMENTS)}

    def outdated(self, name: str) -> tuple[str, str] | None:
        """Status and reason of `TemplateOutdated`, where it is there."""
        there = ConditionType.TEMPLATE_OUTDATED in self.cluster.conditions(name)
        return self.cluster.condition(ConditionType.TEMPLATE_OUTDATED, name) if there else None

    def _known(self) -> list[Key]:
        return [Key(NAMESPACE, found["metadata"]["name"]) for found in self.cluster.api.find(INFERENCE_SERVICES)]


def plugin(template: Object) -> str:
    return str(template["spec"]["initContainers"][0]["image"])


ONE = AdoptionPolicy(max_concurrent=1)


def test_one_after_another_adopts_and_the_next_waits_until_it_serves() -> None:
    fleet = Fleet(ONE)
    fleet.cluster.held, fleet.cluster.node = STARTING, "node-1"
    fleet.look()
    (first,) = fleet.new()
    fleet.lead(NEWER)  # which knows nothing of what the last process let adopt
    fleet.look()
    assert fleet.new() == {first}
    others = {"a", "b", "c"} - {first}
    assert {fleet.outdated(name) for name in others} == {("True", "WaitsForTurn")}
    assert fleet.outdated(first) is None
    assert "this operator's template" in fleet.cluster.message("Progressing", first)
    fleet.cluster.held = None
    fleet.look()
    assert fleet.new() == {"a", "b", "c"}
    assert fleet.most == 1
    assert not any(fleet.outdated(name) for name in "abc")
    writes = fleet.cluster.api.writes
    fleet.lead(NEWER)
    fleet.look()
    assert fleet.cluster.api.writes == writes, "what was adopted is adopted"


def test_nobody_adopts_outside_the_window() -> None:
    fleet = Fleet(AdoptionPolicy(max_concurrent=1, window=NIGHT))
    fleet.cluster.now = FRIDAY
    fleet.look()
    assert not fleet.new()
    assert fleet.outdated("a") == ("True", "OutsideWindow")
    assert "22:00 UTC for 4h, Fri, Sat" in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, "a")
    fleet.cluster.now = FRIDAY + timedelta(hours=22)
    fleet.look()
    assert fleet.new() == {"a", "b", "c"}


def test_a_window_of_a_minute_is_not_missed() -> None:
    minute = Window(start="22:00", duration="1m", days=("Fri",))
    fleet = Fleet(AdoptionPolicy(max_concurrent=1, window=minute))
    opens = FRIDAY + timedelta(hours=22)
    fleet.cluster.now = opens - timedelta(hours=12)
    fleet.look()
    # A resync looks at it once more before.
    fleet.cluster.now = opens - timedelta(seconds=RESYNC_SECONDS)
    again = fleet.cluster.look("a")
    assert again == RESYNC_SECONDS
    fleet.cluster.now += timedelta(seconds=again)
    fleet.cluster.act()
    assert fleet.new() == {"a"}


AGED = AdoptionPolicy(max_concurrent=1, after="720h")


def test_a_template_that_grows_old_is_replaced_before_its_plugin_image_may_be_gone() -> None:
    fleet = Fleet(AGED)
    made = fleet.cluster.now
    # Those of `b` were made later, such as by an edit.
    for found in fleet.cluster.api.find(REVISIONS):
        later = timedelta(days=9 if found["metadata"]["name"].startswith("b-") else 0)
        found["metadata"]["creationTimestamp"] = timestamp(made + later)
        fleet.cluster.api.put(REVISIONS, found)
    fleet.look()
    assert not fleet.new(), "an upgrade replaces no pod"
    assert fleet.outdated("a") == ("True", "NotOldEnough")
    assert timestamp(made + timedelta(days=30)) in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, "a")
    assert fleet.adoptions.counts()["unsettled"] == 3
    fleet.cluster.now = made + timedelta(days=30)
    fleet.look()
    assert fleet.new() == {"a", "c"}
    assert fleet.most == 1
    assert fleet.outdated("b") == ("True", "NotOldEnough")
    fleet.cluster.now = made + timedelta(days=39)
    fleet.look()
    assert fleet.new() == {"a", "b", "c"}


@pytest.mark.parametrize(("hours", "until"), [(21, 1), (22, 24), (26, 20), (46, 144), (-100, 122), (-1, 23)])
def test_how_long_until_a_window_opens(hours: int, until: int) -> None:
    assert NIGHT.opens_in(FRIDAY + timedelta(hours=hours)) == until * 3600


def test_without_a_policy_it_is_said_how_to_adopt() -> None:
    fleet = Fleet(AdoptionPolicy())
    fleet.look()
    assert not fleet.new()
    assert fleet.outdated("a") == ("True", "AdoptByAnnotation")
    assert names.ANNOTATION_ADOPT in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, "a")


def failed_fleet() -> tuple[Fleet, str]:
    """The first service did not come up with the template."""
    fleet = Fleet(ONE)
    fleet.cluster.held = PULL_FAILED
    fleet.look()
    (failed,) = [name for name in "abc" if fleet.outdated(name) == ("True", "AdoptionFailed")]
    return fleet, failed


def test_one_that_fails_goes_back_and_stops_the_others() -> None:
    fleet, failed = failed_fleet()
    assert not fleet.new()
    assert fleet.cluster.condition("Ready", failed) == ("False", "RolledBack")
    others = sorted({"a", "b", "c"} - {failed})
    assert {fleet.outdated(name) for name in others} == {("True", "AdoptionStopped")}
    assert f"{NAMESPACE}/{failed}" in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, others[0])
    assert fleet.adoptions.counts()["failed"] == 1
    fleet.lead(NEWER)
    fleet.cluster.held = None
    fleet.look()
    assert not fleet.new(), "another leader tries it no more than the one before"


class RefusingApi(MemoryApi):
    """Refuses Deployments whose pods bring one image of the plugin, until `mended`; where `all_of`, every other, too.

    `plugins`: of what was asked for, in this order.
    """

    def __init__(self, error: type[ClusterError] = InvalidObjectError, *, all_of: str = "") -> None:
        super().__init__()
        self.error, self.all_of, self.mended = error, all_of, False
        self.plugins: list[str] = []

    async def apply(self, resource: Resource, body: Object, *, subresource: str | None = None) -> Object:
        if resource == DEPLOYMENTS:
            self.plugins.append(plugin(body["spec"]["template"]))
            refuses = self.plugins[-1] == NEWER.plugin_image or body["metadata"]["name"] == self.all_of
            if refuses and not self.mended:
                raise self.error("policy plugin-images: flyball/plugin:2 is not allowed")
        return await super().apply(resource, body, subresource=subresource)


@pytest.mark.parametrize("error", [InvalidObjectError, ForbiddenError])
def test_one_whose_template_the_api_server_refuses_stays_as_it_is_and_stops_the_others(
    error: type[ClusterError],
) -> None:
    api = RefusingApi(error)
    fleet = Fleet(ONE, api)
    before = fleet.templates()
    fleet.look()
    assert fleet.templates() == before
    (failed,) = [name for name in "abc" if fleet.outdated(name) == ("True", "AdoptionFailed")]
    assert "flyball/plugin:2 is not allowed" in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, failed)
    assert names.ANNOTATION_ADOPT in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, failed)
    assert fleet.cluster.condition("Accepted", failed) == ("True", "Accepted")
    assert fleet.cluster.condition("Ready", failed) == ("True", "Serving")
    assert ConditionType.STALLED not in fleet.cluster.conditions(failed)
    others = {"a", "b", "c"} - {failed}
    assert {fleet.outdated(name) for name in others} == {("True", "AdoptionStopped")}
    counts = fleet.adoptions.counts()
    assert (counts["failed"], counts["adopting"]) == (1, 0)
    fleet.cluster.change(lambda found: found["spec"].update(replicas=3), failed)
    assert fleet.cluster.api.one(DEPLOYMENTS, failed)["spec"]["replicas"] == 3, "the spec is still followed"
    fleet.lead(NEWER)
    fleet.look()
    assert api.plugins.count(NEWER.plugin_image) == 1, "another leader tries it no more than the one before"
    assert fleet.adoptions.counts()["failed"] == 1


def test_a_refused_template_is_tried_again_with_a_new_annotation_or_as_another_one() -> None:
    for again in ("annotation", "template"):
        api = RefusingApi()
        fleet = Fleet(ONE, api)
        fleet.look()
        (failed,) = [name for name in "abc" if fleet.outdated(name) == ("True", "AdoptionFailed")]
        if again == "annotation":
            api.mended = True
            fleet.cluster.change(
                lambda found: found["metadata"].update(annotations={names.ANNOTATION_ADOPT: "1"}), failed
            )
        else:
            fleet.lead(Config(plugin_image="flyball/plugin:3", public_key="PEM"))
        fleet.look()
        assert fleet.new() == {"a", "b", "c"}
        assert not any(fleet.outdated(name) for name in "abc")
        assert fleet.adoptions.counts()["failed"] == 0


def test_one_that_the_api_server_lets_change_in_nothing_is_told_so_and_counts_as_failed() -> None:
    fleet = Fleet(ONE, RefusingApi(all_of="a"))
    before = fleet.templates()
    fleet.look()
    assert fleet.templates() == before
    assert fleet.cluster.condition("Accepted", "a") == ("False", "RefusedByServer")
    assert fleet.adoptions.counts()["failed"] == 1
    assert fleet.outdated("b") == ("True", "AdoptionStopped")


def test_one_that_a_shortage_holds_up_gives_its_turn_back_after_a_time() -> None:
    fleet = Fleet(ONE)
    fleet.cluster.held = UNSCHEDULED
    fleet.look()
    (first,) = fleet.new()
    fleet.cluster.wait(SLOT_SECONDS - 200)
    assert fleet.new() == {first}, "most shortages end before"
    fleet.cluster.wait(200)
    fleet.look()
    second = fleet.new() - {first}
    assert len(second) == 1
    counts = fleet.adoptions.counts()
    assert (counts["waiting"], counts["adopting"]) == (1, 1)
    assert fleet.cluster.condition("Progressing", first) == ("True", "Unschedulable"), "it is no failure"
    fleet.lead(NEWER)  # which reads it from the Deployment
    fleet.look()
    assert fleet.new() == {first} | second
    assert fleet.most == 1
    fleet.cluster.held = None
    fleet.look()
    assert fleet.new() == {"a", "b", "c"}


def test_who_lost_its_turn_looks_at_it_again_when_that_is_due() -> None:
    cluster = MemoryCluster()
    cluster.apply(service())
    cluster.config, cluster.held = NEWER, UNSCHEDULED
    cluster.restart(adoptions=Adoptions(ONE, lambda: [Key(NAMESPACE, "chat")]))
    cluster.settle()
    wanted = cluster.snapshot().desire.service
    assert wanted is not None
    again = decide(wanted, cluster.snapshot()).again
    assert again is not None
    assert 0 < again <= SLOT_SECONDS
    cluster.now += timedelta(seconds=again)
    assert decide(wanted, cluster.snapshot()).standing is Standing.WAITING


#: Two operators in a rolling update, of which either may lead.
OLDER, LATER = replace(CONFIG, version="0.9.1"), replace(NEWER, version="0.10.0")


def test_in_a_rolling_update_the_older_operator_undoes_no_template_of_the_newer_one() -> None:
    fleet = Fleet(ONE)
    fleet.lead(OLDER)
    fleet.look()
    fleet.lead(LATER)
    fleet.cluster.apply(service("d"))
    fleet.look()
    assert fleet.new() == {"a", "b", "c", "d"}
    before = fleet.templates()
    for config in (OLDER, LATER, OLDER):
        fleet.lead(config)
        fleet.look()
        assert fleet.templates() == before, "pods run on, of those that adopted and of the one made later"
    assert fleet.outdated("a") == fleet.outdated("d") == ("True", "MadeByNewerOperator")
    assert "operator 0.10.0 made the pods, and this one is 0.9.1" in fleet.cluster.message("TemplateOutdated", "a")
    fleet.cluster.change(lambda found: found["metadata"].update(annotations={names.ANNOTATION_ADOPT: "1"}), "d")
    fleet.look()
    assert fleet.new() == {"d"}, "who goes back for good says so"


#: Two releases of one version, of which either may have the namespace.
HERE, THERE = replace(CONFIG, version="1.0.0"), replace(NEWER, version="1.0.0")


def test_two_releases_of_one_version_with_other_settings_replace_pods_once_and_then_say_what_differs() -> None:
    fleet = Fleet(ONE)
    fleet.lead(HERE)
    fleet.cluster.apply(service("d"))
    fleet.look()
    fleet.lead(THERE)
    fleet.look()
    assert fleet.new() == {"a", "b", "c", "d"}, "as if the settings of one release had changed"
    before = fleet.templates()
    for config in (THERE, HERE, THERE, HERE):
        fleet.lead(config)
        fleet.look()
        assert fleet.templates() == before
    fleet.lead(HERE)
    fleet.look()
    assert fleet.outdated("d") == ("True", "OtherSettings")
    assert "spec.initContainers[flyball-plugin].image" in fleet.cluster.message(ConditionType.TEMPLATE_OUTDATED, "d")
    fleet.cluster.change(lambda found: found["metadata"].update(annotations={names.ANNOTATION_ADOPT: "1"}), "d")
    fleet.look()
    assert "d" in fleet.new(), "who wants this one's says so"


@pytest.mark.parametrize(
    ("ours", "theirs", "older"),
    [
        ("0.9.1", "0.10.0", True),
        ("0.10.0", "0.9.1", False),
        ("1.0.0", "1.0.0", False),
        ("1.0", "1.0.1", True),
        ("1.2.0-rc1", "1.2.0+build.7", False),
        ("", "1.0.0", False),
        ("1.0.0", "", False),
    ],
)
def test_which_operator_is_older(ours: str, theirs: str, older: bool) -> None:
    assert is_older(ours, theirs) is older


def test_a_failure_ends_with_a_new_annotation_or_a_newer_template() -> None:
    fleet, failed = failed_fleet()
    fleet.cluster.held = None
    fleet.cluster.change(lambda found: found["metadata"].update(annotations={names.ANNOTATION_ADOPT: "1"}), failed)
    fleet.look()
    assert fleet.new() == {"a", "b", "c"}
    fleet, failed = failed_fleet()
    fleet.cluster.held = None
    fleet.lead(Config(plugin_image="flyball/plugin:3", public_key="PEM"))
    fleet.look()
    assert fleet.new() == {"a", "b", "c"}
    assert fleet.cluster.condition("Ready", failed) == ("True", "Serving")


def test_a_users_mistake_after_an_adoption_is_no_failed_adoption() -> None:
    fleet = Fleet(ONE)
    fleet.look()
    fleet.cluster.change(lambda found: found["spec"]["engine"].update(image="engine:bad"), "a")
    assert fleet.cluster.condition("Progressing", "a") == ("False", "RolledBack")
    assert "change the spec" in fleet.cluster.message("Progressing", "a")
    assert fleet.adoptions.counts()["failed"] == 0


def test_a_failed_one_that_is_deleted_stops_nobody() -> None:
    fleet, failed = failed_fleet()
    fleet.cluster.held = None
    fleet.cluster.delete(failed)
    # The queue looks at a service that is gone once more.
    asyncio.run(fleet.cluster.reconciler.reconcile(Key(NAMESPACE, failed)))
    fleet.look()
    assert fleet.new() == {"a", "b", "c"} - {failed}


def stuck(container: str, message: str, config: Config = NEWER) -> RolloutDecision:
    """The decision about a service one of whose pods cannot pull the image of a container."""
    cluster = MemoryCluster()
    cluster.apply(service())
    cluster.config = config
    snapshot = cluster.snapshot()
    (pod,) = snapshot.pods
    kind = "initContainerStatuses" if container == names.CONTAINER_PLUGIN else "containerStatuses"
    waiting = {"name": container, "ready": False, "state": {"waiting": {"reason": "ErrImagePull", "message": message}}}
    wanted = snapshot.desire.service
    assert wanted is not None
    return decide(wanted, replace(snapshot, pods=({**pod, "status": {kind: [waiting]}},)))


def test_a_pod_whose_plugin_image_is_gone_gets_the_present_template() -> None:
    decision = stuck(names.CONTAINER_PLUGIN, "not found")
    assert plugin(decision.target.template) == NEWER.plugin_image
    assert decision.standing is Standing.ADOPTING
    assert decision.history.adopted_why == "plugin-missing"


@pytest.mark.parametrize(
    ("container", "message", "config"),
    [
        pytest.param(names.CONTAINER_ENGINE, "not found", NEWER, id="the engine's image is gone"),
        pytest.param(names.CONTAINER_PLUGIN, "connection refused", NEWER, id="the registry is away"),
        pytest.param(names.CONTAINER_PLUGIN, "not found", CONFIG, id="there is no other"),
        pytest.param(
            names.CONTAINER_PLUGIN,
            "pull access denied, repository does not exist or may require authorization",
            NEWER,
            id="the account may not pull it",
        ),
    ],
)
def test_it_keeps_its_template_where_another_would_not_help(container: str, message: str, config: Config) -> None:
    decision = stuck(container, message, config)
    assert plugin(decision.target.template) == CONFIG.plugin_image
    assert not decision.history.adopted
