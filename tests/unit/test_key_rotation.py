"""The operator keeps the signing key itself: it is made, brought to engines and rotated, whoever leads and dies."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from flyball_engine.signing import make_key
from flyball_operator.api import names
from flyball_operator.keys.public_keys import NOT_WRITTEN, RECHECK_SECONDS
from flyball_operator.keys.rotation import LOOK_SECONDS, ROUND_SECONDS
from flyball_operator.keys.state import LONGEST_WAIT
from flyball_operator.keys.trial import LEAST_SECONDS
from flyball_operator.kube.errors import ConflictError, UnavailableError
from flyball_operator.kube.resources import CONFIG_MAPS, SECRETS
from support.key_world import HOME, PERIOD, SECRET, SYNC_SECONDS, Engine, KeyWorld, public
from support.memory_api import CrashingApi, MemoryApi

#: Longer than a rotation whose engines all accept the next key.
A_WHILE = LEAST_SECONDS + SYNC_SECONDS + 60.0


async def settled(**options: object) -> KeyWorld:
    """A world whose first key all engines know."""
    world = KeyWorld(**options)  # type: ignore[arg-type]
    await world.pass_time(2 * SYNC_SECONDS + 30)
    assert all(engine.file for engine in world.engines)
    return world


async def rotate(world: KeyWorld) -> None:
    """Let a rotation begin and end."""
    world.skip(PERIOD.total_seconds())
    await world.pass_time(A_WHILE)


async def test_an_empty_secret_is_filled_and_every_namespace_gets_the_public_half() -> None:
    world = KeyWorld()
    await world.look()
    key = world.data()["current"]
    assert world.data() == {"current": key, "current-since": "2026-01-01T00:00:00Z"}
    assert [signer.public_pem for signer in world.rotation.signers()] == [public(key)]
    for namespace in world.namespaces:
        assert world.published(namespace) == public(key)
    world.skip(60)
    assert world.rotation.age() == 60
    await world.pass_time(600)
    assert world.data()["current"] == key


async def test_the_key_of_an_earlier_chart_is_taken_over() -> None:
    world, key = KeyWorld(), make_key()
    world.fill({"signing-key.pem": key})
    for engine in world.engines:
        engine.key = public(key)
    await world.look()
    assert world.data() == {"current": key, "current-since": "2026-01-01T00:00:00Z"}
    await world.pass_time(A_WHILE)
    assert world.refused == []
    # Helm, which still holds it to be its own, may bring it back: it counts no more.
    world.fill(world.data() | {"signing-key.pem": make_key()})
    await world.pass_time(LOOK_SECONDS + ROUND_SECONDS)
    assert world.data()["current"] == key
    assert "signing-key.pem" not in world.data()


async def test_a_key_of_its_age_is_replaced_and_no_setpoint_is_refused() -> None:
    world = await settled()
    first = world.data()["current"]
    world.skip(PERIOD.total_seconds())
    await world.look()
    following = world.data()["next"]
    assert world.data()["current"] == first
    for namespace in world.namespaces:
        assert world.published(namespace) == public(first) + public(following)
    await world.pass_time(LEAST_SECONDS - 10)
    assert world.data()["current"] == first, "pods that start now may have one key alone"
    await world.pass_time(A_WHILE)
    assert world.data() == {"current": following, "current-since": world.data()["current-since"]}
    for namespace in world.namespaces:
        assert world.published(namespace) == public(following), "the first is revoked"
    assert world.rotation.signers()[0].public_pem == public(following)
    assert world.refused == []
    assert world.rotation.age() < PERIOD.total_seconds()


async def test_a_period_of_zero_rotates_never() -> None:
    world = await settled(period=timedelta(0))
    first = world.data()
    world.skip(10 * PERIOD.total_seconds())
    await world.pass_time(A_WHILE)
    assert world.data() == first


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_leader_that_dies_at_any_write_is_followed_by_one_that_goes_on(after: bool) -> None:
    undisturbed = await settled()
    await rotate(undisturbed)
    for at in range(1, undisturbed.api.writes + 1):
        world = await settled(api=CrashingApi(at, after=after))
        first = world.data()["current"]
        await rotate(world)
        # Another leader publishes both keys for as long again.
        await world.pass_time(A_WHILE)
        assert world.data()["current"] != first, f"write {at}"
        assert "next" not in world.data(), f"write {at}"
        for namespace in world.namespaces:
            assert world.published(namespace) == public(world.data()["current"]), f"write {at}"
        assert world.refused == [], f"write {at}"


async def test_a_new_leader_that_knows_no_pods_yet_signs_with_the_next_key_no_sooner() -> None:
    world = await settled()
    world.skip(PERIOD.total_seconds())
    await world.look()
    first, engines = world.data()["current"], world.engines
    world.engines = []
    world.start()
    await world.pass_time(LEAST_SECONDS - 10)
    assert world.data()["current"] == first
    world.engines = engines


async def test_an_engine_that_does_not_accept_it_holds_up_a_rotation_for_a_bounded_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = await settled()
    first = world.data()["current"]
    stuck, silent = world.engines
    stuck.frozen, silent.silent = True, True
    await rotate(world)
    assert world.data()["current"] == first
    await world.pass_time(LONGEST_WAIT.total_seconds())
    assert world.data()["current"] != first
    (said,) = (record.message for record in caplog.records if "did not accept" in record.message)
    assert "2 engines" in said
    assert "team-a, 10.0.0.1: it refuses the key" in said
    assert "team-b, no connection" in said
    # This process has the first key still, so even the stuck one is told.
    assert world.refused == []


async def with_an_earlier_template() -> tuple[KeyWorld, str]:
    """A world with a pod that knows for good the key which an earlier chart made."""
    world, key = KeyWorld(), make_key()
    world.fill({"signing-key.pem": key})
    world.engines.append(Engine("team-a", "old-0", mounted=False, key=public(key)))
    await world.pass_time(A_WHILE)
    return world, key


async def test_pods_of_a_template_without_the_file_hold_up_no_rotation_and_their_key_is_kept_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, key = await with_an_earlier_template()
    for _ in range(2):
        await rotate(world)
        assert world.data()["current"] != key
        assert "next" not in world.data(), "who knows no other key is not asked"
        assert world.data()["kept"] == key
        assert public(key) not in world.published("team-a")
    world.start()  # another leader
    await world.pass_time(A_WHILE)
    assert world.refused == []
    said = [record.message for record in caplog.records if "is kept" in record.message]
    assert len(said) == 2, "once by each leader"
    assert "team-a/old-0" in said[0]
    del world.engines[-1]
    await world.pass_time(LOOK_SECONDS + ROUND_SECONDS)
    assert "kept" not in world.data(), "the template was replaced"
    assert public(key) not in {signer.public_pem for signer in world.rotation.signers()}
    assert world.refused == []


async def test_a_new_leader_that_knows_no_pods_yet_keeps_the_key_for_them() -> None:
    world, key = await with_an_earlier_template()
    await rotate(world)
    engines, world.engines = world.engines, []
    world.start()
    await world.pass_time(LEAST_SECONDS - 10)
    assert world.data()["kept"] == key
    world.engines = engines
    await world.pass_time(A_WHILE)
    assert world.data()["kept"] == key
    assert world.refused == []


async def test_a_key_that_is_stolen_is_replaced_whatever_pods_know_it_alone() -> None:
    world, key = await with_an_earlier_template()
    world.fill({})
    await world.pass_time(LOOK_SECONDS + ROUND_SECONDS)
    assert world.data()["current"] != key
    assert "kept" not in world.data()


async def test_a_rotation_that_has_begun_is_ended_whatever_pods_come() -> None:
    world = await settled()
    first = world.data()["current"]
    world.skip(PERIOD.total_seconds())
    await world.look()
    world.engines.append(Engine("team-a", "old-0", mounted=False, key=public(first)))
    await world.pass_time(LONGEST_WAIT.total_seconds() + ROUND_SECONDS)
    assert world.data()["current"] != first
    assert world.refused == []


async def test_a_pod_that_is_not_ready_holds_up_nothing() -> None:
    world = await settled()
    first = world.data()["current"]
    world.engines[0].ready, world.engines[0].silent = False, True
    await rotate(world)
    assert world.data()["current"] != first


async def test_a_secret_that_is_emptied_has_a_new_key_in_half_a_minute_and_the_first_is_revoked() -> None:
    world = await settled()
    first = world.data()["current"]
    world.fill({})
    await world.pass_time(LOOK_SECONDS + ROUND_SECONDS)
    key = world.data()["current"]
    assert key != first
    for namespace in world.namespaces:
        assert world.published(namespace) == public(key)
    await world.pass_time(A_WHILE)
    assert all(engine.file == public(key) for engine in world.engines)
    assert world.refused == [], "engines that the kubelet has not told yet are told by the first"


async def test_a_namespace_without_rights_fails_alone_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = KeyWorld()
    world.way.forbidden = {"team-a"}
    await world.pass_time(A_WHILE)
    assert world.published("team-a") == ""
    assert world.published("team-b") == public(world.data()["current"])
    assert world.public.problems() == 1
    ((reason, message),) = world.events("team-a")
    assert reason == NOT_WRITTEN
    assert "ConfigMap flyball-public-keys in namespace team-a could not be written" in message
    assert world.events("team-b") == []
    assert len([record for record in caplog.records if "could not be written" in record.message]) == 1, "once"
    await rotate(world)
    await world.pass_time(LONGEST_WAIT.total_seconds())
    assert world.published("team-b") == public(world.data()["current"])
    world.way.forbidden = set()
    await world.pass_time(60)
    assert world.published("team-a") == world.published("team-b")
    assert world.public.problems() == 0


async def test_a_key_that_no_engine_would_hear_of_is_not_made() -> None:
    world = KeyWorld()
    world.way.forbidden = {"team-a", "team-b"}
    await world.pass_time(A_WHILE)
    first = world.data()["current"]
    await rotate(world)
    assert "next" not in world.data()
    assert world.data()["current"] == first
    world.way.forbidden = {"team-a"}
    await world.pass_time(60)
    assert "next" in world.data(), "one tenant keeps nobody from it"


def make_foreign(world: KeyWorld) -> None:
    """Every ConfigMap is one that an earlier chart made."""
    for namespace in world.namespaces:
        metadata = {"name": names.PUBLIC_KEYS, "namespace": namespace, "labels": {names.LABEL_MANAGED_BY: "Helm"}}
        world.api.put(CONFIG_MAPS, {"metadata": metadata, "data": {names.PUBLIC_KEYS_KEY: world.published(namespace)}})


@pytest.mark.parametrize("holds", [True, False], ids=["with leases", "before its leases"])
@pytest.mark.parametrize("taken", [make_foreign, lambda world: world.way.forbidden.update(world.namespaces)])
async def test_a_new_leader_makes_no_key_that_no_engine_would_hear_of(
    taken: Callable[[KeyWorld], None], holds: bool
) -> None:
    world = await settled()
    taken(world)
    before = world.data()
    world.skip(PERIOD.total_seconds())
    world.start()
    world.holds = holds
    await world.look()
    world.holds = True
    await world.pass_time(A_WHILE + LONGEST_WAIT.total_seconds())
    assert world.data() == before
    assert world.refused == []


async def test_a_next_key_that_no_engine_hears_of_any_more_is_not_signed_with() -> None:
    world = await settled()
    world.skip(PERIOD.total_seconds())
    await world.look()
    before = world.data()
    assert "next" in before
    make_foreign(world)
    world.start()
    await world.pass_time(A_WHILE + LONGEST_WAIT.total_seconds())
    assert world.data() == before
    for namespace in world.namespaces:
        world.api.remove(CONFIG_MAPS, names.PUBLIC_KEYS, namespace=namespace)
    await world.pass_time(A_WHILE)
    assert world.data()["current"] == before["next"]
    assert world.refused == []


async def test_a_standby_that_takes_over_waits_for_its_leases_too() -> None:
    world = await settled()
    make_foreign(world)
    before = world.data()
    world.leads = world.holds = False
    world.start()
    await world.pass_time(A_WHILE)
    world.skip(PERIOD.total_seconds())
    world.leads = True
    await world.look()
    world.holds = True
    await world.pass_time(A_WHILE)
    assert world.data() == before


async def test_the_key_of_a_leader_without_services_is_replaced_too() -> None:
    world = KeyWorld(namespaces=())
    await world.look()
    first = world.data()["current"]
    await rotate(world)
    await world.pass_time(A_WHILE)
    assert world.data()["current"] != first
    assert "next" not in world.data()


@pytest.mark.parametrize("labels", [{}, {names.LABEL_MANAGED_BY: "Helm"}])
async def test_a_foreign_config_map_is_left_alone_and_named(labels: dict[str, str]) -> None:
    world = KeyWorld()
    metadata = {"name": names.PUBLIC_KEYS, "namespace": "team-a", "labels": labels}
    world.api.put(CONFIG_MAPS, {"metadata": metadata, "data": {names.PUBLIC_KEYS_KEY: "theirs"}})
    await world.rotation.look(world)
    assert world.published("team-a") == "theirs"
    ((reason, message),) = world.events("team-a")
    assert reason == NOT_WRITTEN
    assert "so it is left alone" in message
    world.api.remove(CONFIG_MAPS, names.PUBLIC_KEYS, namespace="team-a")
    await world.pass_time(60)
    assert world.published("team-a") == world.published("team-b")


async def test_what_others_do_to_a_config_map_is_undone() -> None:
    world = await settled()
    right = world.published("team-a")

    def spoil(found: dict[str, object]) -> None:
        found["data"] = {names.PUBLIC_KEYS_KEY: "theirs"}

    world.api.edit(CONFIG_MAPS, names.PUBLIC_KEYS, spoil, namespace="team-a")
    world.api.remove(CONFIG_MAPS, names.PUBLIC_KEYS, namespace="team-b")
    world.skip(RECHECK_SECONDS)
    await world.rotation.look(world)
    assert world.published("team-a") == world.published("team-b") == right


async def test_settled_keys_write_nothing() -> None:
    world = await settled()
    before = world.api.writes
    await world.pass_time(3 * RECHECK_SECONDS)
    assert world.api.writes == before


async def test_the_secret_is_read_seldom_while_nothing_is_due_and_each_round_while_it_is() -> None:
    world = await settled()
    rounds = int(PERIOD.total_seconds() / 1000 / ROUND_SECONDS)
    world.way.secret_reads = 0
    await world.pass_time(rounds * ROUND_SECONDS)
    assert 0 < world.way.secret_reads <= rounds * ROUND_SECONDS / LOOK_SECONDS + 1
    world.skip(PERIOD.total_seconds())
    world.way.secret_reads = 0
    await world.pass_time(LEAST_SECONDS)
    assert world.way.secret_reads == LEAST_SECONDS / ROUND_SECONDS, "a rotation is under way"


async def test_a_namespace_has_the_keys_before_its_pods_start() -> None:
    world = KeyWorld(namespaces=())
    await world.look()
    world.namespaces = ("team-c",)
    await world.rotation.enter("team-c")
    assert world.published("team-c") == public(world.data()["current"])


async def test_while_the_api_server_does_not_answer_the_keys_sign_on(caplog: pytest.LogCaptureFixture) -> None:
    world = await settled()
    before = world.rotation.signers()
    world.way.error = UnavailableError("no answer")
    world.skip(PERIOD.total_seconds())
    await world.pass_time(60)
    assert world.rotation.signers() == before
    assert not [record for record in caplog.records if record.levelno == logging.ERROR], (
        "nothing is wrong with the Secret"
    )
    (said,) = [record.getMessage() for record in caplog.records if "cannot be read now" in record.getMessage()]
    assert "the known key signs on" in said
    world.way.error = None
    await world.pass_time(A_WHILE)
    assert world.published("team-a") == public(world.data()["current"])
    assert world.rotation.signers()[0].public_pem != before[0].public_pem


async def test_another_that_wrote_in_between_is_not_overwritten() -> None:
    class Raced(MemoryApi):
        async def json_patch(self, *call: object) -> dict[str, object]:
            raise ConflictError("another resourceVersion")

    world = KeyWorld(api=Raced())
    await world.rotation.look(world)
    assert world.rotation.signers() == ()
    assert world.published("team-a") == ""


@pytest.mark.parametrize("name", ["current", "next", "kept"])
@pytest.mark.parametrize("text", ["no key", public(make_key())])
async def test_a_key_that_cannot_be_read_is_named_and_left_to_people(
    name: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = await settled()
    before, spoilt = world.rotation.signers(), world.data() | {name: text}
    world.fill(spoilt)
    await world.pass_time(60)
    assert world.data() == spoilt
    assert world.rotation.signers() == before
    (said,) = (record.message for record in caplog.records if record.levelno == logging.ERROR)
    assert f"Secret {HOME}/{SECRET} cannot be used for signing: {name}: " in said
    assert text not in said


async def test_a_secret_that_is_missing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    world = KeyWorld()
    world.api.remove(SECRETS, SECRET, namespace=HOME)
    await world.look()
    assert "it is missing; helm upgrade makes it" in caplog.text


async def test_a_process_that_does_not_lead_reads_and_writes_nothing() -> None:
    world = await settled()
    world.skip(PERIOD.total_seconds())
    before = world.api.writes
    world.leads = False
    world.start()
    await world.look()
    assert world.api.writes == before
    assert [signer.public_pem for signer in world.rotation.signers()] == [public(world.data()["current"])]


async def test_a_time_that_is_none_or_yet_to_come_counts_as_now() -> None:
    for wrong in ("soon", "2999-01-01T00:00:00Z"):
        world = await settled()
        world.fill(world.data() | {"current-since": wrong})
        await world.look()
        assert world.rotation.age() == 0
        first = world.data()["current"]
        await rotate(world)
        assert world.data()["current"] != first
