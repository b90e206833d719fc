"""EFFECT. The `flyball` command: what is useful without a cluster at hand, or beside kubectl."""

from flyball_operator.cli.main import main

__all__ = ["main"]
