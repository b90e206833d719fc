"""`python -m bench`."""

import sys

from bench.main import run

sys.exit(run())
