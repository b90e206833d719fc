"""What the cluster's Prometheus has of a service's engines."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections import defaultdict

from flyball_operator.prometheus.queries import UID


def scraped(metric: str, *, uid: str, seconds: int, **labels: str) -> dict[float, float]:
    """A metric of a service's control ports, by the time of each scrape (Unix seconds) in the last `seconds`; sums."""
    given = {UID: uid, "port": "control"} | labels
    selector = ",".join(f'{name}="{value}"' for name, value in given.items())
    query = urllib.parse.urlencode({"query": f"{metric}{{{selector}}}[{seconds}s]"})
    with urllib.request.urlopen(f"{os.environ['FLYBALL_PROMETHEUS_URL']}/api/v1/query?{query}", timeout=30) as response:
        found = json.load(response)["data"]["result"]
    sums: dict[float, float] = defaultdict(float)
    for series in found:
        for time, value in series["values"]:
            sums[time] += float(value)
    return dict(sorted(sums.items()))
