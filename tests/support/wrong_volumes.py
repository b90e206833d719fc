"""Wrong volumes, containers and claims of pod templates, for `wrong_manifests`."""

from __future__ import annotations

from flyball_lab.harness.manifests import Object, Wrong

_POD = "spec.podTemplate"
_CACHE: Object = {"name": "cache", "emptyDir": {}}
_SIDE: Object = {"name": "side", "image": "side:1"}
_LABEL = "must be a DNS label"


def _pod(id: str, wrong: Object, right: Object, path: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    """`wrong` and `right` are fields of the pod template."""
    at = f"{_POD}.{path}" if path else _POD
    return Wrong(
        id,
        {f"{_POD}.{field}": value for field, value in wrong.items()},
        {f"{_POD}.{field}": value for field, value in right.items()},
        at,
        says,
        server,
    )


def _volume(id: str, wrong: Object, right: Object, path: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    return _pod(
        f"volume: {id}",
        {"volumes": [{"name": "cache", **wrong}]},
        {"volumes": [{"name": "cache", **right}]},
        f"volumes[0]{path}",
        says,
        server,
    )


def _mount(id: str, wrong: Object, right: Object, path: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    base = {"name": "cache", "mountPath": "/cache"}
    return _pod(
        f"mount: {id}",
        {"volumes": [_CACHE], "volumeMounts": [base | wrong]},
        {"volumes": [_CACHE], "volumeMounts": [base | right]},
        path,
        says,
        server,
    )


def _side(id: str, wrong: Object, right: Object, path: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    return _pod(
        f"container: {id}", {"containers": [_SIDE | wrong]}, {"containers": [_SIDE | right]}, path, says, server
    )


def _variable(id: str, wrong: Object, right: Object, path: str, says: str, server: str = "") -> Wrong:  # noqa: A002
    env = "spec.engine.env"
    return Wrong(
        f"variable: {id}",
        {env: [{"name": "A", **wrong}]},
        {env: [{"name": "A", **right}]},
        f"{env}[0].{path}",
        says,
        server,
    )


_SECRET: Object = {"secretKeyRef": {"name": "s", "key": "k"}}
_ONLY_FALSE = ("Input should be False", 'supported values: "false"')


def _claims(*names: str, template: str = "gpu") -> Object:
    return {"resourceClaims": [{"name": name, "resourceClaimTemplateName": template} for name in names]}


WRONG_VOLUMES = (
    # Forbidden: with the field, and what is accepted.
    *(
        _pod(f"{field} of the node", {field: True}, {field: False}, field, *_ONLY_FALSE)
        for field in ("hostNetwork", "hostPID", "hostIPC")
    ),
    _pod(
        "pods as root",
        {"securityContext": {"runAsUser": 0}},
        {"securityContext": {"runAsUser": 1, "runAsGroup": 0, "fsGroup": 0, "supplementalGroups": [44, 110]}},
        "securityContext.runAsUser",
        "greater than or equal to 1",
    ),
    _pod(
        "pods that may be root",
        {"securityContext": {"runAsNonRoot": False}},
        {"securityContext": {"runAsNonRoot": True}},
        "securityContext.runAsNonRoot",
        "Input should be True",
        'supported values: "true"',
    ),
    _pod(
        "an assigned user and one of ours",
        {"securityContext": {"runAsAssignedUser": True, "runAsUser": 1000}},
        {"securityContext": {"runAsAssignedUser": True, "fsGroup": 1000}},
        "securityContext.runAsAssignedUser",
        "must be false where runAsUser or runAsGroup is set",
    ),
    _volume(
        "the node's files",
        {"hostPath": {"path": "/"}},
        {"emptyDir": {}},
        ".hostPath",
        "accepted: configMap, secret, persistentVolumeClaim, emptyDir, projected, csi",
    ),
    *(
        _side(id, {"securityContext": wrong}, {"securityContext": right}, f"containers[0].securityContext.{at}", *says)
        for id, wrong, right, at, says in (  # noqa: A001
            ("privileged", {"privileged": True}, {"privileged": False}, "privileged", _ONLY_FALSE),
            (
                "more privileges",
                {"allowPrivilegeEscalation": True},
                {"allowPrivilegeEscalation": False},
                "allowPrivilegeEscalation",
                _ONLY_FALSE,
            ),
            (
                "capability",
                {"capabilities": {"add": ["SYS_ADMIN"]}},
                {"capabilities": {"add": [], "drop": ["ALL"]}},
                "capabilities.add",
                ("at most 0 items", "must have at most 0 items"),
            ),
            ("root", {"runAsUser": 0}, {"runAsUser": 1}, "runAsUser", ("greater than or equal to 1",)),
        )
    ),
    _side(
        "a port of the node",
        {"ports": [{"containerPort": 9000, "hostPort": 9000}]},
        {"ports": [{"containerPort": 9000, "hostPort": 0}]},
        "containers[0].ports[0].hostPort",
        "Input should be 0",
        'supported values: "0"',
    ),
    # Volumes.
    *(
        _pod(
            f"volume: {name}",
            {"volumes": [{"name": name, "emptyDir": {}}]},
            {"volumes": [{"name": f"{name}-2", "emptyDir": {}}]},
            "volumes[0].name",
            "is a volume of Flyball's; accepted: any name but flyball, flyball-keys, flyball-tls, model, shm, tmp",
        )
        for name in ("flyball", "flyball-keys", "flyball-tls", "model", "shm", "tmp")
    ),
    _pod(
        "volume: name",
        {"volumes": [_CACHE | {"name": "my_cache"}]},
        {"volumes": [_CACHE | {"name": "my-cache"}]},
        "volumes[0].name",
        _LABEL,
    ),
    _pod(
        "volume: twice",
        {"volumes": [_CACHE, _CACHE]},
        {"volumes": [_CACHE, _CACHE | {"name": "other"}]},
        "volumes",
        "Duplicate value",
    ),
    _volume(
        "no source", {}, {"csi": {"driver": "d.example.com"}}, "", "must have exactly one source; accepted: config"
    ),
    _volume(
        "two sources",
        {"emptyDir": {}, "configMap": {"name": "c"}},
        {"configMap": {"name": "c", "items": [{"key": "a.txt", "path": "b/c"}], "optional": True}},
        "",
        "must have exactly one source; accepted: configMap, secret",
    ),
    _volume(
        "a ConfigMap's name",
        {"configMap": {"name": "My_Map"}},
        {"configMap": {"name": "my-map"}},
        ".configMap.name",
        "must be the name of a Kubernetes object",
    ),
    _volume(
        "a file outside",
        {"secret": {"secretName": "s", "items": [{"key": "k", "path": "../k"}]}},
        {"secret": {"secretName": "s", "items": [{"key": "k", "path": "a..b", "mode": 256}]}},
        ".secret.items[0].path",
        "must be a relative path without '..'",
    ),
    _volume(
        "permissions",
        {"secret": {"secretName": "s", "defaultMode": 644}},
        {"secret": {"secretName": "s", "defaultMode": 0o644}},
        ".secret.defaultMode",
        "less than or equal to 511",
    ),
    _volume(
        "size",
        {"emptyDir": {"sizeLimit": "20 GB"}},
        {"emptyDir": {"sizeLimit": "20Gi", "medium": "Memory"}},
        ".emptyDir.sizeLimit",
        "must be a quantity such as 500m, 2, 16Gi or 1.5",
    ),
    _volume(
        "no projection",
        {"projected": {"sources": [{}]}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "audience": "vault"}}]}},
        ".projected.sources[0]",
        "must have exactly one source; accepted: configMap, secret, downwardAPI, serviceAccountToken",
    ),
    _volume(
        "a field that pods lack",
        {
            "projected": {
                "sources": [{"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nodeName"}}]}}]
            }
        },
        {
            "projected": {
                "sources": [
                    {"downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}}]}}
                ]
            }
        },
        ".projected.sources[0].downwardAPI.items[0].fieldRef.fieldPath",
        "must be metadata.name, metadata.namespace",
    ),
    _volume(
        "a token of a minute",
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 60}}]}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}},
        ".projected.sources[0].serviceAccountToken.expirationSeconds",
        "greater than or equal to 600",
    ),
    # Mounts.
    _mount("no volume", {"name": "cash"}, {}, "volumeMounts", "mounts a volume that spec.podTemplate.volumes does not"),
    *(
        _mount(f"over {path}", {"mountPath": path}, {"mountPath": right}, "volumeMounts[0].mountPath", "would cover")
        for path, right in (
            ("/tmp", "/tmp/.cache"),
            ("/dev", "/data/dev"),
            ("/dev/shm", "/devices"),
            ("/flyball", "/flyball-2"),
            ("/flyball/flyball_engine", "/opt/flyball"),
            ("/model", "/models"),
            ("/model/x", "/a/model"),
        )
    ),
    *(
        _mount(f"at {path}", {"mountPath": path}, {"mountPath": "/a/b.c"}, "volumeMounts[0].mountPath", says)
        for path, says in (
            ("cache", "must be an absolute path"),
            ("/", "must be an absolute path"),
            ("/cache/", "must be an absolute path"),
            ("/a:b", "must be an absolute path"),
            ("/a/../tmp", "must be a path without '.' and '..'"),
        )
    ),
    _mount(
        "a path outside",
        {"subPath": "a/../.."},
        {"subPath": "a/b", "readOnly": True},
        "volumeMounts[0].subPath",
        "must be a relative path without '..'",
    ),
    _pod(
        "mount: two at one place",
        {"volumes": [_CACHE], "volumeMounts": [{"name": "cache", "mountPath": "/a"}] * 2},
        {"volumes": [_CACHE], "volumeMounts": [{"name": "cache", "mountPath": path} for path in ("/a", "/b")]},
        "volumeMounts",
        "Duplicate value",
    ),
    # Containers.
    *(
        _pod(
            f"container: name {name}",
            {kind: [_SIDE | {"name": name}]},
            {kind: [_SIDE | {"name": f"{name}-2"}]},
            f"{kind}[0].name",
            "is a container of Flyball's; accepted: any name but engine, flyball-plugin",
        )
        for kind, name in (("containers", "engine"), ("initContainers", "flyball-plugin"))
    ),
    _pod(
        "container: one name in both lists",
        {"containers": [_SIDE], "initContainers": [_SIDE]},
        {"containers": [_SIDE], "initContainers": [_SIDE | {"name": "first", "restartPolicy": "Always"}]},
        "initContainers",
        "has the name of one of containers",
    ),
    _side("image", {"image": "a b"}, {"image": "a:b"}, "containers[0].image", "must be an image reference"),
    _side(
        "pull policy",
        {"imagePullPolicy": "Sometimes"},
        {"imagePullPolicy": "Always"},
        "containers[0].imagePullPolicy",
        "'IfNotPresent'",
        '"IfNotPresent"',
    ),
    _side(
        "mounts what is not there",
        {"volumeMounts": [{"name": "shm", "mountPath": "/shm"}]},
        {"volumeMounts": []},
        "containers",
        "mounts a volume that spec.podTemplate.volumes does not have",
    ),
    *(
        _side(
            f"port {port}",
            {"ports": [{"containerPort": port}]},
            {"ports": [{"containerPort": port + 1000}]},
            "containers[0].ports[0].containerPort",
            "may not be 8000 or 8001: the engine of the same pod listens there",
        )
        for port in (8000, 8001)
    ),
    *(
        _side(
            f"port name {name}",
            {"ports": [{"name": name, "containerPort": 9000}]},
            {"ports": [{"name": right, "containerPort": 9000}]},
            "containers[0].ports[0].name",
            says,
        )
        for name, right, says in (
            ("http", "http-2", "is a port of the engine's; accepted: any name but http, control"),
            ("control", "c", "is a port of the engine's; accepted: any name but http, control"),
            ("9000", "p9000", "must have a letter"),
            ("my_port", "my-port", "must be a port name"),
        )
    ),
    _side(
        "a port twice",
        {"ports": [{"containerPort": 9000}] * 2},
        {"ports": [{"containerPort": 9000}, {"containerPort": 9001, "protocol": "UDP"}]},
        "containers[0].ports",
        "Duplicate value",
    ),
    _side(
        "a probe of nothing",
        {"readinessProbe": {"periodSeconds": 5}},
        {"readinessProbe": {"httpGet": {"port": "web", "path": "/ready"}, "periodSeconds": 5}},
        "containers[0].readinessProbe",
        "must have exactly one action; accepted: httpGet, tcpSocket, grpc, exec",
    ),
    _side(
        "a probe's port",
        {"livenessProbe": {"tcpSocket": {"port": 0}}},
        {"livenessProbe": {"tcpSocket": {"port": 9000}}},
        "containers[0].livenessProbe.tcpSocket.port",
        "must be the number of a port, 1 to 65535, or the name of one in ports",
    ),
    _pod(
        "container: a probe of one that ends",
        {"initContainers": [_SIDE | {"startupProbe": {"grpc": {"port": 9000}}}]},
        {"initContainers": [_SIDE | {"startupProbe": {"grpc": {"port": 9000}}, "restartPolicy": "Always"}]},
        "initContainers[0].restartPolicy",
        "must be Always where there are probes",
    ),
    _pod(
        "container: one that is restarted on failure",
        {"initContainers": [_SIDE | {"restartPolicy": "OnFailure"}]},
        {"initContainers": [_SIDE]},
        "initContainers[0].restartPolicy",
        "'Always'",
        '"Always"',
    ),
    # Claims.
    _pod(
        "claim: none of this name",
        {**_claims("gpu"), "resources": {"claims": [{"name": "gpus"}]}},
        {**_claims("gpu"), "resources": {"claims": [{"name": "gpu", "request": "big"}]}},
        "resources.claims",
        "uses a claim that spec.podTemplate.resourceClaims does not have",
    ),
    _pod(
        "claim: none of this name for a container",
        {"initContainers": [_SIDE | {"resources": {"claims": [{"name": "gpu"}]}}]},
        {**_claims("gpu"), "initContainers": [_SIDE | {"resources": {"claims": [{"name": "gpu"}]}}]},
        "initContainers",
        "uses a claim that spec.podTemplate.resourceClaims does not have",
    ),
    _pod(
        "claim: of nothing",
        {"resourceClaims": [{"name": "gpu"}]},
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]},
        "resourceClaims[0]",
        "must have exactly one source; accepted: resourceClaimName, resourceClaimTemplateName",
    ),
    Wrong(
        "claim: devices without one",
        {"spec.parallelism.tensor": 2, f"{_POD}.resourceClaims": _claims("gpu")["resourceClaims"]},
        {
            "spec.parallelism.tensor": 2,
            f"{_POD}.resourceClaims": _claims("gpu")["resourceClaims"],
            f"{_POD}.resources": {"claims": [{"name": "gpu"}]},
        },
        "spec.parallelism",
        "without one, or devices by spec.podTemplate.resources.claims, both must be 1",
    ),
    # Scheduling, accounts.
    _pod(
        "spread without a word on what to do",
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}]},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]},
        "topologySpreadConstraints[0].whenUnsatisfiable",
        "Field required",
        "Required value",
    ),
    _pod(
        "spread of no skew",
        {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]},
        "topologySpreadConstraints[0].maxSkew",
        "greater than or equal to 1",
    ),
    _pod(
        "spread over domains that are a preference",
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}
            ]
        },
        {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}
            ]
        },
        "topologySpreadConstraints[0].minDomains",
        "goes with whenUnsatisfiable DoNotSchedule alone",
    ),
    *(
        _pod(field, {field: "Not A Name"}, {field: "a-name"}, field, "must be the name of a Kubernetes object")
        for field in ("schedulerName", "serviceAccountName")
    ),
    # Variables.
    _variable(
        "of two sources", {"value": "x", "valueFrom": _SECRET}, {"valueFrom": _SECRET}, "valueFrom", "beside value"
    ),
    _variable(
        "of no source",
        {"valueFrom": {}},
        {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}},
        "valueFrom",
        "must have exactly one source; accepted: secretKeyRef, configMapKeyRef, fieldRef",
    ),
    _variable(
        "a key",
        {"valueFrom": {"secretKeyRef": {"name": "s", "key": "a/b"}}},
        {"valueFrom": {"secretKeyRef": {"name": "s", "key": "a.b"}}},
        "valueFrom.secretKeyRef.key",
        "must be a key of a Secret",
    ),
    _variable(
        "a field that pods lack",
        {"valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}},
        {"valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        "valueFrom.fieldRef.fieldPath",
        "status.podIP or status.podIPs",
    ),
    # The engine's image, and the budget.
    Wrong(
        "pull policy of the engine",
        {"spec.engine.imagePullPolicy": "always"},
        {"spec.engine.imagePullPolicy": "Always"},
        "spec.engine.imagePullPolicy",
        "'IfNotPresent'",
        '"IfNotPresent"',
    ),
    *(
        Wrong(
            f"budget of {wrong}",
            {"spec.podDisruptionBudget.maxUnavailable": wrong},
            {"spec.podDisruptionBudget.maxUnavailable": right},
            "spec.podDisruptionBudget.maxUnavailable",
            "must be a number of pods such as 1, or a percentage such as 25%",
        )
        for wrong, right in ((-1, 0), ("25", "25%"), ("101%", "100%"), ("half", "0%"))
    ),
)
"""Refused in the pod template, among variables and in the budget."""
