"""What the commands in `hack` run: generated files, recordings, long runs of the scheduler."""
