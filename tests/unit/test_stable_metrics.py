"""Names, types and labels of metrics are an interface: dashboards and alerts of users are made of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flyball_engine.contract import Env, MetricName
from flyball_engine.control.metrics import EngineCollector
from flyball_engine.control.service import ControlService
from flyball_engine.control.tokens import verifier_of
from flyball_engine.signing import Signer
from flyball_lab.harness.engines import PlantEngine
from flyball_lab.tools.metrics import operator_metrics

#: A line for each metric: its name as scraped, its type, its labels.
LIST = Path(__file__).with_name("stable_metrics.txt")
GONE = (
    "\nOf the metrics that users rely on these are gone, or have another type or other labels. Restore them: other"
    " labels or another meaning need another name, beside the old one. If a release shall break users' dashboards and"
    f" alerts, say so in the subject of the commit, which the changelog has, and edit {LIST.name}:\n  "
)
NEW = f"\nThese metrics are new. Once named, they stay: check the names, then add the lines to {LIST.name}:\n  "


def operators() -> set[str]:
    return {line(one.name, one.kind, one.labels) for one in operator_metrics()}


def engines() -> set[str]:
    """What an engine's exporter tells."""
    engine, signer = PlantEngine(), Signer(Ed25519PrivateKey.generate())
    verifier = verifier_of({Env.SERVICE_UID.value: "uid-1", Env.PUBLIC_KEY.value: signer.public_pem})
    service = ControlService(engine=engine, verifier=verifier, service="uid-1", follow=lambda _: None)
    found = set()
    for family in EngineCollector(service, engine.counts, engine.gate).collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        # Of a family without a series only the family itself knows its labels.
        found.add(line(name, family.type, family._labelnames))  # type: ignore[attr-defined]
    return found


def line(name: str, kind: str, labels: Iterable[str]) -> str:
    return " ".join((name, kind, ",".join(labels))).rstrip()


def exported() -> set[str]:
    return operators() | engines()


def test_metrics_keep_their_names_types_and_labels() -> None:
    promised = set(LIST.read_text(encoding="utf-8").splitlines())
    assert not (gone := promised - exported()), GONE + "\n  ".join(sorted(gone))
    assert not (new := exported() - promised), NEW + "\n  ".join(sorted(new))


def test_an_engine_tells_every_metric_of_the_contract() -> None:
    assert {one.split()[0] for one in engines()} == set(MetricName)


def test_the_list_is_in_order() -> None:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
