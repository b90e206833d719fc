"""`python -m demo`."""

import sys

from flyball_lab.demo.main import run

sys.exit(run())
