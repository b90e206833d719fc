"""Which tests one process has, where several share them: what begins with the same fixture, if that takes long.

xdist has marks for it (`xdist_group`), which it does not see with pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

#: Files whose tests use one server, which takes most of a minute to start.
_SERVED = ("asked_strategies", "classes", "gate", "lifecycle", "outcomes", "parameters")
#: The one test of its file that uses it, too.
_SERVED_TEST = "tests/engine/test_sizing.py::test_a_server_reports_the_capacity_that_was_sized"
#: Files whose tests use one name on the cluster, or one installation.
_RELEASED = ("broken_installations", "chart")
#: Files whose tests change the CRD for a while, or look at it.
_OF_THE_CRD = ("doctor", "manifests", "missing_objects", "upgrades")
#: Files whose tests install CRDs of others, and remove them.
_OF_OTHERS_CRDS = ("admission_policies", "gateways", "groups", "missing_groups", "random_walks")
_SHARED = "the shared server"
_TOGETHER = {
    **{f"tests/engine/test_{name}.py": _SHARED for name in _SERVED},
    _SERVED_TEST: _SHARED,
    **{f"tests/apiserver/test_{name}.py": name for name in _RELEASED},
    **{f"tests/apiserver/test_{name}.py": "the CRD" for name in _OF_THE_CRD},
    **{f"tests/apiserver/test_{name}.py": "CRDs of others" for name in _OF_OTHERS_CRDS},
}
#: A file's tests share fixtures there, but for those of this one.
_BY_FILE, _BY_TEST = "tests/engine/", "tests/engine/test_own_tests.py"
#: Files that take longest, most of it waiting: begun last, they would keep one process busy and the others idle.
LONGEST = (
    *(f"tests/contract/test_{name}.py" for name in ("dashboards", "alerts")),
    *(
        f"tests/perturb/test_{name}.py"
        for name in ("reconciler_crash", "reconciler_stale", "mix_shift", "named_sizes", "speculation")
    ),
    *(f"tests/engine/test_{name}.py" for name in ("gate", "live_retunes", "pipeline", "data_parallel", "sizing")),
    *(f"tests/engine/test_{name}.py" for name in ("own_tests", "arguments", "download", "secured")),
    *(
        f"tests/apiserver/test_{name}.py"
        for name in (
            "broken_installations",
            "signing_key",
            "shortages",
            "two_releases",
            "last_device",
            "takeover",
            "shards",
            "missing_objects",
            "gateways",
            "random_walks",
        )
    ),
)


def turn(test: str) -> int:
    """When a test's file has its turn: those that take longest first, then the others as they are."""
    file = test.partition("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


def group(test: str) -> str:
    """What has to be in one process with this test, by its name in pytest: a name for all of it."""
    file = test.partition("::")[0]
    for name in (test, file):
        if name in _TOGETHER:
            return _TOGETHER[name]
    return file if file.startswith(_BY_FILE) and file != _BY_TEST else test


class Grouped(LoadScopeScheduling):  # type: ignore[misc]  # its types are not told
    """Gives each process a group at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
