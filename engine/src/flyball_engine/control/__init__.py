"""EFFECT. The control port, shared by all engines: signatures, generations, read-back."""
