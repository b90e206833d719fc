"""EFFECT. `flyball support-bundle`: `gather.py` reads; `redaction.py` is pure and takes out what may be a secret."""
