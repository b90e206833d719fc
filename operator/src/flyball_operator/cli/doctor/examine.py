"""All checks, in the order of their findings: the first that fails is the first to mend. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from flyball_operator.cli.doctor import checks, service_checks
from flyball_operator.cli.doctor.findings import Finding, fail
from flyball_operator.cli.doctor.installation import Installation

Check = Callable[[Installation], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    checks.cluster_version,
    checks.crd,
    checks.operators,
    checks.versions,
    checks.leases,
    checks.rights,
    checks.admission,
    service_checks.releases,
    service_checks.signing_keys,
    service_checks.network_policies,
    service_checks.prometheus,
    service_checks.scraping,
    service_checks.plugin_versions,
    service_checks.rollouts,
    service_checks.governance,
    service_checks.gateways,
)
#: Those that need no operator.
_OF_CLUSTER: Final[tuple[Check, ...]] = (checks.cluster_version, checks.crd, checks.admission)


def examine(installation: Installation) -> list[Finding]:
    """What each check finds. Where operators were looked for in no namespace at all, nothing is said of them."""
    if installation.searched_exists:
        return [finding for check in CHECKS for finding in check(installation)]
    said = f"there is no namespace {installation.searched}"
    lost = fail("operator", said, "name the operator's namespace, or leave --operator-namespace out")
    return [lost, *(finding for check in _OF_CLUSTER for finding in check(installation))]
