"""What a user states about engine, objectives, batching and tuning.

The model is in `model_source.py`, rollouts in `rollout.py`, pods in `pod.py`. Every check stands in the CRD and here,
in the same words. Pure.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from flyball_engine.contract import (
    CLASS_HEADER,
    DEFAULT_CLASS_LABEL,
    LARGEST_PRIORITY,
    LEAST_PRIORITY,
    MOST_CLASSES,
    MOST_KEPT,
    Metric,
)
from flyball_operator.api.base import Check, Mode, Model, Order, Overload, without_default
from flyball_operator.api.containers import EngineEnvVar, Image, ImagePullPolicy
from flyball_operator.api.kv_transfer import KVTransfer
from flyball_operator.api.owned import NotOwned
from flyball_operator.api.quantities import DurationBetween, PercentageBelow100, parse_duration
from flyball_operator.api.rules import (
    LABEL,
    QUALIFIED,
    SUBDOMAIN,
    MapKeyed,
    Matches,
    ObjectName,
    Refuses,
    Rule,
)
from flyball_operator.api.speculative import Speculative
from flyball_operator.api.strategies import LARGEST_BATCH, LiveBatching, LiveQueue, chooses

#: vLLM's start-up sizes when `spec.batching` names none: vLLM's own defaults for most devices (arg_utils.py).
DEFAULT_MAX_NUM_SEQS: Final = 256
DEFAULT_MAX_NUM_BATCHED_TOKENS: Final = 8192
#: The largest bound of a limit.
LARGEST_BOUND: Final = 1_048_576
#: Smallest limits the law may set where `spec.tuning.bounds` names none.
DEFAULT_MIN_NUM_ACTIVE_SEQS: Final = 4
DEFAULT_MIN_NUM_SCHEDULED_TOKENS: Final = 128


class TLS(Model):
    """The certificate of the OpenAI port."""

    secret_name: ObjectName
    """Secret of the service's namespace with the keys `tls.crt` and `tls.key`, such as cert-manager makes. A renewed
    certificate is served without a restart."""


class Engine(Model):
    """The engine container."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.args) || self.args.size() == 0 || self.args[0].startsWith('-')",
                "must begin with a flag such as --max-model-len=16384: the model is set by spec.model.uri",
                ".args",
            ),
            lambda engine: not engine.args or engine.args[0].startswith("-"),
        ),
    )

    image: Image
    """Image with vLLM in it, such as `vllm/vllm-openai:v0.32.0`; stock images run unchanged."""
    image_pull_policy: ImagePullPolicy | None = None
    """When the kubelet pulls the image. Default: Always for the tag `latest`, else IfNotPresent."""
    governed: bool = True
    """Whether Flyball's plugin is added, so that limits can be moved and requests counted. `false` runs plain vLLM."""
    args: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=1024), NotOwned()], ...],
        Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
    ] = ()
    """vLLM arguments that Flyball does not own, such as `--max-model-len=16384`. Default: none."""
    env: Annotated[tuple[EngineEnvVar, ...], Field(max_length=64), MapKeyed("name")] = ()
    """Environment variables of the engine container. Set `VLLM_API_KEY` from a Secret, and clients need that key.
    Default: none."""
    tls: TLS | None = None
    """TLS on the OpenAI port 8000, for clients and probes. Default: none, the port speaks HTTP."""
    kv_transfer: KVTransfer | None = None
    """Prefill/decode disaggregation: engines that hand on the KV cache of prompts, or load it. An edit rolls the pods.
    Default: none, each engine serves requests whole."""


class Accelerator(Model):
    """Extended resource that one device is requested by."""

    resource_name: Annotated[
        str,
        Field(min_length=1, max_length=253),
        Matches(
            rf"{SUBDOMAIN}/{QUALIFIED}",
            "must be an extended resource such as nvidia.com/gpu: a domain, '/', and a name of at most 63 characters",
        ),
        Refuses(
            r".*kubernetes\.io/.*",
            "may not be under kubernetes.io, which is reserved for Kubernetes' own resources; accepted: the vendor's,"
            " such as nvidia.com/gpu or amd.com/gpu",
        ),
    ]
    """Name of the resource, such as `nvidia.com/gpu`; a pod requests one per device it spans."""


