"""`python3 -m flyball_operator`: the operator process."""

from __future__ import annotations

import os
import signal
import sys

# Process 1 of a container ignores what it has no handler for, and it takes seconds of imports until there is one that
# ends everything in order. Until then nothing is held that had to be given back.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

from flyball_operator.app import arguments  # noqa: E402 – see above

if __name__ == "__main__":
    # Before the imports that take seconds: --help and what is wrong are answered at once.
    arguments.check(sys.argv[1:])
    from flyball_operator.app.main import main

    sys.exit(main())
