"""The API server's answers about one InferenceService, in process: a kubectl for each of many questions is slow."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from flyball_operator.api import names
from support.api_requests import api

Object = dict[str, Any]


class RefusedError(AssertionError):
    """The API server refused; `status` is the HTTP code, `causes` the fields and what is wrong with each."""

    def __init__(self, error: ApiException) -> None:
        answer = json.loads(error.body or "{}")
        self.status: int = error.status
        self.message: str = answer["message"]
        details = answer.get("details") or {}
        self.causes = [(cause.get("field", ""), cause.get("message", "")) for cause in details.get("causes") or []]
        super().__init__(f"{self.status}: {self.message}")


@dataclass(frozen=True)
class InferenceServices:
    """Our resource in one namespace. Every method raises `RefusedError` when the API server says no."""

    namespace: str

    def create(self, manifest: Object, *, dry_run: bool = False, strict: bool = True) -> Object:
        """Create, or find out whether it could be created; returns the object with defaults, as stored."""
        options = {"field_validation": "Strict" if strict else "Ignore"} | ({"dry_run": "All"} if dry_run else {})
        return self._call("create_namespaced_custom_object", manifest, **options)

    def read(self, name: str) -> Object:
        """The object as stored."""
        return self._call("get_namespaced_custom_object", name)

    def apply_status(self, name: str, status: Object, *, manager: str) -> Object:
        """Server-side apply of a status under a field manager."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": self.namespace},
            "status": status,
        }
        options = {"field_manager": manager, "force": True, "_content_type": "application/apply-patch+yaml"}
        return self._call("patch_namespaced_custom_object_status", name, body, **options)

    def replace(self, manifest: Object) -> Object:
        """Update spec and metadata."""
        return self._call("replace_namespaced_custom_object", manifest["metadata"]["name"], manifest)

    def delete(self, name: str) -> None:
        """Delete."""
        self._call("delete_namespaced_custom_object", name)

    def _call(self, method: str, *args: Any, **options: Any) -> Object:
        call = getattr(client.CustomObjectsApi(api()), method)
        try:
            answer: Object = call(
                names.GROUP, names.VERSION, self.namespace, names.PLURAL, *args, **options, _request_timeout=30.0
            )
        except ApiException as error:
            raise RefusedError(error) from error
        return answer
