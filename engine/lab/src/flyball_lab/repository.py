"""The checkout that benches, tests and tools work on."""

from pathlib import Path
from typing import Final

#: Root of the checkout. Only a checkout has what is built or generated from here.
ROOT: Final = Path(__file__).resolve().parents[4]
