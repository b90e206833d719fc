"""Wrong manifests, one table: refused by the real API server, and by the operator's own parser.

Each stands beside its nearest good neighbour, so that a rule which refuses too much is seen as well.
"""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import DROP, Wrong
from support.wrong_adapters import WRONG_ADAPTERS
from support.wrong_batching import WRONG_BATCHING
from support.wrong_canaries import WRONG_CANARIES
from support.wrong_classes import WRONG_CLASSES
from support.wrong_gateways import WRONG_GATEWAYS
from support.wrong_kv_transfer import WRONG_KV_TRANSFER
from support.wrong_models import WRONG_MODELS
from support.wrong_nodes import WRONG_NODES
from support.wrong_pods import GPU, WRONG_PODS
from support.wrong_scaling import WRONG_SCALING
from support.wrong_speculation import WRONG_SPECULATION
from support.wrong_strategies import WRONG_STRATEGIES
from support.wrong_volumes import WRONG_VOLUMES
from support.wrong_workloads import WRONG_WORKLOADS


def _args(item: str, says: str, right: str = "--max-model-len=16384") -> Wrong:
    args = "spec.engine.args"
    return Wrong(f"argument {item[:40]}", {args: [item]}, {args: [right]}, "spec.engine.args[0]", says)


def _objective(id: str, field: str, wrong: Any, right: Any, says: str, server: str = "") -> Wrong:  # noqa: A002
    path = f"spec.objectives.0.{field}"
    return Wrong(id, {path: wrong}, {path: right}, f"spec.objectives[0].{field}", says, server)


_TWO = [
    {"name": "a", "metric": "TimeToFirstToken", "threshold": "500ms"},
    {"name": "b", "metric": "TimeToFirstToken", "threshold": "0.5s"},
]
_APART = [_TWO[0], _TWO[1] | {"threshold": "0.6s"}]
_SAME_NAME = [_TWO[0], {"name": "a", "metric": "EndToEndLatency", "threshold": "5s"}]
_OTHER_NAME = [_TWO[0], _SAME_NAME[1] | {"name": "b"}]


def _token_and_answer(first: str, first_target: str, whole: str, whole_target: str) -> list[dict[str, str]]:
    return [
        {"name": "first", "metric": "TimeToFirstToken", "threshold": first, "target": first_target},
        {"name": "whole", "metric": "EndToEndLatency", "threshold": whole, "target": whole_target},
    ]


