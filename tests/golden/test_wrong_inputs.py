"""The page on wrong inputs is that of the list the tests go through."""

from __future__ import annotations

from flyball_lab.repository import ROOT
from support.wrong_inputs.page import doors, page

PAGE = ROOT / "docs/wrong-inputs.md"


def test_the_page_is_as_committed(rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(page())
    assert page() == PAGE.read_text()


def test_the_tests_it_names_are_there_and_use_the_list() -> None:
    for door in doors():
        assert "wrong_inputs" in (ROOT / door.test).read_text(), door.test
