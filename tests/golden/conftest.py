"""`--rewrite-golden` writes the golden files anew (hack/gen does); read the diff before committing it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Only seen where this folder is named on the command line, as hack/gen does."""
    parser.addoption("--rewrite-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Whether to write instead of compare."""
    return bool(pytestconfig.getoption("rewrite_golden", default=False))
