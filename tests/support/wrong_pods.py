"""Wrong pod templates, for `wrong_manifests`."""

from __future__ import annotations

from flyball_lab.harness.manifests import Wrong

_POD = "spec.podTemplate"
GPU = "nvidia.com/gpu"

WRONG_PODS = (
    Wrong(
        "our label",
        {f"{_POD}.labels": {"serving.flyball.dev/service": "other"}},
        {f"{_POD}.labels": {"team.example.com/name": "serving"}},
        f"{_POD}.labels",
        "Flyball sets them",
    ),
    Wrong(
        "our annotation",
        {f"{_POD}.annotations": {"prometheus.io/scrape": "false"}},
        {f"{_POD}.annotations": {"example.com/note": "any text, really"}},
        f"{_POD}.annotations",
        "Flyball sets them",
    ),
    Wrong(
        "label value",
        {f"{_POD}.labels": {"team": "my team"}},
        {f"{_POD}.labels": {"team": "my_team"}},
        f"{_POD}.labels",
        "must be a label value",
    ),
    Wrong(
        "label key",
        {f"{_POD}.nodeSelector": {"my key": "a"}},
        {f"{_POD}.nodeSelector": {"example.com/my-key": "a"}},
        f"{_POD}.nodeSelector",
        "has a key that is no qualified name",
    ),
    Wrong(
        "quantity",
        {f"{_POD}.resources.requests": {"memory": "16 GB"}},
        {f"{_POD}.resources.requests": {"memory": "16Gi", "cpu": 2}},
        f"{_POD}.resources.requests",
        "must be a quantity such as 500m, 2, 16Gi or 1.5",
    ),
    Wrong(
        "negative quantity",
        {f"{_POD}.resources.limits": {"cpu": -1}},
        {f"{_POD}.resources.limits": {"cpu": 0}},
        f"{_POD}.resources.limits",
        "must be a quantity such as 500m, 2, 16Gi or 1.5",
    ),
    *(
        Wrong(
            f"{resource} of {amount}",
            {f"{_POD}.resources.{where}": {resource: amount}},
            {f"{_POD}.resources.{where}": {resource: right}},
            f"{_POD}.resources.{where}",
            f"{resource} must be 0 or at least 1Mi, such as 8Mi or 8Gi",
        )
        for where, resource, amount, right in (
            ("limits", "memory", "8m", "8Mi"),
            ("requests", "memory", 8, 8 * 2**20),
            ("requests", "memory", "1023Ki", "1024Ki"),
            ("limits", "ephemeral-storage", "8k", "0"),
        )
    ),
    Wrong(
        "accelerator in resources",
        {"spec.accelerator": {"resourceName": GPU}, f"{_POD}.resources": {"limits": {GPU: 1}}},
        {"spec.accelerator": {"resourceName": GPU}, f"{_POD}.resources": {"limits": {"cpu": 1}}},
        f"{_POD}.resources",
        "may not hold the accelerator",
    ),
    Wrong(
        "toleration operator",
        {f"{_POD}.tolerations": [{"key": "a", "operator": "In"}]},
        {f"{_POD}.tolerations": [{"key": "a", "operator": "Exists"}]},
        f"{_POD}.tolerations[0].operator",
        "'Exists' or 'Equal'",
        '"Exists", "Equal"',
    ),
    Wrong(
        "priority class name",
        {f"{_POD}.priorityClassName": "High Priority"},
        {f"{_POD}.priorityClassName": "high-priority"},
        f"{_POD}.priorityClassName",
        "must be the name of a Kubernetes object",
    ),
)
"""Refused in the pod template."""
