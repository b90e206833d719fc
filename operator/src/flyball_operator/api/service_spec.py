"""The spec of an InferenceService as a whole, and the rules that hold between its parts.

The parts are in `spec.py`, `model_source.py`, `adapters.py`, `workload.py`, `rollout.py`, `scaling.py`, `gateway.py`
and `pod.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Annotated, ClassVar, Final

from pydantic import Field

from flyball_engine.adapters import MOST_ADAPTERS
from flyball_engine.contract import Metric
from flyball_operator.api.adapters import Adapter
from flyball_operator.api.base import Check, Mode, Model, Overload, without_default
from flyball_operator.api.gateway import Gateway
from flyball_operator.api.kv_transfer import KVRole
from flyball_operator.api.model_source import AccessMode, ModelSource
from flyball_operator.api.pod import PodTemplate
from flyball_operator.api.quantities import DECIMAL_PATTERN, DURATION_PATTERN, parse_duration
from flyball_operator.api.rollout import DisruptionBudget, Rollout
from flyball_operator.api.rules import MapKeyed, Rule, matches
from flyball_operator.api.scaling import Scaling
from flyball_operator.api.spec import (
    DEFAULT_MAX_NUM_BATCHED_TOKENS,
    DEFAULT_MAX_NUM_SEQS,
    LARGEST_BOUND,
    Accelerator,
    Batching,
    Engine,
    Objective,
    Parallelism,
    Tuning,
)
from flyball_operator.api.workload import Workload

#: Metrics that say by when a request must have its first token, so that one that would miss it can be refused.
DEADLINES: Final = (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)

_CEILINGS: Final = {"maxNumSeqs": DEFAULT_MAX_NUM_SEQS, "maxNumBatchedTokens": DEFAULT_MAX_NUM_BATCHED_TOKENS}
_REPLACES: Final = "whoever made the pods replaces them"
_SCALES: Final = "whoever made the pods scales them"
_MAKES_NONE: Final = "Flyball makes no object for pods of others"
#: What is for pods that Flyball makes, and why it has no place beside a workload; by field, as in JSON and here.
_OF_OUR_PODS: Final = {
    ("engine", "engine_container"): "whoever made the pods says what runs in them",
    ("accelerator", "accelerator"): "whoever made the pods says what they run on",
    ("replicas", "replicas"): _SCALES,
    ("scaling", "scaling"): _SCALES,
    ("batching", "batching"): "the ceilings are those that each engine was started with",
    ("rollout", "rollout"): _REPLACES,
    ("podTemplate", "pod_template"): _REPLACES,
    ("podDisruptionBudget", "pod_disruption_budget"): _MAKES_NONE,
    ("gateway", "gateway"): _MAKES_NONE,
    ("adapters", "adapters"): "whoever made the pods says which adapters their engines load",
}


#: Spellings of the argument that says how vLLM runs its workers. All but one are refused by vLLM over nodes, or do not
#: span them.
_EXECUTOR: Final = ("--distributed-executor-backend", "--distributed_executor_backend")
_ACCEPTED_EXECUTOR: Final = f"{_EXECUTOR[0]}=mp"


#: Arguments that say what `spec.batching.speculative` says. Without it they are the user's.
_SPECULATIVE: Final = (
    *("--speculative-config", "--speculative_config", "-sc"),
    *("--spec-method", "--spec_method", "--spec-model", "--spec_model", "--spec-tokens", "--spec_tokens"),
)


#: Arguments that say what `spec.engine.kvTransfer` says, or make vLLM replace its connector; fields stand behind a dot.
_KV_TRANSFER: Final = ("--kv-transfer-config", "--kv_transfer_config", "--kv-offloading-size", "--kv_offloading_size")


def _given(item: str, flag: str) -> str:
    """CEL: whether an item of the arguments is this flag."""
    return f"{item} == '{flag}' || {item}.startsWith('{flag}=')"


def _ceiling(name: str) -> str:
    """CEL of a ceiling: a service that says none has the default."""
    return f"self.?batching.?{name}.orValue({_CEILINGS[name]})"


def _not_beside_a_workload(field: str, attribute: str, why: str) -> Check:
    message = f"may not stand beside spec.workload: {why}. Remove it"
    return Check(
        Rule(f"!has(self.workload) || !has(self.{field})", message, f".{field}"),
        lambda spec: spec.workload is None or attribute not in spec.model_fields_set,
    )


def _needs_the_plugin(field: str) -> Check:
    return Check(
        Rule(
            f"!has(self.engine) || self.engine.governed || !has(self.tuning.{field})",
            "needs spec.engine.governed true: without the plugin nothing of it reaches the engine. Remove it",
            f".tuning.{field}",
        ),
        lambda spec: spec.governed or field not in spec.tuning.model_fields_set,
    )


_IN_TURN: Final = "groups of pods are replaced one after another, and the earlier one ends first"


def _not_over_nodes(cel: str, path: str, why: str, holds: Callable[[InferenceServiceSpec], bool]) -> Check:
    """What has no place beside several nodes. `cel`: whether it is absent."""
    message = f"cannot be used where spec.parallelism.nodes is above 1: {why}"
    return Check(
        Rule(f"self.parallelism.nodes == 1 || {cel}", message, path),
        lambda spec: spec.parallelism.nodes == 1 or holds(spec),
    )


def _flags(args: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The items that are one of these flags, each with its value where it has one behind =."""
    return [one for one in args if one.partition("=")[0] in flags]


