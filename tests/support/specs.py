"""Hypothesis strategies for valid specs, and walks over them, as JSON: every field of the API appears in some."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import strategies as st

from flyball_engine.contract import Metric
from flyball_operator.api.parse import InvalidSpecError, parse_service

Object = dict[str, Any]
#: Walks that a test takes, on the real API server a tenth. `hack/test long` takes 200.
WALKS: Final = int(os.environ.get("FLYBALL_TEST_WALKS", "30"))

_LABELS = st.from_regex(r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
_KEYS = st.builds(lambda domain, name: f"{domain}.example.com/{name}", _LABELS, _LABELS)
_TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)
#: Fields of a spec that are changed in one step; the last set is all of them.
_PARTS: tuple[set[str], ...] = (
    {"model"},
    {"engine"},
    {"accelerator", "parallelism"},
    {"objectives", "tuning"},
    {"batching", "tuning"},
    {"podTemplate"},
    {"rollout"},
    {"replicas", "scaling"},
    {"podDisruptionBudget"},
    {"adapters"},
    {"gateway"},
)
_PARTS += (set().union(*_PARTS),)
_DURATIONS = st.builds(lambda number, unit: f"{number}{unit}", st.integers(100, 3000), st.sampled_from(["ms", "s"]))
_DELAYS = st.builds(lambda number: f"{number}ms", st.integers(1, 60_000))


def specs() -> st.SearchStrategy[Object]:
    """Valid specs. Fields are absent or present independently of each other where the rules leave them free."""
    return (
        st.builds(_joined, _free(), _devices(), _batch(), _objectives())
        .map(_with_classes)
        .map(_scaled_or_not)
        .map(_one_order)
    )


@st.composite
def walks(draw: st.DrawFn, *, most: int, caches: bool = True) -> list[Object]:
    """At most so many specs that follow one another: some differ in all, most in one part.

    Engines of the image `engine:bad` do not start; those of the first and last spec do, and both say how many replicas.
    None asks for more than three. `caches`: some download their model once, where a Job is run. What of a claim
    Kubernetes does not change is the same in all.
    """
    serves = {"engine": {"image": "engine:good"}, "replicas": draw(st.integers(0, 3))}
    few = specs().map(lambda spec: spec | {"replicas": spec["replicas"] % 4} if "replicas" in spec else spec)
    few = few.map(_of_one_claim)
    if not caches:
        few = few.filter(lambda spec: "cache" not in spec["model"])
    walk = [_of_so_many(draw(few), serves)]
    for _ in range(draw(st.integers(1, most - 1))):
        other = draw(few)
        part = draw(st.sampled_from(_PARTS))
        step = {field: value for field, value in walk[-1].items() if field not in part}
        step |= {field: value for field, value in other.items() if field in part}
        if draw(st.integers(0, 4)) == 0:
            step["engine"] = step["engine"] | {"image": "engine:bad"}
        walk.append(step if _is_valid(step) else other)
    return [*walk, _of_so_many(walk[-1], serves)]


def _of_one_claim(spec: Object) -> Object:
    cache = spec["model"].get("cache", {})
    if "claim" not in cache:
        return spec
    deletion = {field: value for field, value in cache["claim"].items() if field == "deletion"}
    return spec | {"model": spec["model"] | {"cache": cache | {"claim": {"size": "1Gi", **deletion}}}}


def _of_so_many(spec: Object, serves: Object) -> Object:
    return {field: value for field, value in spec.items() if field != "scaling"} | serves


def _is_valid(spec: Object) -> bool:
    try:
        parse_service({"metadata": {"namespace": "n", "uid": "u", "name": "chat"}, "spec": spec})
    except InvalidSpecError:
        return False
    return True


def _scaled_or_not(spec: Object) -> Object:
    """Replicas are set by the operator only where it knows objectives, and nobody else sets them."""
    if "replicas" not in spec and spec.get("objectives") and spec["engine"].get("governed", True):
        return spec
    return {field: value for field, value in spec.items() if field != "scaling"}


def _one_order(spec: Object) -> Object:
    """Without adapters where something chooses who is next: beside them vLLM does."""
    batching = spec["tuning"].get("batching", {})
    strategy = batching.get("strategy", {"type": "Continuous"})["type"]
    if strategy == "Continuous" and not {"admissionDelay", "noEvict"} & batching.keys():
        return spec
    return {field: value for field, value in spec.items() if field != "adapters"}


def _with_classes(spec: Object) -> Object:
    """The classes that objectives are of, and one without."""
    names = {item["class"] for item in spec.get("objectives", ()) if "class" in item}
    if not names:
        return spec
    classes = [
        {"name": name, "weight": 10, "prefillShare": 10, "priority": 1 - at} for at, name in enumerate(sorted(names), 2)
    ]
    tuning = spec["tuning"] | {"classes": [*classes, {"name": "batch", "value": "Low"}], "classHeader": "x-class"}
    return spec | {"tuning": tuning}


def _joined(*parts: Object) -> Object:
    return {key: value for part in parts for key, value in part.items()}


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    return st.fixed_dictionaries({}, optional=fields)


def _free() -> st.SearchStrategy[Object]:
    uri = st.sampled_from(
        ["hf://gpt2", "hf://org/Model-1.5", "pvc://claim/a/b", "pvc://my.claim", "file:///m", "oci://r.test:5000/m:v1"]
    )
    env = st.lists(_variable(), max_size=4, unique_by=_name_of)
    args = st.lists(st.sampled_from(["--max-model-len=16384", "--seed", "7", "--dtype=auto"]), max_size=4)
    engine = {"image": st.sampled_from(["vllm/vllm-openai:v0.32.0", "r:5000/e@sha256:" + "a" * 64])}
    claim = st.fixed_dictionaries(
        {"size": st.sampled_from(["100Gi", 2**40, "1.5e12"])},
        optional={
            "storageClassName": st.sampled_from(["", "fast"]),
            "accessModes": st.sampled_from([["ReadWriteMany"], ["ReadWriteOnce", "ReadWriteMany"]]),
            "deletion": st.sampled_from(["Keep", "Delete"]),
        },
    )
    volume = st.fixed_dictionaries({"claimName": st.just("models")}) | st.fixed_dictionaries({"claim": claim})
    folder = _some(path=st.just("llm/a"), revision=st.sampled_from(["main", "refs/pr/1"]))
    cache = st.builds(lambda found, within: found | within, volume, folder)
    served = {"servedName": st.just("org/served:1")}
    model = st.one_of(
        st.fixed_dictionaries({"uri": uri}, optional=served),
        st.fixed_dictionaries({"uri": st.just("hf://org/m"), "cache": cache}, optional=served),
    )
    return st.fixed_dictionaries(
        {
            "model": model,
            "engine": st.fixed_dictionaries(
                engine,
                optional={
                    "governed": st.just(True),
                    "args": args.map(_flag_first),
                    "env": env,
                    "tls": st.just({"secretName": "chat-tls"}),
                },
            ),
        },
        optional={
            "replicas": st.integers(0, 10_000),
            "scaling": st.fixed_dictionaries(
                {"maxReplicas": st.integers(3, 10_000)},
                optional={
                    "minReplicas": st.integers(1, 3),
                    "scaleUp": _some(stabilizationWindowSeconds=st.integers(0, 3600)),
                    "scaleDown": _some(stabilizationWindowSeconds=st.integers(0, 3600)),
                },
            ),
            "rollout": _some(
                startupTimeout=st.just("1.5h"),
                drainTimeout=st.just("90s"),
                maxSurge=st.integers(1, 9),
                maxUnavailable=st.integers(0, 9),
            ),
            "podTemplate": _pod().map(_with_volumes),
            "podDisruptionBudget": _some(enabled=st.booleans(), maxUnavailable=st.sampled_from([0, 3, "0%", "100%"])),
            "adapters": st.lists(_adapter(), max_size=3, unique_by=_name_of),
            "gateway": _gateway(),
        },
    )


def _adapter() -> st.SearchStrategy[Object]:
    named = {"name": st.sampled_from(["sql", "law-v2", "a.b_c"])}
    of_hub = {**named, "uri": st.sampled_from(["hf://org/sql", "hf://org/Law-1.5"])}
    return st.fixed_dictionaries(of_hub, optional={"revision": st.sampled_from(["v1", "refs/pr/1"])}) | (
        st.fixed_dictionaries({**named, "uri": st.just("file:///adapters/a")})
    )


def _gateway() -> st.SearchStrategy[Object]:
    parent = st.fixed_dictionaries(
        {"name": _LABELS}, optional={"namespace": _LABELS, "sectionName": st.sampled_from(["https", "a.b"])}
    )
    picker = st.fixed_dictionaries(
        {"name": _LABELS}, optional={"port": st.integers(1, 65_535), "failureMode": st.just("FailOpen")}
    )
    return st.fixed_dictionaries(
        {"parentRefs": st.lists(parent, min_size=1, max_size=2)},
        optional={
            "hostnames": st.lists(st.sampled_from(["llm.example.com", "*.example.com"]), max_size=2, unique=True),
            "requestTimeout": st.just("GatewayDefault"),
            "endpointPicker": picker,
        },
    )


def _devices() -> st.SearchStrategy[Object]:
    """Only what has devices can be spread over several, or have engine cores that are."""
    wide = _some(tensor=st.integers(1, 64), pipeline=st.integers(1, 64), data=st.integers(1, 64))
    on_devices = st.fixed_dictionaries(
        {"accelerator": st.just({"resourceName": "nvidia.com/gpu"})}, optional={"parallelism": wide}
    )
    return on_devices | _some(parallelism=st.fixed_dictionaries({"tensor": st.just(1), "data": st.integers(1, 64)}))


def _variable() -> st.SearchStrategy[Object]:
    """One with a value, or with a source."""
    key = st.fixed_dictionaries({"name": _LABELS, "key": st.just("a.b_c")}, optional={"optional": st.booleans()})
    path = st.sampled_from(["metadata.name", "metadata.labels['a.b/c']", "status.podIP"])
    sources = [
        st.builds(lambda found: {"secretKeyRef": found}, key),
        st.builds(lambda found: {"configMapKeyRef": found}, key),
        st.builds(lambda found: {"fieldRef": {"fieldPath": found}}, path),
    ]
    valued = st.fixed_dictionaries({"name": _names()}, optional={"value": _TEXT})
    return valued | st.fixed_dictionaries({"name": _names(), "valueFrom": st.one_of(sources)})


def _names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True).filter(lambda name: name != "PYTHONPATH")


def _name_of(item: Object) -> Any:
    return item["name"]


def _flag_first(args: list[str]) -> list[str]:
    return args if not args or args[0].startswith("-") else ["--seed", *args]


def _batch() -> st.SearchStrategy[Object]:
    """Ceilings and bounds that fit each other: four numbers in order."""
    numbers = st.lists(st.integers(1, 60_000), min_size=6, max_size=6).map(sorted)
    modes = st.sampled_from(["Disabled", "Recommend", "Auto"])
    return st.builds(_bounded, numbers, st.booleans(), st.booleans(), modes, _admission())


def _admission() -> st.SearchStrategy[Object]:
    """Strategies, and what else says who is admitted from the queue, in order of arrival."""
    batch = {"batchSize": st.integers(1, 60_000)}
    bucketed = st.fixed_dictionaries({"type": st.just("Bucketed"), **batch})
    strategies = st.one_of(
        st.just({"type": "Continuous"}),
        st.fixed_dictionaries({"type": st.just("Static"), **batch}),
        bucketed.map(lambda found: found | {"boundaries": [128, 512]}),
        bucketed.map(lambda found: found | {"sorted": True}),
    )
    dynamic = st.fixed_dictionaries(
        {"type": st.just("Dynamic"), **batch, "maxDelay": _DELAYS},
        optional={"maxBatchTokens": st.integers(1, 2**31 - 1)},
    )
    others = {
        "noEvict": st.sampled_from([{}, {"quantile": "0.5"}]),
        "maxConcurrentPrefills": st.integers(1, 60_000),
        "policy": st.sampled_from(["FCFS", "Priority"]),
    }
    batching = _some(strategy=strategies, admissionDelay=_DELAYS, **others) | _some(strategy=dynamic, **others)
    queue = _some(maxNumQueuedReqs=st.integers(1, 2**31 - 1), maxNumQueuedTokens=st.integers(1, 2**31 - 1))
    asked = st.fixed_dictionaries({"order": st.just("Arrival")}, optional={"batching": batching, "queue": queue})
    return st.just({}) | asked


def _bounded(numbers: list[int], bounds: bool, caching: bool, mode: str, admission: Object) -> Object:
    low, high, seqs, low_tokens, high_tokens, tokens = numbers
    tuning: Object = {"mode": mode, **admission}
    if bounds:
        tuning["bounds"] = {
            "maxNumActiveSeqs": {"min": low, "max": high},
            "maxNumScheduledTokens": {"min": low_tokens, "max": high_tokens},
        }
    batching = {"maxNumSeqs": seqs, "maxNumBatchedTokens": tokens, "prefixCaching": caching}
    return {"batching": batching, "tuning": tuning}


def _objectives() -> st.SearchStrategy[Object]:
    one = st.fixed_dictionaries(
        {"name": _LABELS, "metric": st.sampled_from([metric.value for metric in Metric]), "threshold": _DURATIONS},
        optional={
            "target": st.sampled_from(["99", "50.5", "1", "99.999"]),
            "class": st.sampled_from(["chat", "code"]),
        },
    )
    apart = st.lists(one, max_size=8, unique_by=(_name_of, lambda item: (item["metric"], item["threshold"][:3])))
    return st.fixed_dictionaries({}, optional={"objectives": apart.map(_whole_answers_last)})


def _whole_answers_last(objectives: list[Object]) -> list[Object]:
    """Without end-to-end objectives where there are such of first tokens, which may not be the longer ones."""
    if all(item["metric"] != Metric.TIME_TO_FIRST_TOKEN.value for item in objectives):
        return objectives
    return [item for item in objectives if item["metric"] != Metric.END_TO_END_LATENCY.value]


def _pod() -> st.SearchStrategy[Object]:
    expression = st.fixed_dictionaries(
        {"key": _KEYS, "operator": st.just("In"), "values": st.lists(_LABELS, min_size=1, max_size=2)}
    )
    term = st.fixed_dictionaries({"matchExpressions": st.lists(expression, min_size=1, max_size=2)})
    pod_term = st.fixed_dictionaries(
        {"topologyKey": _KEYS},
        optional={"labelSelector": _some(matchLabels=_map(_LABELS)), "namespaces": _list(_LABELS)},
    )
    toleration = _some(key=_KEYS, operator=st.just("Exists"), effect=st.just("NoExecute"), tolerationSeconds=st.just(3))
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    quantities = _some(
        cpu=st.sampled_from([1, "500m", "1.5"]),
        memory=st.sampled_from([0, "2Gi", 2**31, "1.5e9"]),
        **{"example.com/x": st.sampled_from([1, "2k"])},
    )
    return _some(
        labels=_map(_LABELS),
        annotations=_map(_TEXT),
        nodeSelector=_map(_LABELS),
        tolerations=_list(toleration),
        affinity=_some(
            nodeAffinity=_some(**{required: st.fixed_dictionaries({"nodeSelectorTerms": _list(term)})}),
            podAntiAffinity=_some(**{required: _list(pod_term)}),
        ),
        resources=_some(requests=quantities, limits=quantities),
        imagePullSecrets=st.lists(st.fixed_dictionaries({"name": _LABELS}), max_size=3, unique_by=_name_of),
        priorityClassName=_LABELS,
        runtimeClassName=_LABELS,
        schedulerName=_LABELS,
        serviceAccountName=_LABELS,
        automountServiceAccountToken=st.booleans(),
        securityContext=_some(
            runAsUser=st.just(1000),
            runAsGroup=st.just(0),
            fsGroup=st.just(0),
            supplementalGroups=st.just([44, 110]),
            fsGroupChangePolicy=st.just("OnRootMismatch"),
        ),
        topologySpreadConstraints=_list(
            st.fixed_dictionaries(
                {"maxSkew": st.just(1), "topologyKey": _KEYS, "whenUnsatisfiable": st.just("DoNotSchedule")},
                optional={"labelSelector": _some(matchLabels=_map(_LABELS)), "minDomains": st.just(2)},
            )
        ),
        volumes=st.lists(_volume(), max_size=3, unique_by=_name_of),
        resourceClaims=st.lists(_claim(), max_size=2, unique_by=_name_of),
        containers=st.lists(_container(_LABELS.map("c-{}".format)), max_size=2, unique_by=_name_of),
        initContainers=st.lists(_container(_LABELS.map("i-{}".format)), max_size=2, unique_by=_name_of),
    )


def _with_volumes(pod: Object) -> Object:
    """With a mount of each volume, and the engine's use of each claim."""
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/{volume['name']}"} for volume in pod.get("volumes", ())]
    claims = [{"name": claim["name"]} for claim in pod.get("resourceClaims", ())]
    resources = {**pod.get("resources", {}), **({"claims": claims} if claims else {})}
    return {**pod, **({"volumeMounts": mounts} if mounts else {}), **({"resources": resources} if resources else {})}


