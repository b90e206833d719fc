"""`python3 -m flyball_operator`: the operator process."""

from __future__ import annotations

import sys

from flyball_operator.shell.main import main

if __name__ == "__main__":
    sys.exit(main())
