"""Whatever a valid spec asks of the queue is a setpoint that engines accept, and chooses where the spec says so."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from flyball_engine.contract import OnTime, Setpoint
from flyball_lab.harness.manifests import Object
from flyball_operator.api.parse import parse_service
from flyball_operator.api.v1alpha1 import Order
from flyball_operator.tuning.spec import tuning_spec
from support.specs import specs


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(specs())
def test_a_valid_spec_is_a_setpoint(spec: Object) -> None:
    found = parse_service({"metadata": {"namespace": "n", "uid": "u", "name": "chat"}, "spec": spec}).spec
    asked = tuning_spec(found).queueing
    assert (asked.batching.chooses() is not None) == found.tuning.batching.chooses
    order = OnTime(first_token_deadline_seconds=1.0) if found.tuning.order is Order.ON_TIME else None
    sent = Setpoint(service="u", epoch=1, generation=1, on_time=order, batching=asked.batching, queue=asked.queue)
    assert Setpoint.model_validate_json(sent.model_dump_json()) == sent