class Parallelism(Model):
    """Devices one replica spans: `tensor` times `pipeline` for each of its `data` engine cores."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "(self.data == 1 ? self.tensor * self.pipeline : self.data) % self.nodes == 0",
                "must divide data; where data is 1, must divide tensor * pipeline",
                ".nodes",
            ),
            lambda it: (it.devices_per_core if it.data == 1 else it.data) % it.nodes == 0,
        ),
    )

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices that share each layer (vLLM's tensor parallel size). Default: 1, no sharing."""
    pipeline: Annotated[int, Field(ge=1, le=64)] = 1
    """Stages that the layers are split into (vLLM's pipeline parallel size). Default: 1, no pipeline."""
    data: Annotated[int, Field(ge=1, le=64)] = 1
    """Engine cores of a replica, among which vLLM spreads the requests (its data parallel size). Each has the whole
    model but for experts, and limits of its own. Default: 1."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods that one replica consists of, for as many nodes. Each runs an equal part of `data` and serves requests.
    Where `data` is 1, the engine core spans the nodes: each pod has an equal part of its `tensor` times `pipeline`
    devices, and the first serves. A replica is then a group of a LeaderWorkerSet, which the cluster must have, and is
    replaced whole. Default: 1."""

    @property
    def devices_per_core(self) -> int:
        """Devices that one engine core spans."""
        return self.tensor * self.pipeline

    @property
    def core_spans_nodes(self) -> bool:
        """Whether the pods of a group are parts of one engine core. Only the first of them then serves."""
        return self.nodes > 1 and self.data == 1

    @property
    def serving_pods(self) -> int:
        """Pods of a replica that serve requests."""
        return 1 if self.core_spans_nodes else self.nodes

    @property
    def cores_per_pod(self) -> int:
        """Engine cores of one pod that serves."""
        return self.data // self.serving_pods

    @property
    def devices(self) -> int:
        """Devices of one pod."""
        return self.devices_per_core * self.data // self.nodes


class Objective(Model):
    """A latency objective: `target` percent of requests (or gaps, for InterTokenLatency) meet `threshold`."""

    name: Annotated[str, Field(min_length=1, max_length=63), Matches(LABEL, "must be a DNS label: a-z, 0-9 and '-'")]
    """Name of the objective, unique in the list; status and events refer to it."""
    metric: Metric
    """What is measured per HTTP request: TimeToFirstToken, TimePerOutputToken, InterTokenLatency, EndToEndLatency."""
    threshold: Annotated[str, Field(max_length=20), DurationBetween("100us", "24h")]
    """Longest time that meets the objective, such as 500ms or 1.5s; 100us to 24h."""
    class_name: Annotated[Annotated[str, Field(min_length=1, max_length=63)] | None, Field(alias="class")] = None
    """Class of requests, from spec.tuning.classes, that this objective is about. Default: requests that name no class,
    or one that is not listed. A class without objectives is batch work. It has no deadline, is served after the others,
    and is never refused."""
    target: Annotated[str, Field(max_length=20), PercentageBelow100()] = "99"
    """Percentage of requests that shall meet the threshold, at least 1 and below 100, as a string with at most
    six decimals: "99" for 99 %. Default: 99."""

    @property
    def threshold_seconds(self) -> float:
        """The threshold in seconds."""
        return float(parse_duration(self.threshold))

    @property
    def allowed_violations(self) -> float:
        """Share of requests that may violate the threshold, 0…1."""
        return float((Decimal(100) - Decimal(self.target)) / Decimal(100))


