"""Pod templates as KServe's LLMInferenceService and vLLM's production stack make them, in their names and numbers."""

from __future__ import annotations

from typing import Any

from flyball_lab.harness.manifests import Object

_UNPRIVILEGED: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}


def llm_inference_service(name: str, *, port: int = 8000, sidecar_first: bool = False) -> Object:
    """The template of an LLMInferenceService's pods, with TLS and a model that an init container brings.

    `port`: vLLM's. It is 8001 where the pods decode for others that prefill: then a proxy has 8000. `sidecar_first`: a
    container of the user's stands before KServe's, as `spec.template` may have it.
    """
    script = (
        'VLLM_VERSION=$(vllm --version 2>/dev/null | tail -1); echo "vLLM ${VLLM_VERSION}"; '
        f'eval "exec vllm serve /mnt/models --served-model-name {name} --port {port} '
        "--ssl-certfile /var/run/kserve/tls/tls.crt --ssl-keyfile /var/run/kserve/tls/tls.key "
        '${VLLM_ADDITIONAL_ARGS} $@"'
    )
    probe = {"httpGet": {"path": "/health", "port": port, "scheme": "HTTPS"}, "periodSeconds": 10}
    folders = {"home": "/home", "tmp-dir": "/tmp", "dshm": "/dev/shm", "model-cache": "/models"}
    main = {
        "name": "main",
        "image": "ghcr.io/llm-d/llm-d-cuda:v0.9.0",
        "command": ["/bin/bash", "-c", script, "--"],
        "env": [
            {"name": "HOME", "value": "/home"},
            {"name": "VLLM_LOGGING_LEVEL", "value": "INFO"},
            {"name": "HF_HUB_CACHE", "value": "/models"},
            {"name": "VLLM_ADDITIONAL_ARGS", "value": "--max-num-seqs 128"},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        ],
        "ports": [{"containerPort": port, "protocol": "TCP"}],
        "startupProbe": probe | {"failureThreshold": 60},
        "readinessProbe": probe,
        "livenessProbe": probe,
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sleep", "15"]}}},
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "securityContext": _UNPRIVILEGED | {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumeMounts": [
            *({"name": volume, "mountPath": path} for volume, path in folders.items()),
            {"name": "tls-certs", "mountPath": "/var/run/kserve/tls", "readOnly": True},
            {"name": "kserve-provision-location", "mountPath": "/mnt/models", "readOnly": True},
        ],
    }
    downloads = {
        "name": "storage-initializer",
        "image": "kserve/storage-initializer:v0.18.0",
        "args": ["hf://Qwen/Qwen3-8B", "/mnt/models"],
        "volumeMounts": [{"name": "kserve-provision-location", "mountPath": "/mnt/models"}],
    }
    own = {
        "name": "log-shipper",
        "image": "example.com/log-shipper:1",
        "ports": [{"name": "http", "containerPort": 80}],
    }
    volumes = [{"name": volume, "emptyDir": {}} for volume in (*folders, "kserve-provision-location")]
    volumes.append({"name": "tls-certs", "secret": {"secretName": f"{name}-kserve-self-signed-certs"}})
    component = "llminferenceservice-workload"
    labels = {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": component,
        "kserve.io/component": "workload",
    }
    spec = {
        "containers": [own, main] if sidecar_first else [main],
        "initContainers": [*([_routing_sidecar()] if port == 8001 else []), downloads],
        "terminationGracePeriodSeconds": 60,
        "volumes": volumes,
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def _routing_sidecar() -> Object:
    """It takes requests on 8000, has another pod prefill, and passes them on to vLLM on 8001."""
    namespace = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "name": "llm-d-routing-sidecar",
        "image": "ghcr.io/llm-d/llm-d-router-disagg-sidecar:v0.10.0",
        "command": ["/app/pd-sidecar", "--port=8000", "--vllm-port=8001", "--secure-proxy=true"],
        "env": [{"name": "INFERENCE_POOL_NAMESPACE", "valueFrom": namespace}],
        "ports": [{"containerPort": 8000, "protocol": "TCP"}],
        "restartPolicy": "Always",
        "securityContext": _UNPRIVILEGED,
        "volumeMounts": [{"name": "tls-certs", "mountPath": "/var/run/kserve/tls", "readOnly": True}],
    }


def production_stack(model: str, **changes: Any) -> Object:
    """The template of the pods of one model of the production stack's chart, with LMCache; they run as root."""

    def secret(name: str, key: str) -> Object:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": "vllm-secrets", "key": key}}}

    connector = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
    values = {
        "HF_HOME": "/data",
        "LMCACHE_LOG_LEVEL": "DEBUG",
        "PROMETHEUS_MULTIPROC_DIR": "/tmp",
        "LMCACHE_USE_EXPERIMENTAL": "True",
        "LMCACHE_LOCAL_CPU": "True",
        "LMCACHE_MAX_LOCAL_CPU_SIZE": "20",
        "VLLM_RPC_TIMEOUT": "1000000",
    }
    ports = {"container-port": 8000, "zmq-port": 55555, "ucx-port": 9999}
    probe = {"httpGet": {"path": "/health", "port": 8000}, "initialDelaySeconds": 15, "periodSeconds": 10}
    engine = {
        "name": "vllm",
        "image": "lmcache/vllm-openai:v0.3.9",
        "command": [
            *("vllm", "serve", "Qwen/Qwen3-8B", "--host", "0.0.0.0", "--port", "8000", "--no-enable-prefix-caching"),
            *("--max-num-seqs", "128", "--kv-transfer-config", connector),
        ],
        "env": [
            *({"name": name, "value": value} for name, value in values.items()),
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            secret("HF_TOKEN", f"hf_token_{model}"),
            secret("VLLM_API_KEY", "vllmApiKey"),
        ],
        "envFrom": [{"configMapRef": {"name": "vllm-configs"}}],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        "startupProbe": probe | {"failureThreshold": 60},
        "livenessProbe": probe,
        "resources": {"requests": {"cpu": "6", "memory": "16Gi"}, "limits": {"nvidia.com/gpu": "1"}},
        "securityContext": {"runAsNonRoot": False},
        "volumeMounts": [{"name": "vllm-storage", "mountPath": "/data"}],
    }
    adapters = {
        "name": "sidecar",
        "image": "lmcache/lmstack-sidecar:latest",
        "env": [{"name": "PORT", "value": "30090"}],
    }
    labels = {"model": model, "helm-release-name": "vllm", "environment": "test", "release": "test"}
    spec = {
        "hostname": f"vllm-{model}",
        "subdomain": f"vllm-{model}-engine-service",
        "containers": [engine, adapters],
        "volumes": [{"name": "vllm-storage", "persistentVolumeClaim": {"claimName": f"vllm-{model}-storage-claim"}}],
    }
    return {"metadata": {"labels": labels}, "spec": spec | changes}
