"""`python -m flyball_lab.simulator`: see `--help`."""

from flyball_lab.simulator.main import main

if __name__ == "__main__":
    main()
