"""An operator that many tests share: its start takes the processors longer than what most ask of it.

Each test's namespace is its own. The operator looks after it for as long as the test lasts, by a label.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_lab.harness.waiting import eventually
from support.cluster import Object, kubectl
from support.operators import OperatorProcess
from support.tenants import Release, tenants


@dataclass(frozen=True)
class SharedOperator:
    """The process, the label of namespaces that it looks after, and its release, which is granted nothing in others."""

    process: OperatorProcess
    label: str
    release: Release

    @contextmanager
    def at(self, place: str) -> Iterator[OperatorProcess]:
        """It looks after this namespace; at the end it must have logged no error meanwhile."""
        known = len(self.process.trouble())
        self.release.bind(place)
        kubectl("label", "namespace", place, f"{self.label}=yes")
        eventually(lambda: self.process.watches(place), expecting=f"{place} watched by {self.process.name}")
        try:
            yield self.process
        finally:
            kubectl("label", "namespace", place, f"{self.label}-")
            eventually(lambda: self.process.leaves(place), expecting=f"{place} left alone by {self.process.name}")
        assert not self.process.trouble()[known:]


@contextmanager
def shared_operator(folder: Path, *, values: Object | None = None, **settings: Any) -> Iterator[SharedOperator]:
    """A ready operator that looks after no namespace yet; at the end it must have logged no error.

    `values`: of the chart, for its rights.
    """
    label = f"flyball.test/shared-{uuid.uuid4().hex[:6]}"
    with (
        tenants(0, labels={label: "yes"}, values=values) as release,
        release.operator(folder, watch_namespace_selector=label, **settings) as process,
    ):
        yield SharedOperator(process, label, release)