class Batching(Model):
    """Ceilings, paid for at start: live limits move below them. Changing one rolls the pods."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "self.maxNumBatchedTokens >= self.maxNumSeqs",
                "must be at least maxNumSeqs: a step must have room for one token of each running request",
                ".maxNumBatchedTokens",
                "'must be at least maxNumSeqs (%d): a step must have room for one token of each running request'"
                ".format([self.maxNumSeqs])",
            ),
            lambda batching: batching.max_num_batched_tokens >= batching.max_num_seqs,
        ),
        Check(
            Rule(
                "!has(self.speculative) || self.maxNumBatchedTokens >="
                " self.maxNumSeqs * (1 + self.speculative.numSpeculativeTokens)",
                "must be at least maxNumSeqs times (1 + speculative.numSpeculativeTokens): a step must have room for"
                " one token of each running request and its drafts",
                ".maxNumBatchedTokens",
            ),
            lambda batching: batching.max_num_batched_tokens >= batching.max_num_seqs * batching.tokens_per_decode,
        ),
        Check(
            Rule(
                "!has(self.speculative) || self.maxNumSeqs > self.speculative.numSpeculativeTokens",
                "must be greater than speculative.numSpeculativeTokens: the engine is started with one batch size for"
                " each number of drafts that may be chosen live",
                ".maxNumSeqs",
            ),
            lambda batching: batching.max_num_seqs >= batching.tokens_per_decode,
        ),
    )

    max_num_seqs: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] = DEFAULT_MAX_NUM_SEQS
    """Most requests that may ever run at once (vLLM's --max-num-seqs). Default: 256, vLLM's own."""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = DEFAULT_MAX_NUM_BATCHED_TOKENS
    """Most tokens that one step may ever process (vLLM's --max-num-batched-tokens). Default: 8192, vLLM's own."""
    prefix_caching: bool | None = None
    """Whether prompts that begin alike share their KV cache. Default: vLLM's own: true, but for models that cannot."""
    speculative: Speculative | None = None
    """Speculative decoding. Default: none."""

    @property
    def tokens_per_decode(self) -> int:
        """Tokens that a step processes for a running request at most."""
        return 1 + (self.speculative.num_speculative_tokens if self.speculative is not None else 0)


class Range(Model):
    """Inclusive bounds of one limit; `min` equal to `max` pins it."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.min) || !has(self.max) || self.min <= self.max",
                "must be at most max",
                ".min",
                "'must be at most max (%d)'.format([self.max])",
            ),
            lambda bounds: bounds.min is None or bounds.max is None or bounds.min <= bounds.max,
        ),
    )

    min: Annotated[int, Field(ge=1, le=LARGEST_BOUND)] | None = None
    """Smallest value tuning may set. Default: the law's own smallest value."""
    max: Annotated[int, Field(ge=1, le=LARGEST_BOUND)] | None = None
    """Largest value tuning may set, and the value in mode Disabled. Default: the ceiling in
    spec.batching; of a workload, that of the engine with the largest."""


class Bounds(Model):
    """What tuning may use; absent ends are the law's smallest values and the ceilings."""

    max_num_active_seqs: Range = Range()
    """Requests that may run at once."""
    max_num_scheduled_tokens: Range = Range()
    """Tokens that one step may process."""


class RequestClass(Model):
    """A class of requests, with objectives of its own. A request names it by the header `classHeader` or a priority."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                "!has(self.priority) || self.priority != 0",
                "must not be 0, the priority of requests that name none: these are of no class",
                ".priority",
            ),
            lambda one: one.priority != 0,
        ),
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=63),
        Matches(LABEL, "must be a DNS label: a-z, 0-9 and '-'"),
        Refuses(DEFAULT_CLASS_LABEL, "stands for the requests of no class: accepted is any other name"),
    ]
    """Name of the class, unique in the list; objectives, status and metrics refer to it."""
    value: (
        Annotated[
            str,
            Field(min_length=1, max_length=128),
            Matches(
                r"[!-&(-~]([ -&(-~]*[!-&(-~])?",
                "must be printable ASCII without an apostrophe, and not begin or end with a space",
            ),
        ]
        | None
    ) = None
    """What the header says for this class, exactly. Default: the name."""
    priority: Annotated[int, Field(ge=LEAST_PRIORITY, le=LARGEST_PRIORITY)] | None = None
    """vLLM's `priority` that names this class, too, exactly: in the request's body, or the header X-Vllm-Priority. Not
    0. The header `classHeader` goes before it. Its size has no meaning, but to an engine whose queue has the policy
    Priority. Default: none."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """What a request in time is worth, beside 1 of one without a class. Where not all can be in time, the least weight
    per second of work is given up first. Default: 1."""
    prefill_share: Annotated[int, Field(ge=0, le=50)] = 0
    """Percentage of the work on prompts that is kept for the oldest request of this class while it is served behind
    others; all classes together 50 at most. Default: 0."""

    @property
    def header_value(self) -> str:
        """What the header says."""
        return self.value or self.name


def _are_distinct(found: list[int]) -> bool:
    return len(set(found)) == len(found)


#: Not `sum`, whose estimated cost knows no bound.
_ALL_SHARES: Final = " + ".join(
    f"(self.classes.size() > {at} ? self.classes[{at}].prefillShare : 0)" for at in range(MOST_CLASSES)
)


class Tuning(Model):
    """Whether and within what the batch limits are tuned. Changing it rolls no pod."""

    checks: ClassVar[tuple[Check, ...]] = (
        Check(
            Rule(
                # Each comparison is of two fields: the estimated cost of a rule goes by what the schema bounds.
                "!has(self.classes) || self.classes.all(a, self.classes.exists_one(b, has(a.value)"
                " ? (has(b.value) ? a.value == b.value : a.value == b.name)"
                " : (has(b.value) ? a.name == b.value : a.name == b.name)))",
                "two classes have the same header value: their requests could not be told apart",
                ".classes",
            ),
            lambda tuning: len({one.header_value for one in tuning.classes}) == len(tuning.classes),
        ),
        Check(
            Rule(
                "!has(self.classes) || self.classes.all(a, !has(a.priority)"
                " || self.classes.exists_one(b, has(b.priority) && a.priority == b.priority))",
                "two classes have the same priority: their requests could not be told apart",
                ".classes",
            ),
            lambda tuning: _are_distinct([one.priority for one in tuning.classes if one.priority is not None]),
        ),
        Check(
            Rule(
                f"!has(self.classes) || {_ALL_SHARES} <= {100 * MOST_KEPT:.0f}",
                "prefillShare of all classes together must be at most 50: the rest is for requests in time",
                ".classes",
            ),
            lambda tuning: sum(one.prefill_share for one in tuning.classes) <= 100 * MOST_KEPT,
        ),
        Check(
            Rule(
                f"self.order == 'Arrival' || !has(self.batching) || !({chooses('self.batching')})",
                "must be Arrival where spec.tuning.batching chooses who is next: by strategy Static, Dynamic or"
                " Bucketed, admissionDelay, noEvict, or policy Priority",
                ".order",
            ),
            lambda tuning: tuning.order is Order.ARRIVAL or not tuning.batching.chooses,
        ),
    )

    mode: Mode = Mode.AUTO
    """Disabled: run at the upper bounds. Recommend: show decisions in status. Auto: apply them. Default: Auto."""
    overload: Overload = Overload.QUEUE
    """What happens to more requests than the objectives allow. Queue: all wait, and `order`
    decides which are late. Shed: a request whose first token cannot come in time any more is refused with
    `refusalStatus` and Retry-After before anything of it is answered, and the others keep their objectives. With an
    objective on EndToEndLatency, so is one whose answer is expected to be too long, by the max_tokens that it names.
    Shed needs an objective on TimeToFirstToken or EndToEndLatency, and refuses nothing before the times of the engine's
    steps are learnt, nor in mode Disabled; Recommend leaves what Auto set last. Default: Queue."""
    refusal_status: Literal[503, 429] = 503
    """HTTP status of a refused request, of use with overload Shed. At 503 service meshes retry on another pod, and may
    eject a pod that answers several. At 429 they do neither, and clients slow down. What vLLM's own queue limits
    refuse is always 503. Default: 503."""
    order: Order = Order.ON_TIME
    """Which request is served first. OnTime: those whose first token can still be in time, by deadline. The others are
    served behind them. Once the oldest of these has waited for a minute it gets a twentieth of the work on prompts, so
    that nobody starves. Arrival: vLLM's own order. OnTime needs an objective on TimeToFirstToken or EndToEndLatency,
    and begins once the times of the engine's steps are learnt; the modes Disabled and Recommend leave vLLM's order.
    Default: OnTime."""
    classes: Annotated[tuple[RequestClass, ...], Field(max_length=MOST_CLASSES), MapKeyed("name")] = ()
    """Classes of requests. A request that names none, or an unknown one, is of the default class: objectives without a
    class are its own. Default: none."""
    class_header: Annotated[
        str,
        Field(min_length=1, max_length=128),
        Matches(r"[a-z0-9][-a-z0-9_.]*", "must be the name of an HTTP header in lower case: a-z, 0-9, '-', '_', '.'"),
    ] = CLASS_HEADER
    """HTTP header that names a request's class. Default: x-gateway-inference-objective, which the Gateway API Inference
    Extension uses."""
    bounds: Bounds = Bounds()
    """What tuning may use. Default: from the law's smallest values to the ceilings."""
    batching: Annotated[LiveBatching, Field(json_schema_extra=without_default)] = LiveBatching()
    """How requests are admitted from the queue. It is no decision of the law: it is sent in every mode, to all pods at
    once, and while tuning is paused what is live stays. What chooses who is next needs `order: Arrival`. Behind a
    batch, Shed refuses later than it could, and the capacity that status names is too high: neither counts the wait for
    the batch before. What an engine lacks is left out, and the condition Tuned names it. Default: the engine's own
    way."""
    queue: Annotated[LiveQueue, Field(json_schema_extra=without_default)] = LiveQueue()
    """At how much vLLM itself refuses requests; sent like batching. Default: the engine's own limits."""
