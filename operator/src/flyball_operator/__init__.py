"""The Flyball operator: it makes InferenceServices run and keeps their batching tuned."""

__version__ = "0.1.0"
