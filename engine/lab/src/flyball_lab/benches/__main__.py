"""`python -m flyball_lab.benches`."""

import sys

from flyball_lab.benches.main import run

sys.exit(run())
