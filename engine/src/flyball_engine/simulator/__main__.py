"""`python -m flyball_engine.simulator`: see `--help`."""

from flyball_engine.simulator.main import main

if __name__ == "__main__":
    main()