def _claim_is_shared(spec: InferenceServiceSpec) -> bool:
    claim = spec.served_model.claim_to_make if spec.served_model is not None else None
    return claim is None or AccessMode.MANY in claim.access_modes


def _within(limit: str, end: str, ceiling: str, attribute: str) -> Check:
    bound = f"self.tuning.?bounds.?{limit}.?{end}"
    message = f"must be at most spec.batching.{ceiling}"

    def holds(spec: InferenceServiceSpec) -> bool:
        value = getattr(getattr(spec.tuning.bounds, attribute), end)
        most = spec.batching.max_num_seqs if ceiling == "maxNumSeqs" else spec.batching.max_num_batched_tokens
        return value is None or value <= most or spec.workload is not None

    rule = Rule(
        f"has(self.workload) || {bound}.orValue(0) <= {_ceiling(ceiling)}",
        message,
        f".tuning.bounds.{limit}.{end}",
        f"'{message} (%d)'.format([{_ceiling(ceiling)}])",
    )
    return Check(rule, holds)


def _upper_tokens_cover_upper_seqs(spec: InferenceServiceSpec) -> bool:
    bounds, ceilings, foreign = spec.tuning.bounds, spec.batching, spec.workload is not None
    tokens = bounds.max_num_scheduled_tokens.max or (LARGEST_BOUND if foreign else ceilings.max_num_batched_tokens)
    return tokens >= (bounds.max_num_active_seqs.max or (1 if foreign else ceilings.max_num_seqs))


def _objectives_are_distinct(spec: InferenceServiceSpec) -> bool:
    keys = [(one.metric, parse_duration(one.threshold), one.class_name) for one in spec.objectives]
    return len(set(keys)) == len(keys)


def _first_tokens_come_first(spec: InferenceServiceSpec) -> bool:
    first, whole = (
        [objective for objective in spec.objectives if objective.metric is metric]
        for metric in (Metric.TIME_TO_FIRST_TOKEN, Metric.END_TO_END_LATENCY)
    )
    return not any(
        parse_duration(one.threshold) > parse_duration(other.threshold) and Decimal(one.target) <= Decimal(other.target)
        for one in first
        for other in whole
        if one.class_name == other.class_name
    )


def _classes_are_there(spec: InferenceServiceSpec) -> bool:
    return {one.class_name for one in spec.objectives} <= {None, *(one.name for one in spec.tuning.classes)}


def _accelerator_stands_once(spec: InferenceServiceSpec) -> bool:
    resources = spec.pod_template.resources
    return spec.accelerator is None or spec.accelerator.resource_name not in {*resources.requests, *resources.limits}


#: Metrics of the tokens behind the first.
_OF_TOKENS: Final = (Metric.TIME_PER_OUTPUT_TOKEN, Metric.INTER_TOKEN_LATENCY)
#: CEL of the part of engines that hand on KV caches; empty of others.
_ROLE: Final = "self.?engine.?kvTransfer.?role.orValue('')"

