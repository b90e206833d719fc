"""EFFECT. The `flyball` command: what is useful without a cluster at hand, or beside kubectl."""
