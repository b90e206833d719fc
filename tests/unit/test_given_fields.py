"""Which fields a model was given is a set of each model, and of status and read-backs nobody asks for it."""

from __future__ import annotations

from flyball_engine.contract import Generation, Setpoint
from flyball_lab.harness.service_tuners import Engines
from flyball_lab.harness.virtual_time import in_virtual_time, now
from flyball_operator.api.v1alpha1 import InferenceServiceStatus, ModelSource, SetpointStatus, TuningStatus
from flyball_operator.engines.client import Address
from flyball_operator.tuning.actuate.engine_handle import EngineHandle


def test_status_shares_one_set_and_a_spec_keeps_its_own() -> None:
    status = InferenceServiceStatus.model_validate({"tuning": {"generation": 3, "setpoint": {"stepBudget": "20ms"}}})
    changed = status.tuning.model_copy(update={"generation": 4})
    assert (changed.generation, status.tuning.generation) == (4, 3)
    models = (status, status.tuning, status.tuning.setpoint, changed, TuningStatus(epoch=1), SetpointStatus())
    assert len({id(model.model_fields_set) for model in models}) == 1
    assert status.model_fields_set == set(), "what one is given is told of no other"
    assert ModelSource.model_validate({"uri": "hf://a/b"}).model_fields_set == {"uri"}


@in_virtual_time
async def test_a_read_back_that_is_kept_shares_it_too() -> None:
    engines = Engines("pod-1")
    engines.held["pod-1"] = Setpoint(service="s1", epoch=1, generation=1)
    handle = EngineHandle(("c", 0))
    handle.take(await engines.read(Address(key="pod-1", tenant="ns", ip="10.0.0.1")), now())
    assert handle.read_back is not None
    (core,) = handle.read_back.cores
    models = (handle.read_back, core, core.applied, core.effective, core.start, core.ceilings, core.order)
    assert len({id(model.model_fields_set) for model in models if model is not None}) == 1
    assert handle.holds == Generation(epoch=1, generation=1)
