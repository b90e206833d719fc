"""`python -m flyball_lab.padded`: see `--help`."""

from flyball_lab.padded.main import main

if __name__ == "__main__":
    main()
