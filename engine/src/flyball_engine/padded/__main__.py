"""`python -m flyball_engine.padded`: see `--help`."""

from flyball_engine.padded.main import main

if __name__ == "__main__":
    main()