_THRESHOLDS_READ = "self.objectives.all(o, " + matches("o.threshold", DURATION_PATTERN) + ")"
_TARGETS_READ = "self.objectives.all(o, " + matches("o.target", DECIMAL_PATTERN) + ")"
_OF_ONE_CLASS = "has(a.class) == has(b.class) && (!has(a.class) || a.class == b.class)"
_FIRST_TOKENS_LATER = (
    f"self.objectives.exists(a, a.metric == '{Metric.TIME_TO_FIRST_TOKEN.value}' && self.objectives.exists(b,"
    f" b.metric == '{Metric.END_TO_END_LATENCY.value}' && {_OF_ONE_CLASS}"
    " && duration(a.threshold) > duration(b.threshold) && double(a.target) <= double(b.target)))"
)
_ONE_OF_EACH = (
    "self.objectives.all(a, self.objectives.exists_one(b,"
    f" a.metric == b.metric && {_OF_ONE_CLASS} && duration(a.threshold) == duration(b.threshold)))"
)


def _vllm_chooses(cel: str, where: str, why: str, applies: Callable[[InferenceServiceSpec], bool]) -> Iterator[Check]:
    """Of `spec.tuning.batching`, what chooses who is next has no place where vLLM does. `cel`: whether it does here."""
    because = f"{where}: {why}, so nothing else can choose who is next"
    batching = "self.tuning.batching"

    def absent(field: str) -> Rule:
        rule = f"!({cel}) || !has({batching}) || !has({batching}.{field})"
        return Rule(rule, f"may not stand {because}. Remove it", f".tuning.batching.{field}")

    yield Check(
        Rule(
            f"!({cel}) || !has({batching}) || !has({batching}.strategy) || {batching}.strategy.type == 'Continuous'",
            f"must be Continuous {because}",
            ".tuning.batching.strategy.type",
        ),
        lambda spec: (
            not applies(spec) or spec.tuning.batching.strategy is None or not spec.tuning.batching.strategy.batches
        ),
    )
    yield Check(
        absent("admissionDelay"), lambda spec: not applies(spec) or spec.tuning.batching.admission_delay is None
    )
    yield Check(absent("noEvict"), lambda spec: not applies(spec) or spec.tuning.batching.no_evict is None)