WRONG = (
    # Names.
    Wrong(
        "name too long",
        {"metadata.name": "n" * 47},
        {"metadata.name": "n" * 46},
        "metadata.name",
        "at most 46 characters",
    ),
    Wrong(
        "name begins with a digit",
        {"metadata.name": "1chat"},
        {"metadata.name": "chat-1"},
        "metadata.name",
        "DNS label that begins with a letter",
    ),
    Wrong(
        "name with a dot",
        {"metadata.name": "chat.v1"},
        {"metadata.name": "chat-v1"},
        "metadata.name",
        "DNS label that begins with a letter",
    ),
    # Model.
    *(
        Wrong(
            f"model uri {uri}",
            {"spec.model.uri": uri},
            {"spec.model.uri": right},
            "spec.model.uri",
            "must be hf://<organisation>/<model>, s3://<bucket>/<prefix>, oci://<registry>/<repository>:<tag>,"
            " pvc://<claim>/<path> or file:///<path in the engine image>",
        )
        for uri, right in (
            ("gs://bucket/model", "hf://gpt2"),
            ("s3://models/../keys", "hf://gpt2"),
            ("oci:r.example.com/qwen:v1", "oci://r.example.com/qwen:v1"),
            ("Qwen/Qwen3-8B", "hf://Qwen/Qwen3-8B"),
            ("hf://a/b/c", "hf://a/b"),
            ("pvc://Claim/m", "pvc://claim/m/v1"),
            ("pvc://claim/../etc", "pvc://claim"),
            ("file://models/tiny", "file:///models/tiny"),
            ("file:///models/../etc/passwd", "file:///models/tiny/"),
        )
    ),
    *(
        Wrong(
            f"bucket of {uri[:40]}",
            {"spec.model": {"uri": uri, "cache": {"claimName": "models"}}},
            {"spec.model": {"uri": right, "cache": {"claimName": "models"}}},
            "spec.model.uri",
            "must be s3://<bucket>/<prefix>: a bucket's name has 3 to 63 characters, of a-z, 0-9, '-' and '.'",
        )
        for uri, right in (
            ("s3://Models/q", "s3://models/Q"),
            ("s3://My_Bucket/model", "s3://my-bucket/my_model"),
            ("s3://b1/q", "s3://b-1/q"),
            (f"s3://{'b' * 64}/q", f"s3://{'b' * 63}/q"),
            ("s3://models-/q", "s3://models.v1/q/"),
            ("s3:///q", "s3://1st"),
        )
    ),
    *(
        Wrong(
            f"model uri {uri}",
            {"spec.model.uri": uri},
            {"spec.model.uri": right, "spec.engine.args": ["--revision=main"]},
            "spec.model.uri",
            "may not hold a revision: write --revision=<branch, tag or commit> into spec.engine.args",
        )
        for uri, right in (("hf://Qwen/Qwen3-8B@main", "hf://Qwen/Qwen3-8B"), ("hf://gpt2@", "hf://gpt2"))
    ),
    *(
        Wrong(
            f"model image {uri}",
            {"spec.model.uri": f"oci://{uri}"},
            {"spec.model.uri": f"oci://{right}"},
            "spec.model.uri",
            "must be oci://<registry>/<repository>:<tag>, or with @sha256:<64 hex digits>, or with both",
        )
        for uri, right in (
            ("", "models/qwen:v1"),
            ("r.example.com/models/qwen", "r.example.com/models/qwen:v1"),
            ("r.example.com:5000/models/qwen", f"r.example.com:5000/models/qwen@sha256:{'a' * 64}"),
            ("r.example.com:5000", "r.example.com:5000/qwen:v1"),
            ("qwen:v1", "models/qwen:v1"),
            ("https://r.example.com/qwen:v1", "localhost/qwen:v1"),
            ("r.example.com/models/Qwen:v1", f"R.example.com/models/qwen:V1@sha256:{'a' * 64}"),
            ("r.example.com/models/../qwen:v1", "r.example.com/models/qwen:v1"),
            ("r.example.com/models/qwen@sha256:abc", f"r.example.com/models/qwen@sha512:{'0' * 128}"),
            ("r.example.com/models/qwen:v1#8b", "r.example.com/models/qwen:v1"),
            (f"r.example.com/{'m' * 256}:v1", f"r.example.com/{'m' * 255}:v1"),
        )
    ),
    Wrong(
        "claim of 300 characters",
        {"spec.model.uri": f"pvc://{'c' * 300}/m"},
        {"spec.model.uri": f"pvc://{'c' * 253}/m"},
        "spec.model.uri",
        "must name a claim of at most 253 characters",
    ),
    Wrong("no model", {"spec.model": DROP}, {}, "spec", "must have exactly one of model"),
    Wrong(
        "token without Hugging Face",
        {"spec.model": {"uri": "file:///m", "tokenSecretRef": {"name": "hf", "key": "token"}}},
        {"spec.model": {"uri": "hf://a/b", "tokenSecretRef": {"name": "hf", "key": "token"}}},
        "spec.model.tokenSecretRef",
        "needs a uri that begins with hf://",
    ),
    Wrong(
        "bucket without a cache",
        {"spec.model": {"uri": "s3://models/llm"}},
        {"spec.model": {"uri": "s3://models/llm", "cache": {"claimName": "models"}}},
        "spec.model.uri",
        "begins with s3://, which pods do not read: needs a cache that it is downloaded to",
    ),
    Wrong(
        "bucket of a hub's model",
        {"spec.model": {"uri": "hf://a/b", "s3": {"region": "eu-west-1"}}},
        {"spec.model": {"uri": "hf://a/b"}},
        "spec.model.s3",
        "needs a uri that begins with s3://",
    ),
    Wrong(
        "revision of a bucket",
        {"spec.model": {"uri": "s3://models/llm", "cache": {"claimName": "models", "revision": "v1"}}},
        {"spec.model": {"uri": "s3://models/llm-v1", "cache": {"claimName": "models"}}},
        "spec.model.cache.revision",
        "a bucket has no revisions, so name another prefix in uri",
    ),
    *(
        Wrong(
            f"{field} of a bucket: {value}",
            {"spec.model": {"uri": "s3://models/llm", "cache": {"claimName": "models"}, "s3": {field: value}}},
            {"spec.model": {"uri": "s3://models/llm", "cache": {"claimName": "models"}, "s3": {field: right}}},
            f"spec.model.s3.{field}",
            words,
        )
        for field, value, right, words in (
            ("endpoint", "minio:9000", "http://minio:9000", "must be http:// or https:// with a host"),
            ("endpoint", "https://user:key@minio", "https://minio", "must be http:// or https:// with a host"),
            ("region", "eu west", "eu-west-1", "must be a region such as eu-west-1"),
            ("secretName", "My_Secret", "my-secret", "must be the name of a Kubernetes object"),
        )
    ),
    Wrong(
        "secret name",
        {"spec.model.tokenSecretRef": {"name": "My_Secret", "key": "token"}},
        {"spec.model.tokenSecretRef": {"name": "my-secret", "key": "token"}},
        "spec.model.tokenSecretRef.name",
        "must be the name of a Kubernetes object",
    ),
    Wrong(
        "served name with a space",
        {"spec.model.servedName": "my model"},
        {"spec.model.servedName": "Qwen/Qwen3-8B"},
        "spec.model.servedName",
        "must begin with a letter or digit",
    ),
    # Engine.
    *(
        Wrong(
            f"image {image[:40]}",
            {"spec.engine.image": image},
            {"spec.engine.image": right},
            "spec.engine.image",
            "must be an image reference [host[:port]/]repository[:tag][@sha256:digest], such as vllm/vllm-openai",
        )
        for image, right in (
            ("vllm/vllm-openai: v0.32.0", "registry.local:5000/vllm/vllm-openai@sha256:" + "0" * 64),
            ("https://docker.io/vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
            ("a:b:c", "a:5000/b:c"),
            ("vllm/vllm-openai@sha256:123", "vllm/vllm-openai:v1@sha256:" + "9a" * 32),
            ("@sha256:123", "localhost/vllm"),
            ("vllm/vllm-openai:", "vllm/vllm-openai:latest"),
            ("vllm/VLLM-OpenAI:v1", "Registry.Example.Com/vllm/vllm-openai:V1"),
            ("VLLM/vllm-openai:v1", "VLLM:443/vllm-openai:v1"),
            ("vllm//vllm-openai", "[fd00::1]:5000/vllm/vllm__openai"),
            ("vllm/vllm-openai:" + "t" * 129, "vllm/vllm-openai:" + "t" * 128),
        )
    ),
    Wrong(
        "image repository of 256 characters",
        {"spec.engine.image": f"a:5000/{'n' * 256}:v1"},
        {"spec.engine.image": f"a:5000/{'n' * 255}:v1"},
        "spec.engine.image",
        "must have a repository of at most 255 characters between the host and the tag",
    ),
    Wrong(
        "image empty",
        {"spec.engine.image": ""},
        {"spec.engine.image": "e"},
        "spec.engine.image",
        "at least 1 character",
        "at least 1 chars long",
    ),
    _args("--max-num-seqs=7", "--max-num-seqs is set by spec.batching.maxNumSeqs"),
    _args("--max-num-s", "is set by spec.batching.maxNumSeqs", "--max-num-partial-prefills=2"),
    _args("--max_num_seqs", "is set by spec.batching.maxNumSeqs"),
    _args("--max-num_batched-tok=9", "is set by spec.batching.maxNumBatchedTokens"),
    _args("--max-num-active-seqs", "is set by spec.tuning.bounds.maxNumActiveSeqs"),
    _args("--max-num-scheduled-tokens", "is set by spec.tuning.bounds.maxNumScheduledTokens"),
    _args("--model=other", "is set by spec.model.uri", "--model-impl=auto"),
    _args("--served-model-name", "is set by spec.model.servedName"),
    _args("--port=1", "--port is set by Flyball (the engine listens on port 8000)", "--pooler-config={}"),
    _args("--host", "--host is set by Flyball", "--hf-overrides={}"),
    _args("-tp=2", "is set by spec.parallelism.tensor", "-dcp=1"),
    _args("-pp=2", "is set by spec.parallelism.pipeline"),
    _args("--tensor-parallel-size=2", "is set by spec.parallelism.tensor"),
    _args("--no-enable-prefix-caching", "is set by spec.batching.prefixCaching"),
    _args("--enable_prefix_caching", "is set by spec.batching.prefixCaching"),
    _args("--shutdown-timeout=1", "is set by spec.rollout.drainTimeout"),
    _args("--scheduler-cls=x", "--scheduler-cls is set by Flyball", "--scheduling-policy=fcfs"),
    _args("--config=/x.yaml", "--config is set by spec.engine.args", "--config-format=auto"),
    _args("--ssl-keyfile=/tls/tls.key", "--ssl-keyfile is set by spec.engine.tls", "--ssl-ca-certs=/ca.crt"),
    _args("--ssl_certfile", "--ssl-certfile is set by spec.engine.tls", "--ssl-ciphers=DEFAULT"),
    _args("--no-enable-ssl-refresh", "--enable-ssl-refresh is set by spec.engine.tls"),
    _args("--ssl-cert-reqs=2", "--ssl-cert-reqs cannot be used: the kubelet's probes have no certificate"),
    _args("--max-model-len 16384", "write --flag=value, or two items"),
    Wrong(
        "argument that is a number",
        {"spec.engine.args": ["--seed", 7]},
        {"spec.engine.args": ["--seed", "7"]},
        "spec.engine.args[1]",
        "Input should be a valid string. Write it in quotes",
        "must be of type string",
    ),
    Wrong(
        "certificate's secret name",
        {"spec.engine.tls": {"secretName": "Chat_TLS"}},
        {"spec.engine.tls": {"secretName": "chat-tls"}},
        "spec.engine.tls.secretName",
        "must be the name of a Kubernetes object",
    ),
    Wrong(
        "certificate without a secret",
        {"spec.engine.tls": {}},
        {"spec.engine.tls": {"secretName": "chat-tls"}},
        "spec.engine.tls.secretName",
        "Field required",
        "Required value",
    ),
    Wrong(
        "model as positional argument",
        {"spec.engine.args": ["Qwen/Qwen3-8B"]},
        {"spec.engine.args": ["--max-model-len", "16384"]},
        "spec.engine.args",
        "the model is set by spec.model.uri",
    ),
    Wrong(
        "variable name",
        {"spec.engine.env": [{"name": "1A", "value": "x"}]},
        {"spec.engine.env": [{"name": "A1", "value": "x"}]},
        "spec.engine.env[0].name",
        "must be letters, digits and '_', and not begin with a digit",
    ),
    *(
        Wrong(
            f"variable {name}",
            {"spec.engine.env": [{"name": name, "value": "x"}]},
            {"spec.engine.env": [{"name": "HF_HUB_OFFLINE", "value": "1"}]},
            "spec.engine.env[0].name",
            "FLYBALL_*, VLLM_PLUGINS and PYTHONPATH may not be set",
        )
        for name in ("FLYBALL_PUBLIC_KEY", "VLLM_PLUGINS", "PYTHONPATH")
    ),
    Wrong(
        "variable twice",
        {"spec.engine.env": [{"name": "A"}, {"name": "A"}]},
        {"spec.engine.env": [{"name": "A"}, {"name": "B"}]},
        "spec.engine.env",
        "Duplicate value",
    ),
    Wrong(
        "accelerator without domain",
        {"spec.accelerator": {"resourceName": "gpu"}},
        {"spec.accelerator": {"resourceName": GPU}},
        "spec.accelerator.resourceName",
        "must be an extended resource such as nvidia.com/gpu",
    ),
    *(
        Wrong(
            f"accelerator {resource}",
            {"spec.accelerator": {"resourceName": resource}},
            {"spec.accelerator": {"resourceName": right}},
            "spec.accelerator.resourceName",
            "may not be under kubernetes.io, which is reserved for Kubernetes' own resources; accepted: the vendor's",
        )
        for resource, right in (("kubernetes.io/gpu", "amd.com/gpu"), ("gpu.kubernetes.io/a", "gpu.kubernetes.com/a"))
    ),
    Wrong(
        "accelerator's name of 64 characters",
        {"spec.accelerator": {"resourceName": "nvidia.com/" + "g" * 64}},
        {"spec.accelerator": {"resourceName": "nvidia.com/" + "g" * 63}},
        "spec.accelerator.resourceName",
        "a name of at most 63 characters",
    ),
    Wrong(
        "tensor parallel over 0 devices",
        {"spec.accelerator": {"resourceName": GPU}, "spec.parallelism.tensor": 0},
        {"spec.accelerator": {"resourceName": GPU}, "spec.parallelism.tensor": 2},
        "spec.parallelism.tensor",
        "greater than or equal to 1",
    ),
    Wrong(
        "a pipeline of 0 stages",
        {"spec.accelerator": {"resourceName": GPU}, "spec.parallelism.pipeline": 0},
        {"spec.accelerator": {"resourceName": GPU}, "spec.parallelism.pipeline": 2},
        "spec.parallelism.pipeline",
        "greater than or equal to 1",
    ),
    *(
        Wrong(
            f"data parallelism by {' '.join(args)} beside spec.parallelism.data {data}",
            {"spec.parallelism.data": data, "spec.engine.args": args},
            {"spec.parallelism.data": 2, "spec.engine.args": ["--data-parallel-backend=mp"]},
            "spec.engine.args[0]",
            "--data-parallel-size is set by spec.parallelism.data",
        )
        for data, args in (
            (1, ["--data-parallel-size=2"]),
            (1, ["--data_parallel_size", "2"]),
            (1, ["-dp", "2"]),
            (1, ["-dp=1"]),
            (2, ["-dp=2"]),
        )
    ),
    _args("-dp 2", "holds a flag and its value: write --flag=value, or two items"),
    Wrong(
        "data parallel over 0 engine cores",
        {"spec.parallelism.data": 0},
        {"spec.parallelism.data": 2},
        "spec.parallelism.data",
        "greater than or equal to 1",
    ),
    *(
        Wrong(
            f"{kind} parallel without an accelerator",
            {f"spec.parallelism.{kind}": 8},
            {"spec.accelerator": {"resourceName": GPU}, f"spec.parallelism.{kind}": 8},
            "spec.parallelism",
            "needs spec.accelerator, such as {resourceName: nvidia.com/gpu}",
        )
        for kind in ("tensor", "pipeline")
    ),
    Wrong(
        "replicas below 0",
        {"spec.replicas": -1},
        {"spec.replicas": 0},
        "spec.replicas",
        "greater than or equal to 0",
    ),
    # Objectives.
    _objective("threshold without unit", "threshold", "500", "500ms", "must be a duration such as 500ms, 1.5s, 250us"),
    _objective("threshold in days", "threshold", "1d", "24h", "must be a duration such as 500ms, 1.5s, 250us"),
    _objective("threshold of two units", "threshold", "1m30s", "90s", "one number and one unit, 90s for 1m30s"),
    _objective("threshold 0", "threshold", "0ms", "100us", "must be at least 100us and at most 24h"),
    _objective("threshold of a week", "threshold", "168h", "23h", "must be at least 100us and at most 24h"),
    _objective("target 100", "target", "100", "99.999", "in percent, such as 99 for 99 %: at 100 a single"),
    _objective("target 0", "target", "0.0", "1", "must be at least 1 and below 100, in percent"),
    _objective("target a share", "target", "0.99", "1.0", "must be at least 1 and below 100, in percent, such as 99"),
    _objective("target no decimal", "target", "99%", "99", 'must be a decimal number in quotes, such as "99"'),
    _objective("target of 7 decimals", "target", "99.9999999", "99.999999", "with at most six decimals"),
    _objective("target of 9 decimals", "target", "99.999999999", "99.99", "with at most six decimals"),
    _objective("target a number", "target", 99, "99", 'number in quotes, such as "99"', "must be of type string"),
    _objective("threshold a number", "threshold", 500, "500ms", "Write it in quotes", "must be of type string"),
    _objective("metric unknown", "metric", "TTFT", "TimePerOutputToken", "'TimeToFirstToken'", '"TimeToFirstToken"'),
    _objective("objective name", "name", "First Token", "first-token", "must be a DNS label: a-z, 0-9 and '-'"),
    Wrong(
        "objectives of one name",
        {"spec.objectives": _SAME_NAME},
        {"spec.objectives": _OTHER_NAME},
        "spec.objectives",
        "Duplicate value",
    ),
    Wrong(
        "objectives of one threshold",
        {"spec.objectives": _TWO},
        {"spec.objectives": _APART},
        "spec.objectives",
        "two objectives of one class have the same metric and threshold",
    ),
    *(
        Wrong(
            f"first token later than the answer, {first} and {whole}",
            {"spec.objectives": _token_and_answer("10s", first, "1s", whole)},
            {"spec.objectives": right},
            "spec.objectives",
            "a TimeToFirstToken threshold is above an EndToEndLatency threshold of the same or a higher target",
        )
        for first, whole, right in (
            ("99", "99", _token_and_answer("1s", "99", "10s", "99")),
            ("95", "99", _token_and_answer("1s", "99", "1s", "99")),
            ("99.0", "99", _token_and_answer("10s", "99.9", "1s", "99")),
        )
    ),
    *WRONG_MODELS,
    *WRONG_CLASSES,
    *WRONG_BATCHING,
    *WRONG_STRATEGIES,
    *WRONG_NODES,
    *WRONG_SCALING,
    *WRONG_CANARIES,
    *WRONG_GATEWAYS,
    *WRONG_ADAPTERS,
    *WRONG_WORKLOADS,
    # Rollout.
    Wrong(
        "no pod may move",
        {"spec.rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        {"spec.rollout": {"maxSurge": 0, "maxUnavailable": 1}},
        "spec.rollout.maxSurge",
        "must not be 0 where maxUnavailable is 0",
    ),
    Wrong(
        "startup of no time",
        {"spec.rollout.startupTimeout": "1s"},
        {"spec.rollout.startupTimeout": "10s"},
        "spec.rollout.startupTimeout",
        "must be at least 10s and at most 24h",
    ),
    Wrong(
        "drain of a day",
        {"spec.rollout.drainTimeout": "24h"},
        {"spec.rollout.drainTimeout": "1h"},
        "spec.rollout.drainTimeout",
        "must be at least 1s and at most 1h",
    ),
    *WRONG_PODS,
    *WRONG_SPECULATION,
    *WRONG_KV_TRANSFER,
    *WRONG_VOLUMES,
)
"""Refused by the CRD's schema or CEL, and by `flyball_operator.api.parse`."""

UNKNOWN_FIELDS = (
    "spec.modle",
    "spec.podTemplate.shareProcessNamespace",
    "spec.podTemplate.hostAliases",
    "spec.podTemplate.affinity.nodeAfinity",
    "spec.batching.speculation",
    "spec.engine.type",
    "spec.tuning.deadline",
    "spec.tuning.batching.strategy.batch_size",
)
"""Fields that do not exist (yet): strict validation, which kubectl asks for, names them."""
