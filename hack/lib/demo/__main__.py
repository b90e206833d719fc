"""`python -m demo`."""

import sys

from demo.main import run

sys.exit(run())