class InferenceServiceSpec(Model):
    """What the user wants."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "has(self.model) != has(self.workload)",
                "must have exactly one of model and workload",
            ),
            lambda spec: (spec.served_model is None) != (spec.workload is None),
        ),
        *(_not_beside_a_workload(*fields, why) for fields, why in _OF_OUR_PODS.items()),
        Check(
            Rule(
                "has(self.workload) || has(self.engine)",
                "is required beside spec.model: it names the image that serves the model",
                ".engine",
            ),
            lambda spec: spec.workload is not None or spec.engine_container is not None,
        ),
        Check(
            Rule(
                "!has(self.engine) || self.engine.governed || self.tuning.mode == 'Disabled'",
                "must be Disabled where spec.engine.governed is false: without the plugin no limit can be moved",
                ".tuning.mode",
            ),
            lambda spec: spec.governed or spec.tuning.mode is Mode.DISABLED,
        ),
        *(_needs_the_plugin(field) for field in ("batching", "queue")),
        Check(
            Rule(
                "!has(self.adapters) || !has(self.engine) || self.engine.governed",
                "needs spec.engine.governed true: without the plugin nobody loads them. Remove it",
                ".adapters",
            ),
            lambda spec: spec.adapters is None or spec.governed,
        ),
        Check(
            Rule(
                "!has(self.model) || !has(self.model.cache) || !has(self.engine) || !has(self.engine.args)"
                f" || !self.engine.args.exists(a, {_given('a', '--revision')})",
                "may not hold --revision where spec.model.cache is: write it into spec.model.cache.revision",
                ".engine.args",
            ),
            lambda spec: (
                spec.workload is not None
                or spec.model.cache is None
                or not any(one.partition("=")[0] == "--revision" for one in spec.engine.args)
            ),
        ),
        Check(
            Rule(
                "!has(self.batching) || !has(self.batching.speculative) || !has(self.engine) || !has(self.engine.args)"
                f" || !self.engine.args.exists(a, {' || '.join(_given('a', flag) for flag in _SPECULATIVE)})",
                "may not hold --speculative-config where spec.batching.speculative says it",
                ".engine.args",
            ),
            lambda spec: (
                spec.batching.speculative is None
                or spec.engine_container is None
                or not _flags(spec.engine_container.args, _SPECULATIVE)
            ),
        ),
        Check(
            Rule(
                "!has(self.model) || !(has(self.model.cache) || self.model.uri.startsWith('oci://'))"
                " || !self.?batching.?speculative.?model.hasValue() || self.batching.speculative.model.startsWith('/')",
                "must be a folder beside spec.model.cache or an oci:// model: pods download nothing there",
                ".batching.speculative.model",
            ),
            lambda spec: (
                spec.workload is not None
                or (spec.model.cache is None and spec.model.image is None)
                or spec.batching.speculative is None
                or spec.batching.speculative.model is None
                or spec.batching.speculative.model.startswith("/")
            ),
        ),
        Check(
            Rule(
                "!has(self.engine) || !has(self.engine.kvTransfer) || !has(self.engine.args)"
                f" || !self.engine.args.exists(a, {' || '.join(f'a.startsWith({flag!r})' for flag in _KV_TRANSFER)})",
                "may not hold --kv-transfer-config where spec.engine.kvTransfer says it, nor --kv-offloading-size,"
                " which replaces its connector",
                ".engine.args",
            ),
            lambda spec: spec.kv_role is None or not any(one.startswith(_KV_TRANSFER) for one in spec.engine.args),
        ),
        Check(
            Rule(
                f"!({_ROLE} == 'Producer') || !has(self.objectives)"
                f" || !self.objectives.exists(o, {' || '.join(f'o.metric == {one.value!r}' for one in _OF_TOKENS)})",
                "an objective on TimePerOutputToken or InterTokenLatency cannot be measured where"
                " spec.engine.kvTransfer.role is Producer: each ends with its first token. Accepted: TimeToFirstToken,"
                " EndToEndLatency; objectives of tokens belong to the consumers",
                ".objectives",
            ),
            lambda spec: (
                spec.kv_role is not KVRole.PRODUCER or not any(one.metric in _OF_TOKENS for one in spec.objectives)
            ),
        ),
        Check(
            Rule(
                f"!({_ROLE} == 'Producer') || !has(self.batching) || !has(self.batching.speculative)",
                "may not stand where spec.engine.kvTransfer.role is Producer: requests end there with their first"
                " token, so there is nothing to draft. Remove it",
                ".batching.speculative",
            ),
            lambda spec: spec.kv_role is not KVRole.PRODUCER or spec.batching.speculative is None,
        ),
        Check(
            Rule(
                f"self.tuning.overload != 'Shed' || !({_ROLE} in ['Consumer', 'Both'])",
                "must be Queue where spec.engine.kvTransfer.role is Consumer or Both: nobody knows how long a KV cache"
                " takes to load, so no request can be said to be late. Refuse at the producers",
                ".tuning.overload",
            ),
            lambda spec: (
                spec.tuning.overload is not Overload.SHED or spec.kv_role not in (KVRole.CONSUMER, KVRole.BOTH)
            ),
        ),
        *_vllm_chooses(
            f"{_ROLE} in ['Consumer', 'Both']",
            "where spec.engine.kvTransfer.role is Consumer or Both",
            "vLLM starts to load whatever waits, in an order of its own",
            lambda spec: spec.kv_role in (KVRole.CONSUMER, KVRole.BOTH),
        ),
        Check(
            Rule(
                f"{_ROLE} != 'Producer' || !has(self.tuning.batching) || !has(self.tuning.batching.noEvict)",
                "may not stand beside spec.engine.kvTransfer: prompts that are done keep memory until another engine"
                " has read them. Remove it",
                ".tuning.batching.noEvict",
            ),
            lambda spec: spec.kv_role is not KVRole.PRODUCER or spec.tuning.batching.no_evict is None,
        ),
        *_vllm_chooses(
            "has(self.adapters)",
            "beside spec.adapters",
            "vLLM passes over requests whose adapter has no slot",
            lambda spec: spec.adapters is not None,
        ),
        Check(
            Rule(
                "self.parallelism.nodes == 1 || self.parallelism.data > 1 || !has(self.engine)"
                f" || !has(self.engine.args) || !self.engine.args.exists(a, a != '{_ACCEPTED_EXECUTOR}'"
                f" && ({' || '.join(_given('a', flag) for flag in _EXECUTOR)}))",
                f"vLLM spans nodes by its executor mp alone; accepted: {_ACCEPTED_EXECUTOR}, as one item, or none",
                ".engine.args",
            ),
            lambda spec: (
                not spec.parallelism.core_spans_nodes
                or spec.engine_container is None
                or not set(_flags(spec.engine_container.args, _EXECUTOR)) - {_ACCEPTED_EXECUTOR}
            ),
        ),
        Check(
            Rule(
                # `has`, not `orValue`: the estimated cost of a rule goes by what the schema bounds.
                "self.tuning.overload != 'Shed' || (has(self.objectives) && self.objectives.exists(o,"
                f" {' || '.join(f'o.metric == {metric.value!r}' for metric in DEADLINES)}))",
                "Shed needs a TimeToFirstToken or EndToEndLatency objective in spec.objectives, by which requests are"
                " refused; accepted without one: Queue",
                ".tuning.overload",
            ),
            lambda spec: (
                spec.tuning.overload is not Overload.SHED
                or any(objective.metric in DEADLINES for objective in spec.objectives)
            ),
        ),
        _not_over_nodes(
            "!has(self.workload)",
            ".workload",
            "it says how pods are made, and whoever made the pods does so",
            lambda spec: spec.workload is None,
        ),
        _not_over_nodes(
            "!has(self.engine) || self.engine.governed",
            ".engine.governed",
            "the plugin's launcher tells each pod its part",
            lambda spec: spec.governed,
        ),
        _not_over_nodes(
            "!has(self.scaling)", ".scaling", "it counts pods, not groups of pods", lambda spec: spec.scaling is None
        ),
        _not_over_nodes(
            "!has(self.rollout) || !has(self.rollout.canary)",
            ".rollout.canary",
            "it holds back pods, not groups of pods",
            lambda spec: spec.rollout.canary is None,
        ),
        _not_over_nodes(
            "!has(self.rollout) || !has(self.rollout.maxSurge) || self.rollout.maxSurge == 0",
            ".rollout.maxSurge",
            _IN_TURN,
            lambda spec: not spec.rollout.max_surge,
        ),
        _not_over_nodes(
            "!has(self.rollout) || !has(self.rollout.maxUnavailable) || self.rollout.maxUnavailable > 0",
            ".rollout.maxUnavailable",
            f"{_IN_TURN}; accepted: 1 or more",
            lambda spec: spec.rollout.max_unavailable != 0,
        ),
        _not_over_nodes(
            "!has(self.model) || !has(self.model.cache) || !has(self.model.cache.claim)"
            " || 'ReadWriteMany' in self.model.cache.claim.accessModes",
            ".model.cache.claim.accessModes",
            "pods of several nodes mount the volume; accepted: ReadWriteMany",
            _claim_is_shared,
        ),
        Check(
            Rule(
                "self.parallelism.nodes == 1 || self.parallelism.data > 1 || !has(self.adapters)",
                "cannot be used where one engine core spans nodes: workers cannot read an adapter, which the leader"
                " alone gets; accepted: spec.parallelism.nodes 1, or data above 1",
                ".adapters",
            ),
            lambda spec: spec.adapters is None or not spec.parallelism.core_spans_nodes,
        ),
        _within("maxNumActiveSeqs", "min", "maxNumSeqs", "max_num_active_seqs"),
        _within("maxNumActiveSeqs", "max", "maxNumSeqs", "max_num_active_seqs"),
        _within("maxNumScheduledTokens", "min", "maxNumBatchedTokens", "max_num_scheduled_tokens"),
        _within("maxNumScheduledTokens", "max", "maxNumBatchedTokens", "max_num_scheduled_tokens"),
        Check(
            Rule(
                "self.tuning.?bounds.?maxNumScheduledTokens.?max.orValue("
                f"has(self.workload) ? {LARGEST_BOUND} : {_ceiling('maxNumBatchedTokens')})"
                " >= self.tuning.?bounds.?maxNumActiveSeqs.?max.orValue("
                f"has(self.workload) ? 1 : {_ceiling('maxNumSeqs')})",
                "must be at least the upper bound of maxNumActiveSeqs (by default spec.batching.maxNumSeqs):"
                " a step must have room for one token of each running request",
                ".tuning.bounds.maxNumScheduledTokens.max",
            ),
            _upper_tokens_cover_upper_seqs,
        ),
        Check(
            Rule(
                f"!has(self.objectives) || !{_THRESHOLDS_READ} || {_ONE_OF_EACH}",
                "two objectives of one class have the same metric and threshold: their requests could not be told"
                " apart",
                ".objectives",
            ),
            _objectives_are_distinct,
        ),
        Check(
            Rule(
                f"!has(self.objectives) || !{_THRESHOLDS_READ} || !{_TARGETS_READ} || !{_FIRST_TOKENS_LATER}",
                "a TimeToFirstToken threshold is above an EndToEndLatency threshold of the same or a higher target."
                " Lower or remove it: an answer in time has its first token in time",
                ".objectives",
            ),
            _first_tokens_come_first,
        ),
        Check(
            Rule(
                "!has(self.objectives) || self.objectives.all(o, !has(o.class) ||"
                " (has(self.tuning.classes) && self.tuning.classes.exists(c, c.name == o.class)))",
                "an objective is of a class that spec.tuning.classes does not have",
                ".objectives",
            ),
            _classes_are_there,
        ),
        Check(
            Rule(
                "has(self.workload) || has(self.accelerator)"
                " || self.parallelism.tensor * self.parallelism.pipeline == 1"
                " || (has(self.podTemplate) && has(self.podTemplate.resources)"
                " && has(self.podTemplate.resources.claims) && self.podTemplate.resources.claims.size() > 0)",
                "needs spec.accelerator, such as {resourceName: nvidia.com/gpu}: tensor and pipeline count its devices;"
                " without one, or devices by spec.podTemplate.resources.claims, both must be 1",
                ".parallelism",
            ),
            lambda spec: spec.workload is not None or spec.has_devices or spec.parallelism.devices_per_core == 1,
        ),
        Check(
            Rule(
                "!has(self.accelerator) ||"
                " !(self.accelerator.resourceName in self.?podTemplate.?resources.?requests.orValue({}))"
                " && !(self.accelerator.resourceName in self.?podTemplate.?resources.?limits.orValue({}))",
                "may not hold the accelerator: spec.accelerator and spec.parallelism say how many devices a pod has",
                ".podTemplate.resources",
            ),
            _accelerator_stands_once,
        ),
        Check(
            Rule(
                "!has(self.scaling) || !has(self.replicas)",
                "may not stand beside spec.scaling, by which the operator sets the number of pods; accepted: one of the"
                " two. Remove spec.replicas, or remove spec.scaling to scale by hand or by another autoscaler",
                ".replicas",
            ),
            lambda spec: spec.scaling is None or spec.replicas is None,
        ),
        Check(
            Rule(
                "!has(self.scaling) || !has(self.engine) || self.engine.governed",
                "needs spec.engine.governed true: without the plugin nothing is known of what a pod carries",
                ".scaling",
            ),
            lambda spec: spec.scaling is None or spec.governed,
        ),
        Check(
            Rule(
                "!has(self.scaling) || (has(self.objectives) && self.objectives.size() > 0)",
                "needs an objective in spec.objectives: pods are counted by what one carries at the objectives",
                ".scaling",
            ),
            lambda spec: spec.scaling is None or bool(spec.objectives),
        ),
        Check(
            Rule(
                "!has(self.rollout) || !has(self.rollout.canary) || !has(self.engine) || self.engine.governed",
                "needs spec.engine.governed true: without the plugin no request is counted by objective",
                ".rollout.canary",
            ),
            lambda spec: spec.rollout.canary is None or spec.governed,
        ),
        Check(
            Rule(
                "!has(self.rollout) || !has(self.rollout.canary)"
                " || (has(self.objectives) && self.objectives.size() > 0)",
                "needs an objective in spec.objectives, by which the new revision is judged",
                ".rollout.canary",
            ),
            lambda spec: spec.rollout.canary is None or bool(spec.objectives),
        ),
    )

    served_model: Annotated[ModelSource | None, Field(alias="model")] = None
    """What is served by pods that Flyball makes. One of model and workload."""
    workload: Workload | None = None
    """Pods that others make and replace, with Flyball's plugin in their vLLM. Flyball tunes them, and writes none of
    their objects. One of model and workload."""
    engine_container: Annotated[Engine | None, Field(alias="engine")] = None
    """The engine container. Required beside model."""
    accelerator: Accelerator | None = None
    """Devices the engine runs on. Default: none, the engine runs on the CPU."""
    parallelism: Parallelism = Parallelism()
    """Devices one replica spans. Without `spec.accelerator` it is one: the CPU. Beside a workload it says how the
    engines were started."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Pods, or groups of pods where `parallelism.nodes` is above 1. Default: as many as there are, else 1. Leave it out
    where an autoscaler sets it (scale subresource), and where `spec.scaling` stands."""
    scaling: Scaling | None = None
    """Lets the operator set the number of pods, by what one carries at the objectives. Limits are tuned first; pods are
    added for what no limits carry. Needs objectives, and tuning mode Auto. Default: none, the operator does not
    scale."""
    objectives: Annotated[tuple[Objective, ...], Field(max_length=8), MapKeyed("name")] = ()
    """Latency objectives that tuning keeps; a change rolls no pod. Default: none, throughput alone is sought."""
    batching: Annotated[Batching, Field(json_schema_extra=without_default)] = Batching()
    """Ceilings of the batch, set at start. Default: vLLM's own."""
    tuning: Tuning = Tuning()
    """Whether and within what the batch limits are tuned."""
    rollout: Annotated[Rollout, Field(json_schema_extra=without_default)] = Rollout()
    """How pods are replaced."""
    pod_template: Annotated[PodTemplate, Field(json_schema_extra=without_default)] = PodTemplate()
    """What is added to the pods, but no privilege. Whoever may write it can read all Secrets of the namespace, by
    volumes and variables, as whoever may create pods can. Default: nothing."""
    pod_disruption_budget: Annotated[DisruptionBudget, Field(json_schema_extra=without_default)] = DisruptionBudget()
    """How many pods a drain of nodes may take at once. Default: one."""
    adapters: Annotated[tuple[Adapter, ...], Field(max_length=MOST_ADAPTERS), MapKeyed("name")] | None = None
    """LoRA adapters that pods answer beside the model, each by its name. A change of the list reaches running pods in
    about a minute. The first list, be it empty, and its removal replace pods: vLLM is started for adapters. Default:
    none."""
    gateway: Gateway | None = None
    """Gateways that route `/v1` to the service, by an HTTPRoute. The cluster must have the Gateway API. Default: none,
    the Service alone."""

    @property
    def model(self) -> ModelSource:
        """What is served by pods that Flyball makes; raises `LookupError` of pods of others."""
        if self.served_model is None:
            raise LookupError("spec.workload: Flyball does not know the model of pods of others")
        return self.served_model

    @property
    def engine(self) -> Engine:
        """The engine container of pods that Flyball makes; raises `LookupError` of pods of others."""
        if self.engine_container is None:
            raise LookupError("spec.workload: Flyball does not make the container of pods of others")
        return self.engine_container

    @property
    def kv_role(self) -> KVRole | None:
        """What the engines do with the KV cache of prompts; None where each serves requests whole."""
        transfer = self.engine_container.kv_transfer if self.engine_container is not None else None
        return transfer.role if transfer is not None else None

    @property
    def governed(self) -> bool:
        """Whether the engines have the plugin, or are to have it."""
        return self.engine_container is None or self.engine_container.governed

    @property
    def has_devices(self) -> bool:
        """Whether an engine has devices of its own, by an extended resource or by claims."""
        return self.accelerator is not None or bool(self.pod_template.resources.claims)
