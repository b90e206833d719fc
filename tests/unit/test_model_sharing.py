"""A new service of a kind that is known begins with what was learnt of it, and decides nothing on that alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from flyball_lab.harness.manifests import good
from flyball_lab.harness.plant import CPU, H100
from flyball_lab.harness.service_tuners import Harness
from flyball_lab.harness.tuners import ScriptedReader
from flyball_lab.harness.tuning import signals, step_window
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.parse import parse_service
from flyball_operator.api.v1alpha1 import ConditionType, InferenceService
from flyball_operator.tuning import model_sharing
from flyball_operator.tuning.estimate.step_time import StepTimeEstimator
from flyball_operator.tuning.model_sharing import kind_of, models_of
from flyball_operator.tuning.observe.signals import Signals
from flyball_operator.tuning.ports import EnginePod
from flyball_operator.tuning.spec import tuning_spec
from flyball_operator.tuning.status_codec import model_status, resumed
from flyball_operator.tuning.tuner import Tuner
from support.cluster import Object

TUNED = ConditionType.TUNED


def model(steps: int = 1000, *, trusted: bool = True, t0: float = 0.006) -> dict[str, Any]:
    return {
        "id": "abcd1234",
        "t0": f"{t0:g}",
        "c1": "1.2e-05",
        "c2": "4e-05",
        "kappa": 256,
        "error": "0.08",
        "trusted": trusted,
        "steps": steps,
    }


def service(uid: str, known: dict[str, Any] | None = None, **changes: Any) -> InferenceService:
    raw = good(metadata__namespace="team", metadata__uid=uid, **changes)
    return parse_service(raw | {"status": {"tuning": {"model": known}} if known else {}})


def test_of_several_of_a_kind_the_one_that_saw_most_counts() -> None:
    others = [service("a", model(10, t0=0.1)), service("b", model(5000)), service("c", model(9000, trusted=False))]
    (found,) = models_of([service("new"), *others]).values()
    assert found.t0 == 0.006


@pytest.mark.parametrize(
    "other",
    [
        {"spec__model__uri": "hf://Other/Model"},
        {"spec__engine__image": "vllm/vllm-openai:v0.99.0"},
        {"spec__engine__args": ["--quantization=fp8"]},
        {"spec__engine__kvTransfer": {"role": "Consumer", "connector": "NixlConnector"}},
        {"spec__accelerator": {"resourceName": "other.com/gpu"}, "spec__parallelism": {"tensor": 8}},
    ],
)
def test_what_differs_in_what_steps_depend_on_is_of_another_kind(other: dict[str, Any]) -> None:
    found = models_of([service("a", model(), **other)])
    assert found.keys().isdisjoint({kind_of(service("new"))})
    assert len(found) == 1, "it would be lent to its own kind"


@pytest.mark.parametrize("devices", [{"tensor": 4}, {"pipeline": 2}, {"data": 2}])
def test_what_spans_other_devices_is_of_another_kind(devices: dict[str, int]) -> None:
    gpu = {"spec__accelerator": {"resourceName": "nvidia.com/gpu"}}
    found = models_of([service("a", model(), spec__parallelism=devices, **gpu)])
    assert found.keys().isdisjoint({kind_of(service("new", **gpu))})
    assert len(found) == 1, "it would be lent to its own kind"


def test_what_claims_its_devices_otherwise_is_of_another_kind() -> None:
    def claiming(uid: str, template: str, known: dict[str, Any] | None = None) -> InferenceService:
        claim = {"name": "gpu", "resourceClaimTemplateName": template}
        changes = {"resourceClaims": [claim], "resources": {"claims": [{"name": "gpu"}]}}
        return service(uid, known, spec__podTemplate=changes)

    known = models_of([claiming("a", "h100", model())])
    assert kind_of(claiming("new", "h100")) in known
    assert kind_of(claiming("new", "l4")) not in known
    assert kind_of(service("new")) not in known


def test_its_own_status_comes_first() -> None:
    own = service("a", model())
    state = resumed(own.status.tuning, tuning_spec(own.spec), H100)
    assert state.step_time.model is not None
    assert state.step_time.model.t0 == 0.006


def test_it_is_a_prior_and_nothing_that_is_trusted() -> None:
    new = service("new")
    state = resumed(new.status.tuning, tuning_spec(new.spec), CPU)
    assert state.step_time == StepTimeEstimator(prior=CPU, proven=True)
    assert state.step_time.model is None
    assert not model_status(state.step_time).trusted


def alike(slower: float = 1.0) -> Signals:
    """Steps all of one size: by themselves they make no model."""
    window = step_window(start=now() - 15, end=now(), decodes=(60,), prefills=(900,), slower=slower)
    return signals(now(), window=window)


@dataclass
class Siblings(Harness):
    """Surroundings in which another service of the same kind is tuned already."""

    others: list[InferenceService] = field(default_factory=list)

    def all(self) -> list[InferenceService]:
        return [*self.others, self.service]

    def pods(self, service_uid: str) -> Sequence[EnginePod]:
        """Those of the others are none of our concern."""
        return super().pods(service_uid) if service_uid == self.service.metadata.uid else []

    async def apply(self, resource: object, body: Object, *, subresource: str) -> Object:
        """What is said of the others neither."""
        return (
            await super().apply(resource, body, subresource=subresource)
            if body["metadata"]["name"] == self.service.metadata.name
            else body
        )


async def told(harness: Harness, seen: Signals) -> tuple[str, str]:
    """What is said of the tuning some ticks after the service came."""
    tuner = asyncio.create_task(
        Tuner(services=harness, reader=ScriptedReader(seen), dependencies=harness.dependencies()).run()
    )
    try:
        await asyncio.sleep(30)
        return harness.condition(TUNED)
    finally:
        tuner.cancel()
        await asyncio.gather(tuner, return_exceptions=True)


def tuned_sibling(harness: Harness) -> InferenceService:
    known = model_status(StepTimeEstimator(prior=CPU, proven=True)).model_copy(
        update={name: f"{getattr(CPU, name):.3g}" for name in ("t0", "h", "c1", "c2", "beta", "g")}
        | {"kappa": CPU.kappa, "error": "0.05", "trusted": True, "steps": 10_000}
    )
    here = harness.service
    tuning = here.status.tuning.model_copy(update={"model": known})
    metadata = here.metadata.model_copy(update={"uid": "s0", "name": "older"})
    return here.model_copy(update={"metadata": metadata, "status": here.status.model_copy(update={"tuning": tuning})})


@in_virtual_time
async def test_beside_a_sibling_one_window_of_steps_that_agree_is_enough() -> None:
    alone = Siblings()
    assert await told(alone, alike()) == ("False", "Learning")
    beside = Siblings()
    beside.others = [tuned_sibling(beside)]
    assert await told(beside, alike()) == ("True", "Applied")


@in_virtual_time
async def test_a_new_leader_looks_at_each_service_once_for_all_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    many, looked = Siblings(), list[str]()
    older = tuned_sibling(many)
    many.others = [
        older.model_copy(
            update={"metadata": older.metadata.model_copy(update={"uid": f"s0-{n}", "name": f"older-{n}"})}
        )
        for n in range(20)
    ]

    def kind(of: InferenceService) -> model_sharing.Kind:
        looked.append(of.metadata.uid)
        return kind_of(of)

    monkeypatch.setattr(model_sharing, "kind_of", kind)
    assert await told(many, alike()) == ("True", "Applied")
    assert max(Counter(looked).values()) <= 2, "for what is known, and for whom"


@in_virtual_time
async def test_on_devices_that_are_slower_by_far_it_begins_from_nothing() -> None:
    beside = Siblings()
    beside.others = [tuned_sibling(beside)]
    window = step_window(start=now() - 15, end=now(), decodes=(1, 30, 60), prefills=(0, 900), slower=4.0)
    seen = signals(now(), window=window)
    assert isinstance(seen, Signals)
    await told(beside, seen)
    found = beside.service.status.tuning.model
    assert found.trusted
    assert float(found.t0) > 2 * CPU.t0
