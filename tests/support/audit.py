"""What the API server saw of operators, by its audit log."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.cluster import Object


@dataclass(frozen=True)
class Write:
    """A write that the API server took."""

    writer: str
    verb: str
    resource: str
    name: str
    code: int
    at: str
    dry_run: bool


@dataclass(frozen=True)
class Refusal:
    """A request without the right to it: where, and verb and resource, such as `patch inferenceservices/status`."""

    namespace: str
    request: str
    uri: str


class Audit:
    """The API server's audit log, from now on."""

    def __init__(self) -> None:
        self._path = Path(os.environ["FLYBALL_AUDIT_LOG"])
        self._from = self._path.stat().st_size

    def entries(self, containing: str = "") -> Iterator[Object]:
        """What it says of each request. `containing`: of those alone whose line has this text in it."""
        assert self._path.stat().st_size >= self._from, "the API server began another audit log meanwhile"
        with self._path.open("rb") as log:
            log.seek(self._from)
            for line in log:
                if line.endswith(b"\n") and containing.encode() in line:  # the last one may be half written
                    yield json.loads(line)

    def writes(self, namespace: str) -> list[Write]:
        """Writes of operators in this namespace but to Leases and Events, in the order the API server received them."""
        return [write for write in self._requests(namespace) if not write.dry_run]

    def dry_runs(self, namespace: str) -> list[Write]:
        """Dry runs of such writes."""
        return [write for write in self._requests(namespace) if write.dry_run]

    def not_granted(self, account: str) -> list[Refusal]:
        """What a user asked without the right to, reads too.

        What admission refuses (a quota, a policy) is not in it: no role would change that.
        """
        return [
            _refusal(entry)
            for entry in self.entries(account)
            if entry["user"]["username"] == account
            and (entry.get("annotations") or {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    def _requests(self, namespace: str) -> list[Write]:
        found = []
        for entry in self.entries():
            where = entry.get("objectRef") or {}
            agent = entry.get("userAgent", "")
            ours = agent.startswith("flyball/") and where.get("namespace") == namespace
            if (
                ours
                and entry["verb"] in ("create", "update", "patch", "delete")
                and entry["stage"] == "ResponseComplete"
            ):
                found.append(
                    Write(
                        writer=agent,
                        verb=entry["verb"],
                        resource=where["resource"],
                        name=where.get("name", ""),
                        code=entry["responseStatus"]["code"],
                        at=entry["requestReceivedTimestamp"],
                        dry_run="dryRun=All" in entry["requestURI"],
                    )
                )
        found.sort(key=lambda write: write.at)
        return [write for write in found if write.resource not in ("leases", "events", "selfsubjectaccessreviews")]


def _refusal(entry: Object) -> Refusal:
    about = entry.get("objectRef") or {}
    resource = "/".join(about[part] for part in ("resource", "subresource") if part in about)
    return Refusal(about.get("namespace", ""), f"{entry['verb']} {resource}", entry["requestURI"])
