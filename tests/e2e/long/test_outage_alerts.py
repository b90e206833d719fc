"""Outages side by side, each of a service or an installation of its own: which alert fires, after how long, and what
the first step of its runbook shows.

The rules are the chart's, with all their waiting times, in the Prometheus of the Prometheus operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from flyball_lab.harness.waiting import eventually
from support.firing_alerts import Alert, FiringAlerts, carry_out
from support.live import Flyball
from support.outage_scene import KEYLESS, OBSERVED, REVOKED, SECOND, THIRD, UNSEEN, Scene, another, serve
from support.outages import OUTAGES, Outage
from support.prometheus_operator import prometheus_operator

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

#: The longest `for` of these alerts is 15 minutes. What they wait for comes within a few more.
FIRES_WITHIN = 1800.0
#: Pods start, and Prometheus takes up its scrape job again.
GOES_WITHIN = 900.0
#: These go ten minutes after what they are about ended.
LOOK_BACK = ("FlyballPushesFail",)
#: Prometheus evaluates rules half as often.
LOOK_SECONDS = 10.0


@pytest.fixture
def scene(flyball: Flyball) -> Iterator[Scene]:
    """All serve, and no alert is pending."""
    with prometheus_operator() as prometheus:
        flyball.install(**OBSERVED)
        with another(flyball, SECOND, UNSEEN, REVOKED, KEYLESS) as second, another(flyball, THIRD) as third:
            scene = Scene(flyball, second, third, prometheus)
            try:
                serve(scene)
                alerts = FiringAlerts(prometheus)
                eventually(
                    lambda: not (alerts.look("pending") | alerts.look()), expecting="no alert", within=900, every=5
                )
                yield scene
            finally:
                for name in list(scene.loads):
                    scene.end_load(name)


@dataclass
class Followed:
    """What came of an outage: when it began, after how long each of its alerts fired, and what was wrong with these."""

    outage: Outage
    began: float
    after: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def take(self, alert: Alert, since: float, scene: Scene, note: Callable[[str], None]) -> None:
        """An alert about it fires: carry out the first step of its runbook, once."""
        if alert.name in self.after:
            return
        self.after[alert.name] = since - self.began
        if alert.name in self.outage.fires:
            self._look(alert, scene, note)
        elif alert.name not in self.outage.entails:
            self.wrong.append(f"{alert} fires after {self.after[alert.name]:.0f} s")

    def _look(self, alert: Alert, scene: Scene, note: Callable[[str], None]) -> None:
        cause = self.outage.fires[alert.name]
        try:
            step, shown = carry_out(alert, operators=self.outage.operators, prometheus=scene.prometheus)
        except AssertionError as error:
            self.wrong.append(f"{alert}: {error}")
            return
        note(f"{self.outage.what}: {alert.name} after {self.after[alert.name]:.0f} s; `{step}` shows {cause}")
        if cause not in shown:
            self.wrong.append(f"{alert}: {step} does not show {cause!r}: {shown[-1500:]}")

    @property
    def silent(self) -> set[str]:
        """The alerts that are to fire and did not yet."""
        return self.outage.fires.keys() - self.after.keys()


@pytest.mark.timeout(7200)
def test_each_outage_fires_its_alerts_and_no_others_and_the_first_step_shows_the_cause(
    scene: Scene, note_figure: Callable[[str], None]
) -> None:
    alerts, followed, strange = FiringAlerts(scene.prometheus), list[Followed](), set[Alert]()
    for outage in OUTAGES:
        followed.append(Followed(outage, time.monotonic()))
        outage.begin(scene)

    def all_fire() -> bool:
        for alert in alerts.look():
            about = [one for one in followed if one.outage.befell(alert)]
            for one in about:
                one.take(alert, alerts.since[alert], scene, note_figure)
            if not about:
                strange.add(alert)
        return not any(one.silent for one in followed)

    with suppress(AssertionError):  # told below, with all else that is wrong
        eventually(all_fire, expecting="all alerts fire", within=FIRES_WITHIN, every=LOOK_SECONDS)
    wrong = [f"{one.outage.what}: {text}" for one in followed for text in one.wrong]
    wrong += [f"{one.outage.what}: {', '.join(one.silent)} silent, {one.after}" for one in followed if one.silent]
    wrong += [f"{alert} is about no outage" for alert in strange]
    assert not wrong, "\n".join(wrong)

    began = time.monotonic()
    mended = [(one.outage, one.outage.mend) for one in followed if one.outage.mend is not None]
    for _, mend in mended:
        mend(scene)

    def gone() -> bool:
        firing = {alert for alert in alerts.look() if alert.name not in LOOK_BACK}
        return not any(outage.befell(alert) for outage, _ in mended for alert in firing)

    eventually(gone, expecting="the alerts of what was mended go", within=GOES_WITHIN, every=LOOK_SECONDS)
    note_figure(f"{len(mended)} outages mended: their alerts were gone {time.monotonic() - began:.0f} s later")
