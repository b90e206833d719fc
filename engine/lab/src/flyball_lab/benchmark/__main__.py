"""`flyball-bench`, and `python -m flyball_lab.benchmark`: see `--help`."""

import sys


def run() -> int:
    """Entry point; returns the exit code."""
    try:
        # Here, so that Ctrl-C while that is imported is no traceback.
        from flyball_lab.benchmark.main import main  # noqa: PLC0415 – see above

        return main()
    except KeyboardInterrupt:
        print("flyball-bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(run())
