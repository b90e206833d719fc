"""`python -m flyball_engine.bench`: see `--help`."""

import sys

from flyball_engine.bench.main import main

if __name__ == "__main__":
    sys.exit(main())