def _volume() -> st.SearchStrategy[Object]:
    source = st.sampled_from(
        [
            {"configMap": {"name": "c", "items": [{"key": "k", "path": "a/b", "mode": 0}], "optional": False}},
            {"secret": {"secretName": "s", "defaultMode": 0o400}},
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            {"emptyDir": {}},
            {"emptyDir": {"medium": "Memory", "sizeLimit": 2**30}},
            {"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s"}}]}},
            {"csi": {"driver": "d.example.com", "volumeAttributes": {"a": "b"}, "nodePublishSecretRef": {"name": "s"}}},
        ]
    )
    return st.builds(lambda name, found: {"name": f"v-{name}", **found}, _LABELS, source)


def _claim() -> st.SearchStrategy[Object]:
    kind = st.sampled_from(["resourceClaimName", "resourceClaimTemplateName"])
    return st.builds(lambda name, field, source: {"name": name, field: source}, _LABELS, kind, _LABELS)


def _container(names: st.SearchStrategy[str]) -> st.SearchStrategy[Object]:
    return st.fixed_dictionaries(
        {"name": names, "image": st.just("side:1")},
        optional={
            "command": st.just(["/side"]),
            "env": st.lists(_variable(), max_size=2, unique_by=_name_of),
            "ports": st.just([{"name": "web", "containerPort": 9000}]),
            "resources": st.just({"limits": {"memory": "64Mi"}}),
            "securityContext": st.just({"runAsUser": 7, "readOnlyRootFilesystem": False}),
        },
    )


def _map(values: st.SearchStrategy[str]) -> st.SearchStrategy[Object]:
    return st.dictionaries(_KEYS, values, max_size=3)


def _list(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, min_size=1, max_size=3)
