"""Why the demo stops, in words for whoever started it.

DemoError              anything below; the message is all that is shown
├── KubeRequestError   the API server, or the pod behind its proxy, gave no good answer
│   └── GoneError      the API server says that there is no such thing
└── WaitError          a wait that ended without what it waited for
"""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to look at."""


class WaitError(DemoError):
    """What was waited for did not come in time."""


class KubeRequestError(DemoError):
    """The API server, or the pod behind its proxy, gave no good answer."""


class GoneError(KubeRequestError):
    """The API server says that there is no such thing."""
