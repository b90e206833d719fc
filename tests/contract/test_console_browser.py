"""The console in a real Chromium: light and dark, by keyboard, for screen readers, and with nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest
from axe_core_python.selenium import Axe
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from flyball_lab.harness.browser import Browser, browser
from flyball_lab.harness.console_fleet import Fleet, served
from flyball_lab.harness.waiting import eventually

SERVICE: Final = "services/team-a/load-h100-chat"
PAGES: Final = ("", SERVICE, f"{SERVICE}/decisions", f"{SERVICE}/what-if")
#: What can be reached by keyboard, as the standard has it.
CONTROLS: Final = "a[href], button, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def console() -> Iterator[str]:
    """The address of a console with recorded services; one has an objective that is named as a part of a form is."""
    fleet = Fleet.recorded("load-h100-chat", "overload-refused")
    first, *others = (known := fleet.insights["overload-refused"]).spec.objectives
    spec = replace(known.spec, objectives=(replace(first, name="action"), *others))
    insights = {**fleet.insights, "overload-refused": replace(known, spec=spec)}
    with served(replace(fleet, insights=insights)) as address:
        yield address


@pytest.fixture(scope="module")
def shared() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def chromium(shared: Browser, console: str) -> Iterator[Browser]:
    """The browser, which asks the console alone and complains of nothing, whatever a test does."""
    shared.scripts(allowed=True)
    shared.requests()
    shared.complaints()
    yield shared
    asked = shared.requests()
    assert asked
    assert [address for address in asked if not address.startswith(console)] == []
    assert shared.complaints() == []


def arrives(chromium: Browser, end: str) -> None:
    """Wait for a page whose address ends so: a key or a click only begins to open it."""
    loaded = "return document.readyState === 'complete' && location.href.endsWith(arguments[0])"
    eventually(lambda: chromium.driver.execute_script(loaded, end), expecting=f"a page that ends in {end}")


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_in_any_page(chromium: Browser, console: str, path: str, scheme: str) -> None:
    chromium.prefer(scheme)
    chromium.driver.get(console + path)
    ground = chromium.driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
    assert ground == {"light": "rgba(255, 255, 255, 1)", "dark": "rgba(18, 22, 28, 1)"}[scheme]
    found = Axe().run(chromium.driver)
    assert [f"{one['id']}: {node['html']}" for one in found["violations"] for node in one["nodes"]] == []
    assert len(found["passes"]) > 10, "axe looked"


@pytest.mark.parametrize("path", PAGES)
def test_the_tab_key_reaches_every_control_and_shows_where_it_is(chromium: Browser, console: str, path: str) -> None:
    driver = chromium.driver
    driver.get(console + path)
    expected = [one.id for one in driver.find_elements(By.CSS_SELECTOR, CONTROLS)]
    reached = []
    for _ in expected:
        driver.switch_to.active_element.send_keys(Keys.TAB)
        focused = driver.switch_to.active_element
        reached.append(focused.id)
        assert focused.value_of_css_property("outline-style") == "solid"
        assert focused.value_of_css_property("outline-width") == "3px"
    assert reached == expected
    assert len(expected) >= 4


def test_a_reader_comes_from_the_fleet_to_a_service_and_its_decisions(chromium: Browser, console: str) -> None:
    driver = chromium.driver
    driver.get(console)
    driver.find_element(By.NAME, "search").send_keys("h100", Keys.ENTER)
    arrives(chromium, "?search=h100")
    assert driver.find_elements(By.LINK_TEXT, "overload-refused") == []
    driver.find_element(By.LINK_TEXT, "load-h100-chat").click()
    arrives(chromium, SERVICE)
    assert driver.find_element(By.TAG_NAME, "h1").text == "team-a/load-h100-chat"
    assert len(driver.find_elements(By.CSS_SELECTOR, "svg circle, svg rect")) > 50
    driver.find_element(By.LINK_TEXT, "Decisions").click()
    arrives(chromium, "/decisions")
    assert "first-token" in driver.find_element(By.CSS_SELECTOR, ".timeline dl").text
    driver.find_element(By.LINK_TEXT, "Flyball").click()
    arrives(chromium, console)


def test_sliders_are_answered_as_they_move(chromium: Browser, console: str) -> None:
    driver = chromium.driver
    driver.get(f"{console}{SERVICE}/what-if")
    before = driver.find_element(By.CSS_SELECTOR, "#answer table").text
    driver.find_element(By.NAME, "per-token").send_keys(Keys.END)
    assert driver.find_element(By.CSS_SELECTOR, "output[for=objective-2]").text == "120"
    eventually(lambda: driver.find_element(By.CSS_SELECTOR, "#answer").text != before, expecting="another answer")
    assert driver.find_element(By.CSS_SELECTOR, "#answer tr.changed").is_displayed()
    assert driver.current_url == f"{console}{SERVICE}/what-if", "the page stays"


def test_an_objective_may_have_any_name(chromium: Browser, console: str) -> None:
    driver = chromium.driver
    driver.get(f"{console}services/team-a/overload-refused/what-if")
    before = driver.find_element(By.CSS_SELECTOR, "#answer").text
    driver.find_element(By.NAME, "action").send_keys(Keys.END)
    eventually(lambda: driver.find_element(By.CSS_SELECTOR, "#answer").text != before, expecting="another answer")
    assert driver.find_element(By.CSS_SELECTOR, "#answer table").is_displayed()


def test_without_scripts_the_button_asks(chromium: Browser, console: str) -> None:
    chromium.scripts(allowed=False)
    driver = chromium.driver
    driver.get(f"{console}{SERVICE}/what-if")
    slider = driver.find_element(By.NAME, "per-token")
    slider.send_keys(Keys.HOME)
    slider.send_keys(Keys.ENTER)
    arrives(chromium, "per-token=7.5")
    assert driver.find_element(By.CSS_SELECTOR, "output[for=objective-2]").text == "7.5"
    assert driver.find_element(By.CSS_SELECTOR, "#answer tr.changed").is_displayed()
