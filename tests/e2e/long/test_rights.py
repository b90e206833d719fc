"""What the chart's account may do: all that the operator asks, reads too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.live import RELEASE, Flyball, Service

pytestmark = pytest.mark.cluster


def test_the_charts_account_is_refused_nothing(chat: Service, flyball: Flyball) -> None:
    account = f"system:serviceaccount:{flyball.namespace}:"
    refused = [
        f"{line['verb']} {line['requestURI']}"
        for line in map(json.loads, Path(os.environ["FLYBALL_AUDIT_LOG"]).read_text(encoding="utf-8").splitlines())
        if line["user"]["username"].startswith(account) and line.get("responseStatus", {}).get("code") == 403
    ]
    assert not refused, f"{RELEASE} asked for what it may not: {refused[:5]}"
