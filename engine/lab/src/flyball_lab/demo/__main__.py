"""`python -m flyball_lab.demo`."""

import sys

from flyball_lab.demo.main import run

sys.exit(run())
