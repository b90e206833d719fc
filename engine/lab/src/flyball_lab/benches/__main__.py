"""`python -m bench`."""

import sys

from flyball_lab.benches.main import run

sys.exit(run())
