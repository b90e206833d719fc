"""`python3 -m flyball_operator.cli`."""

import sys

from flyball_operator.cli.entry import main

sys.exit(main())
