"""EFFECT. `flyball doctor`: `collect.py` asks the cluster, the checks judge what it found and are pure."""
