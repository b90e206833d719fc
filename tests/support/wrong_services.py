"""Services that use what `admissionPolicies.inferenceServices` does not list, for a user of no exempt group."""

from __future__ import annotations

from flyball_lab.harness.manifests import Object

#: An image that the lists allow.
ALLOWED = "registry.example.com/vllm/vllm-openai:v1"
#: A Secret that they do not.
UNLISTED = "root"

FROM_ROOT: Object = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": UNLISTED, "key": "t"}}}
#: Changes of a good manifest, and what the API server answers.
WRONG_SERVICES: list[tuple[Object, str]] = [
    ({"spec__engine__image": "docker.io/vllm/vllm-openai:v1"}, "spec.engine.image: not allowed here"),
    ({"spec__model__tokenSecretRef": {"name": UNLISTED, "key": "t"}}, "spec.model.tokenSecretRef.name: not allowed"),
    (
        {
            "spec__model": {
                "uri": "s3://models/llm",
                "cache": {"claimName": "weights"},
                "s3": {"secretName": UNLISTED},
            }
        },
        "spec.model.s3.secretName: not allowed",
    ),
    ({"spec__podTemplate__imagePullSecrets": [{"name": UNLISTED}]}, "spec.podTemplate.imagePullSecrets: not allowed"),
    (
        {"spec__model__uri": "oci://registry.example.com/vllm:v1"},
        "spec.model.uri: image not allowed here; accepted: registry.example.com/vllm/",
    ),
    ({"spec__model__uri": "pvc://others/model"}, "spec.model.uri: claim not allowed here; accepted: weights"),
    (
        {"spec__model": {"uri": "hf://org/m", "cache": {"claimName": "others"}}},
        "spec.model.cache.claimName: claim not allowed here; accepted: weights",
    ),
    (
        {"spec__model": {"uri": "hf://org/m", "cache": {"claim": {"size": "1Gi", "storageClassName": ""}}}},
        "spec.model.cache.claim.storageClassName: not allowed here; accepted: a StorageClass",
    ),
    ({"spec__podTemplate__priorityClassName": "high"}, "spec.podTemplate.priorityClassName: not allowed here"),
    ({"spec__podTemplate__serviceAccountName": "admin"}, "spec.podTemplate.serviceAccountName: not allowed here"),
    (
        {"spec__podTemplate__containers": [{"name": "side", "image": "side:1"}]},
        "spec.podTemplate: image of a container not allowed here",
    ),
    ({"spec__engine__env": [FROM_ROOT]}, "spec.engine.env: Secret not allowed here"),
    ({"spec__engine__tls": {"secretName": UNLISTED}}, "spec.engine.tls.secretName: not allowed here; accepted: hf"),
    (
        {"spec__podTemplate__containers": [{"name": "side", "image": ALLOWED, "env": [FROM_ROOT]}]},
        "spec.podTemplate: Secret of a container's env not allowed here",
    ),
    (
        {"spec__podTemplate__initContainers": [{"name": "first", "image": ALLOWED, "env": [FROM_ROOT]}]},
        "spec.podTemplate: Secret of a container's env not allowed here",
    ),
    (
        {
            "spec__podTemplate__volumes": [
                {"name": "x", "csi": {"driver": "d", "nodePublishSecretRef": {"name": UNLISTED}}}
            ]
        },
        "spec.podTemplate.volumes: Secret not allowed here",
    ),
    (
        {"spec__podTemplate__volumes": [{"name": "x", "secret": {"secretName": UNLISTED}}]},
        "spec.podTemplate.volumes: Secret not allowed here",
    ),
    (
        {"spec__podTemplate__volumes": [{"name": "x", "projected": {"sources": [{"secret": {"name": UNLISTED}}]}}]},
        "spec.podTemplate.volumes: Secret not allowed here",
    ),
    (
        {"spec__podTemplate__volumes": [{"name": "x", "csi": {"driver": "secrets-store.csi.k8s.io"}}]},
        "spec.podTemplate.volumes: CSI driver not allowed here; accepted: none",
    ),
    (
        {"spec__podTemplate__volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "others"}}]},
        "spec.podTemplate.volumes: claim not allowed here",
    ),
]
