"""Services whose engines take the same time for the same step: what one has learnt is where another begins. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flyball_engine.model import StepModel
from flyball_operator.api.v1alpha1 import InferenceService
from flyball_operator.tuning.status_codec import step_model_of

#: Model, image, arguments and part of the engine, resource of the accelerator or claims, and the parallelism: devices
#: that share a layer, stages, engine cores of a replica, nodes.
Kind = tuple[str, str, tuple[str, ...], str, str, int, int, int, int]


def kind_of(service: InferenceService) -> Kind:
    """What the time of a step depends on, as far as a spec says. Devices of one resource may differ all the same."""
    spec = service.spec
    parallel = spec.parallelism
    spans = parallel.tensor, parallel.pipeline, parallel.data, parallel.nodes
    if spec.workload is not None:
        # What they run on, and with which arguments, nobody says.
        return service.metadata.uid, "", (), "", "", *spans
    accelerator = spec.accelerator.resource_name if spec.accelerator is not None else ""
    accelerator += "".join(_claims_of(service))
    # What an engine learns that processes prompts alone says nothing of decodes, and the other way round.
    role = "" if spec.kv_role is None else spec.kv_role.value
    return spec.model.uri, spec.engine.image, tuple(spec.engine.args), role, accelerator, *spans


def _claims_of(service: InferenceService) -> Iterator[str]:
    """What the engine's claims are made from; an object of that name elsewhere may be of other devices."""
    pod = service.spec.pod_template
    used = {claim.name for claim in pod.resources.claims}
    for claim in pod.resource_claims:
        if claim.name in used:
            source = claim.resource_claim_name or claim.resource_claim_template_name
            yield f" {service.metadata.namespace}/{source}"


def models_of(services: Iterable[InferenceService]) -> dict[Kind, StepModel]:
    """The trusted model of each kind, of several services that of the most steps. Made once for all that look."""
    found: dict[Kind, tuple[int, StepModel]] = {}
    for service in services:
        known = service.status.tuning.model
        model = step_model_of(known)
        if model is None:
            continue
        kind = kind_of(service)
        if kind not in found or known.steps > found[kind][0]:
            found[kind] = known.steps, model
    return {kind: model for kind, (_, model) in found.items()}
